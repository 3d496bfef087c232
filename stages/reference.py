"""reference: every token of a sealed step's samples, scored by the student that the run started from."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.batch import Batch
from stages.base import Output
from stages.protocols import Scorer


@dataclass
class Reference:
    """Log-probs of a frozen copy of the initial student, to which a KL penalty holds the trained one."""

    engine: Scorer
    temperature: float = 1.0
    task: str = "reference"
    reads: tuple[str, ...] = ("input_ids", "token_mask")
    writes: tuple[str, ...] = ("reference_logprobs",)

    def __call__(self, batch: Batch) -> Output:
        sequences = batch.values("input_ids")
        return Output(batch.sample_ids, {"reference_logprobs": self.engine.logprobs(sequences, self.temperature)})
