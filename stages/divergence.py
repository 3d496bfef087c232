"""divergence: the exact reverse KL from student to teacher at every token the student sampled.

KL_t = Σ_v p_S(v) (log p_S(v) − log p_T(v)),  at temperature 1, over the vocabulary both share
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from schemas.batch import Batch
from stages.base import Output
from stages.protocols import Scorer


@dataclass
class Divergence:
    """A measurement, not a loss: reads the teacher's stored logits, asks the student for its own."""

    engine: Scorer
    task: str = "divergence"
    reads: tuple[str, ...] = ("input_ids", "token_mask", "teacher_logits")
    writes: tuple[str, ...] = ("exact_kl",)

    def __call__(self, batch: Batch) -> Output:
        student = self.engine.logits(batch.values("input_ids"))
        teacher, offsets = batch.jagged("teacher_logits")
        rows = zip(student, _rows(teacher, offsets), batch.values("token_mask"), strict=True)
        kl = [reverse_kl(ours, theirs)[torch.tensor(mask)] for ours, theirs, mask in rows]
        tokens = sum(map(len, kl))
        total = sum(float(row.double().sum()) for row in kl)
        return Output(
            batch.sample_ids,
            {"exact_kl": [float(row.mean()) for row in kl]},
            metrics={"exact_kl": total / tokens, "exact_kl_tokens": tokens},
        )


def reverse_kl(student_TV: torch.Tensor, teacher_TV: torch.Tensor) -> torch.Tensor:
    """KL(student ‖ teacher) per token, [T], float32, from raw logits; past the shorter vocabulary is padding."""
    shared = min(student_TV.shape[1], teacher_TV.shape[1])
    student = torch.log_softmax(student_TV[:, :shared].float(), dim=-1)
    teacher = torch.log_softmax(teacher_TV[:, :shared].float(), dim=-1)
    return (student.exp() * (student - teacher)).sum(-1)


def _rows(values: torch.Tensor, offsets: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(values, offsets.diff().tolist())
