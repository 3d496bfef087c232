"""A teacher that shows only its k most likely tokens, as a loss.

Both distributions are read at the teacher's k ids, plus one bucket for all the rest, whose log-probability is
log(1 - Σp) = log(-expm1(logsumexp of the head)). The head's logsumexp is held at or below -1e-7 on both sides, since
a peaked row would leave a bucket of exactly 0. Reverse: Σ p_S (log p_S - log p_T) over these k + 1; forward the
other way round.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: Largest log of the mass on the k ids.
HEAD_LIMIT = -1e-7


class TopK(NamedTuple):
    """The k most likely ids of each token, their exact log-probs, and the logsumexp of all logits; [N, k], [N]."""

    ids: Tensor
    logprobs: Tensor
    logsumexp: Tensor


def top_k(logits_NV: Tensor, k: int, logsumexp_N: Tensor | None = None) -> TopK:
    """The top k of whole-vocabulary logits, in float32: logits minus the logsumexp over *all* ids."""
    logits = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    total = logits.logsumexp(-1) if logsumexp_N is None else logsumexp_N
    values, ids = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return TopK(ids, values - total[:, None], total)


def with_tail(logprobs_NK: Tensor) -> Tensor:
    """The k log-probs and that of the bucket of all other ids; [N, k + 1]."""
    head = logprobs_NK.logsumexp(-1, keepdim=True).clamp(max=HEAD_LIMIT)
    return torch.cat([logprobs_NK, (-torch.expm1(head)).log()], dim=-1)


class TopKLoss(NamedTuple):
    """The divergence of each token, and the teacher's mass on its k ids; [N]."""

    values: Tensor
    captured_mass: Tensor


def topk_divergence(
    student_NK: Tensor, teacher_NK: Tensor, direction: Literal["reverse", "forward"] = "reverse"
) -> TopKLoss:
    """The divergence between log-probs of both sides at the teacher's k ids, with the tail as one bucket."""
    student, teacher = with_tail(student_NK), with_tail(teacher_NK.detach())
    p, q = (student, teacher) if direction == "reverse" else (teacher, student)
    return TopKLoss((p.exp() * (p - q)).sum(-1), teacher_NK.detach().exp().sum(-1))
