"""Distillation of the whole next-token distribution, in place of the policy-gradient loss.

    loss_t = D(p_S(· | t), p_T(· | t))        D a divergence of divergences.py, reverse KL by default

at every trained token, reduced over the global batch as any token loss. It is exact: no sampling noise and no
importance weights. The teacher ships either its final, normed hidden states, which its LM head (held here, one per
distinct teacher) turns into logits, or the logits themselves.

Alignment: row t of a payload predicts token t, as in every token column; it is the state *before* the token
(``shift_states``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.errors import InputError
from stages.losses.chunked_divergence import FullVocabulary, decomposition_residual, full_vocabulary_divergence
from stages.losses.counts import Counts
from stages.losses.projection import Logits
from stages.losses.reduce import Loss, reduce_rows
from stages.masking import EPS, trained


def mixed_teachers(
    student: Logits, payload_NK: Tensor, heads: Sequence[Tensor], teacher_index_N: Tensor, how: FullVocabulary
) -> Tensor:
    """The divergence at each token from its own teacher, whose head is ``heads[teacher_index]``; [N]."""
    order, parts = [], []
    for mine, ours, teacher in _by_teacher(student, payload_NK, heads, teacher_index_N):
        parts.append(full_vocabulary_divergence(ours, teacher, how))
        order.append(mine)
    return torch.cat(parts)[torch.cat(order).argsort()]


def _by_teacher(
    student: Logits, payload_NK: Tensor, heads: Sequence[Tensor], teacher_index_N: Tensor
) -> Iterator[tuple[Tensor, Logits, Logits]]:
    """(tokens, the student's side, the teacher's) of each teacher. A narrower one uses the first columns."""
    for index in teacher_index_N.unique().tolist() or [0]:  # a rank without tokens still needs a graph
        if not 0 <= index < len(heads):
            raise InputError(f"teacher_index {index}: expected one of the {len(heads)} recorded teachers")
        mine, head = (teacher_index_N == index).nonzero()[:, 0], heads[index]
        yield mine, student._replace(rows=student.rows[mine]), Logits(payload_NK[mine, : head.shape[1]], head)


@dataclass(frozen=True)
class FullBatch:
    """What the loss reads: token_mask [B, S], sample_mask [B], the payload [B, S, H or V] and, for hidden states,
    the teachers' heads and each row's ``teacher_index`` [B]."""

    token_mask: Tensor
    sample_mask: Tensor
    payload: Tensor
    teacher_index: Tensor | None = None
    heads: Sequence[Tensor] = ()


def full_vocabulary_loss(
    student_BSX: Tensor,
    student_head: Tensor | None,
    batch: FullBatch,
    counts: Counts,
    how: FullVocabulary,
    *,
    token_level: bool = True,
) -> Loss:
    """The loss of *batch* as its share of the global batch that *counts* describes.

    *student_BSX* are the student's states (with *student_head*) or logits, row t predicting token t. Masked tokens
    are left out before anything is computed.
    """
    mask = trained(batch.token_mask, batch.sample_mask)
    student = Logits(student_BSX[mask], student_head)
    if batch.teacher_index is None:
        values_N = full_vocabulary_divergence(student, Logits(batch.payload[mask]), how)
    else:
        index_N = batch.teacher_index[:, None].expand_as(mask)[mask]
        values_N = mixed_teachers(student, batch.payload[mask], batch.heads, index_N, how)
    values_BS = torch.zeros(mask.shape, dtype=values_N.dtype, device=mask.device).masked_scatter(mask, values_N)
    rows = reduce_rows(values_BS, mask, counts, token_level)
    metrics = {
        "loss": float(rows.detach().sum()),
        "divergence": float(values_N.detach().sum() / (counts.num_tokens + EPS)),
        "num_valid_samples": float(batch.sample_mask.sum()),
    }
    return Loss(rows.sum(), metrics, rows.detach())


@torch.no_grad()
def decomposition_error(
    student_BSX: Tensor, student_head: Tensor | None, batch: FullBatch, how: FullVocabulary
) -> float:
    """Largest |cross-entropy - entropy - reverse KL| of a trained token; 0 without any."""
    mask = trained(batch.token_mask, batch.sample_mask)
    student, payload = Logits(student_BSX[mask], student_head), batch.payload[mask]
    if batch.teacher_index is None:
        sides = [(student, Logits(payload))]
    else:
        index_N = batch.teacher_index[:, None].expand_as(mask)[mask]
        sides = [(ours, theirs) for _, ours, theirs in _by_teacher(student, payload, batch.heads, index_N)]
    return max(float(decomposition_residual(*both, how).max()) if len(both[0].rows) else 0.0 for both in sides)


def shift_states(states_BSH: Tensor) -> Tensor:
    """States as a model gives them (row t *after* token t) moved so that row t predicts token t; row 0 is 0."""
    return torch.cat([torch.zeros_like(states_BSH[:, :1]), states_BSH[:, :-1]], dim=1)
