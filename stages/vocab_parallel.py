"""Softmax arithmetic on logits whose vocabulary is cut over ranks (tensor parallelism).

Rank r holds the logits [N, V_r] of its slice of the vocabulary. Maximum and sum of exponentials are reduced over
the ranks, so every rank gets the same [N] result, and its own slice of the gradient. The gradient that arrives is
taken to be the same on all ranks, as the result is. Computed in the wider of float32 and the logits' type.
Without a group the whole vocabulary is here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from stages.collectives import all_max, all_sum


def wide(dtype: torch.dtype) -> torch.dtype:
    """The wider of float32 and *dtype*."""
    return torch.promote_types(dtype, torch.float32)


def distributed_vocab_logsumexp(logits_NV: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """log Σ_v exp(logit_v) over the whole vocabulary; [N]."""
    return _LogSumExp.apply(logits_NV, group)


def vocab_parallel_logprobs(
    logits_NV: Tensor, ids_N: Tensor, first_id: int = 0, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The log-prob of each token id; [N]. *first_id* is the id of this rank's first logit."""
    return _LogProb.apply(logits_NV, ids_N, first_id, group)


def vocab_parallel_reverse_kl(student_NV: Tensor, teacher_NV: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """KL(student || teacher) of each row; [N]. Both are cut alike; only the student gets a gradient."""
    return _ReverseKL.apply(student_NV, teacher_NV, group)


def logsumexp(logits_NV: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The same without a gradient, for logits that are wide enough already."""
    if group is None:
        return torch.logsumexp(logits_NV, -1)
    padding_only = logits_NV.shape[1] == 0  # the last rank of a padded vocabulary may hold no real id
    largest = logits_NV.new_full((len(logits_NV),), -torch.inf) if padding_only else logits_NV.amax(1)
    largest = all_max(largest, group)
    return largest + all_sum((logits_NV - largest[:, None]).exp().sum(1), group).log()


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = logsumexp(logits.to(wide(logits.dtype)), group)
        ctx.save_for_backward(logits, total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, total = ctx.saved_tensors
        return ((logits - total[:, None]).exp() * grad[:, None]).to(logits.dtype), None


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, first_id: int, group: dist.ProcessGroup | None) -> Tensor:
        total = logsumexp(logits.to(wide(logits.dtype)), group)
        here = (ids >= first_id) & (ids < first_id + logits.shape[1])
        column = torch.where(here, ids - first_id, 0)
        own = logits.gather(1, column[:, None])[:, 0].to(total.dtype) if logits.shape[1] else torch.zeros_like(total)
        ctx.save_for_backward(logits, total, here, column)
        return all_sum(torch.where(here, own, 0.0), group) - total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, total, here, column = ctx.saved_tensors
        out = (logits - total[:, None]).exp() * -grad[:, None]
        if logits.shape[1]:
            out.scatter_add_(1, column[:, None], torch.where(here, grad, 0.0)[:, None])
        return out.to(logits.dtype), None, None, None


class _ReverseKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        log_s, log_t = log_softmax(student, group), log_softmax(teacher, group)
        kl = all_sum((log_s.exp() * (log_s - log_t)).sum(1), group)
        ctx.save_for_backward(log_s, log_t, kl)
        ctx.dtype = student.dtype
        return kl

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        log_s, log_t, kl = ctx.saved_tensors
        return (log_s.exp() * (log_s - log_t - kl[:, None]) * grad[:, None]).to(ctx.dtype), None, None


def log_softmax(logits_NV: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's slice of the log-probs, without a gradient; [N, V_r]."""
    logits = logits_NV.detach().to(wide(logits_NV.dtype))
    return logits - logsumexp(logits, group)[:, None]
