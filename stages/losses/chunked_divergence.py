"""The divergence of two next-token distributions at many tokens, without ever holding their logits.

Logits exist a chunk of tokens at a time, the LM-head product included, and are computed again in backward: the
extra memory is a few chunks, whatever the number of tokens. The student's gradient has a closed form
(divergences.py), so autograd stores nothing but the inputs. Both softmaxes run over the ids that student and
teacher share; padded rows of either head stay outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from schemas.errors import InputError
from stages.collectives import all_sum
from stages.losses.divergences import Divergence
from stages.losses.memory import CHUNK_NUMBERS
from stages.losses.projection import Logits, project_back
from stages.vocab_parallel import log_softmax, wide


@dataclass(frozen=True)
class FullVocabulary:
    """How to compare two distributions.

    ``vocabulary`` is the number of ids both models really have; None takes the smaller of the two. When it is cut
    over *group*, ``first_id`` is the id of this rank's first row, the same for every head. Hidden states are
    compared at temperature 1.
    """

    divergence: Divergence = field(default_factory=Divergence)
    temperature: float = 1.0
    chunk_size: int | None = None
    vocabulary: int | None = None
    first_id: int = 0
    group: dist.ProcessGroup | None = None

    def here(self, student: Logits, teacher: Logits) -> int:
        """How many of this rank's leading ids are shared ones. Raises InputError where a head is too small."""
        held = min(student.vocabulary, teacher.vocabulary)
        if self.vocabulary is None:
            if self.group is not None:
                raise InputError("a vocabulary cut over ranks needs its real size: got none; give `vocabulary`")
            return held
        wanted = min(max(self.vocabulary - self.first_id, 0), max(student.vocabulary, teacher.vocabulary))
        if held < wanted:
            raise InputError(
                f"vocabulary: expected {wanted} ids on this rank, got student {student.vocabulary}, "
                f"teacher {teacher.vocabulary} rows; cut both heads at the same ids"
            )
        return wanted

    def chunks(self, rows: int, vocabulary: int) -> list[slice]:
        """Slices over *rows* of ``chunk_size`` tokens, or of as many as ``CHUNK_NUMBERS`` logits allow."""
        # By what all ranks know: each must call the same collectives as often.
        ranks = 1 if self.group is None else dist.get_world_size(self.group)
        step = self.chunk_size or max(1, CHUNK_NUMBERS * ranks // max(self.vocabulary or vocabulary, 1))
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def full_vocabulary_divergence(student: Logits, teacher: Logits, how: FullVocabulary) -> Tensor:
    """The divergence at each of N tokens; [N]. Gradients reach the student's rows and head, never the teacher."""
    if len(student.rows) != len(teacher.rows):
        raise InputError(f"expected a teacher row per student row ({len(student.rows)}), got {len(teacher.rows)}")
    return _FullVocabulary.apply(student.rows, student.head, teacher.rows, teacher.head, how)


class _FullVocabulary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        head: Tensor | None,
        teacher_rows: Tensor,
        teacher_head: Tensor | None,
        how: FullVocabulary,
    ) -> Tensor:
        student, teacher = Logits(rows, head), Logits(teacher_rows, teacher_head)
        ctx.save_for_backward(rows, head, teacher_rows, teacher_head)
        ctx.how, ctx.vocabulary = how, how.here(student, teacher)
        parts = [
            how.divergence.value(*_log_probs(student, teacher, tokens, ctx.vocabulary, how), how.group)
            for tokens in how.chunks(len(rows), ctx.vocabulary)
        ]
        return torch.cat(parts) if parts else rows.new_zeros(0, dtype=wide(rows.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        rows, head, teacher_rows, teacher_head = ctx.saved_tensors
        student, teacher = Logits(rows, head), Logits(teacher_rows, teacher_head)
        how, vocabulary = ctx.how, ctx.vocabulary
        grad_rows = torch.zeros_like(rows, dtype=grad.dtype)
        grad_head = torch.zeros_like(head, dtype=grad.dtype) if head is not None and ctx.needs_input_grad[1] else None
        for tokens in how.chunks(len(rows), vocabulary):
            _add_gradient(student, teacher, tokens, vocabulary, how, grad[tokens], grad_rows, grad_head)
        if head is not None:
            all_sum(grad_rows, how.group)  # every rank's ids pull at the same states
        return grad_rows.to(rows.dtype), None if grad_head is None else grad_head.to(head.dtype), None, None, None


def _add_gradient(
    student: Logits,
    teacher: Logits,
    tokens: slice,
    vocabulary: int,
    how: FullVocabulary,
    grad: Tensor,
    grad_rows: Tensor,
    grad_head: Tensor | None,
) -> None:
    """Add the gradients of one chunk to *grad_rows* and *grad_head*; its logits go when this returns."""
    logs = _log_probs(student, teacher, tokens, vocabulary, how)
    by_logit = how.divergence.gradient(*logs, how.group).mul_(grad[:, None] / how.temperature)
    if student.head is None:
        grad_rows[tokens, :vocabulary] = by_logit
        return
    grad_rows[tokens] = project_back(by_logit, student.head[:vocabulary])
    if grad_head is not None:
        grad_head[:vocabulary].addmm_(by_logit.T, student.rows[tokens].to(by_logit.dtype))


def _log_probs(
    student: Logits, teacher: Logits, tokens: slice, vocabulary: int, how: FullVocabulary
) -> tuple[Tensor, Tensor]:
    """Log-probs of a chunk over the shared ids, of both sides; [C, V] each."""
    both = (side.chunk(tokens, vocabulary) for side in (student, teacher))
    log_s, log_t = (
        log_softmax(logits if how.temperature == 1 else logits / how.temperature, how.group) for logits in both
    )
    return log_s, log_t


@torch.no_grad()
def decomposition_residual(student: Logits, teacher: Logits, how: FullVocabulary) -> Tensor:
    """|cross-entropy - entropy - reverse KL| of each token; [N]. Rounding when all is well."""
    vocabulary = how.here(student, teacher)
    parts = []
    for tokens in how.chunks(len(student.rows), vocabulary):
        log_s, log_t = _log_probs(student, teacher, tokens, vocabulary, how)
        entropy = -all_sum((log_s.exp() * log_s).sum(-1), how.group)
        cross_entropy = -all_sum((log_s.exp() * log_t).sum(-1), how.group)
        parts.append((cross_entropy - entropy - Divergence().value(log_s, log_t, how.group)).abs())
    return torch.cat(parts) if parts else student.rows.new_zeros(0)
