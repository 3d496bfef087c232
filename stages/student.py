"""student: every token of a sealed step's samples, scored by the training engine before it steps."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.batch import Batch
from stages.base import Output
from stages.protocols import Scorer


@dataclass
class Student:
    """The trainer's own log-probs at the start of the step: the denominator of every ratio and gap.

    Unlike the teacher's, a bad value here does not fail the row, which is sealed by now: it is stored as it
    is and ``baseline`` quarantines the row.
    """

    engine: Scorer
    temperature: float = 1.0
    task: str = "student"
    reads: tuple[str, ...] = ("input_ids", "token_mask")
    writes: tuple[str, ...] = ("student_logprobs",)

    def __call__(self, batch: Batch) -> Output:
        sequences = batch.values("input_ids")
        return Output(batch.sample_ids, {"student_logprobs": self.engine.logprobs(sequences, self.temperature)})
