"""How two top-k lists of a token compare: mass, entropy, overlap and rank.

For each token, p are the student's and q the teacher's probabilities, S and T their top-k ids. Example: student
{1: .6, 2: .2} and teacher {1: .5, 3: .3} have head masses .8 and .8; of the student's mass .6 lies in the teacher's
set, of the teacher's .5 in the student's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.topk import TopK


def topk_terms(student: TopK, teacher: TopK, sampled_ids_N: Tensor) -> dict[str, Tensor]:
    """Every term by name; [N] each. Log-probs of either side are exact, so masses are of the whole distribution."""
    p, q = student.logprobs.exp(), teacher.logprobs.exp()
    same = student.ids[:, :, None] == teacher.ids[:, None, :]  # [N, k, k]: place i of S is place j of T
    in_teacher, in_student = same.any(2), same.any(1)
    shared = in_teacher.sum(1)
    return {
        **_one_side("student", student, p),
        **_one_side("teacher", teacher, q),
        "student_mass_in_teacher_topk": _sum(p, in_teacher),
        "teacher_mass_in_student_topk": _sum(q, in_student),
        "intersection_student_cross_entropy": -_cross(p, teacher.logprobs, same),
        "intersection_teacher_cross_entropy": -_cross(q, student.logprobs, same.transpose(1, 2)),
        "intersection_size": shared,
        "jaccard": shared / (student.ids.shape[1] + teacher.ids.shape[1] - shared),
        **_overlap(p, q, same),
        "top1_agreement": student.ids[:, 0] == teacher.ids[:, 0],
        "student_rank_of_sampled": rank_of(student.ids, sampled_ids_N),
        "teacher_rank_of_sampled": rank_of(teacher.ids, sampled_ids_N),
    }


def _one_side(name: str, top: TopK, p: Tensor) -> dict[str, Tensor]:
    head = p.sum(1)
    tail = (1 - head).clamp(min=0)
    return {
        f"{name}_head_mass": head,
        f"{name}_tail_mass": tail,
        f"{name}_head_entropy": -(p * top.logprobs).sum(1),
        f"{name}_tail_entropy": -torch.xlogy(tail, tail),
    }


def _sum(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0).sum(1)


def _cross(p: Tensor, other_logprobs: Tensor, same: Tensor) -> Tensor:
    """Σ over shared ids of p · the other side's log-prob of that id."""
    there = torch.where(same, other_logprobs[:, None, :], 0.0).sum(2)
    return _sum(p * there, same.any(2))


def _overlap(p: Tensor, q: Tensor, same: Tensor) -> dict[str, Tensor]:
    """Σ min(p, q) over shared ids, and Σ min / Σ max once each list is renormalised to 1."""
    at_shared = torch.where(same, q[:, None, :], 0.0).sum(2)
    p_share, q_share = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    smaller = torch.minimum(p_share, torch.where(same, q_share[:, None, :], 0.0).sum(2)).sum(1)
    return {"overlap": torch.minimum(p, at_shared).sum(1), "weighted_jaccard": smaller / (2 - smaller)}


def rank_of(ids_NK: Tensor, sampled_ids_N: Tensor) -> Tensor:
    """Place of the sampled id in the list, from 0; -1 where it is absent; [N]."""
    found = ids_NK == sampled_ids_N[:, None]
    return torch.where(found.any(1), found.int().argmax(1), -1)


def subsample(mask_BS: Tensor, max_tokens: int | None) -> Tensor:
    """*mask_BS* thinned to at most *max_tokens* tokens, evenly over the step; bool [B, S].

    Taken before top-k lists are made, so that the others never leave the engine.
    """
    chosen = mask_BS.bool().flatten().nonzero()[:, 0]
    if max_tokens is None or len(chosen) <= max_tokens:
        return mask_BS.bool()
    picked = chosen[torch.linspace(0, len(chosen) - 1, max_tokens).round().long()]
    return torch.zeros(mask_BS.numel(), dtype=torch.bool).index_fill(0, picked, True).view(mask_BS.shape)
