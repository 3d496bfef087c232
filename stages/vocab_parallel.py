"""Softmax arithmetic on logits whose vocabulary is cut over ranks (tensor parallelism).

Rank r holds the logits [N, V_r] of its slice of the vocabulary. Maximum and sum of exponentials are reduced over
the ranks, so every rank gets the same [N] result, and its own slice of the gradient. The gradient that arrives is
taken to be the same on all ranks, as the result is. Computed in the wider of float32 and the logits' type.
Without a group the whole vocabulary is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from stages.collectives import all_max, all_sum


@dataclass(frozen=True)
class VocabularyShard:
    """Which ids this rank holds of a vocabulary cut over *group*: *size* of them from *first_id* on, padding included.

    ``VocabularyShard()`` is a whole vocabulary.
    """

    first_id: int = 0
    size: int | None = None
    group: dist.ProcessGroup | None = None

    def cut(self, whole: Tensor, dim: int = 0) -> Tensor:
        """This rank's ids of a head [V, H], or of logits along their last *dim*."""
        if self.size is None:
            return whole
        first = min(self.first_id, whole.shape[dim])
        return whole.narrow(dim, first, min(self.size, whole.shape[dim] - first))

    def real(self, vocabulary: int | None, held: int) -> int:
        """How many of this rank's *held* leading ids are among the first *vocabulary*; None takes all."""
        return held if vocabulary is None else min(max(vocabulary - self.first_id, 0), held)


WHOLE = VocabularyShard()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The wider of float32 and *dtype*."""
    return torch.promote_types(dtype, torch.float32)


def distributed_vocab_logsumexp(logits_NV: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """log Σ_v exp(logit_v) over the whole vocabulary; [N]."""
    return _LogSumExp.apply(logits_NV, group)


def vocab_parallel_logprobs(
    logits_NV: Tensor, ids_N: Tensor, first_id: int = 0, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The log-prob of each token id, [N] or [N, K]. *first_id* is the id of this rank's first logit."""
    return _LogProb.apply(logits_NV, ids_N, first_id, group)


def shared_states(states: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """*states* as they are; the gradients that come back from each rank's slice of the vocabulary are added up."""
    return states if group is None else _Shared.apply(states, group)


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
        ids_NK = ids[:, None] if ids.dim() == 1 else ids
        here = (ids_NK >= first_id) & (ids_NK < first_id + logits.shape[1])
        column = torch.where(here, ids_NK - first_id, 0)
        own = logits.gather(1, column).to(total.dtype) if logits.shape[1] else total.new_zeros(ids_NK.shape)
        ctx.save_for_backward(logits, total, here, column)
        found = all_sum(torch.where(here, own, 0.0), group) - total[:, None]
        return found.view(ids.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, total, here, column = ctx.saved_tensors
        grad_NK = grad.reshape(here.shape)
        out = (logits - total[:, None]).exp() * -grad_NK.sum(1, keepdim=True)
        if logits.shape[1]:
            out.scatter_add_(1, column, torch.where(here, grad_NK, 0.0))
        return out.to(logits.dtype), None, None, None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_sum(grad.contiguous().clone(), ctx.group), None


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
