"""train: one optimizer update on a whole step, and each row's share of its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from schemas.batch import Batch
from stages.base import Output
from stages.losses.counts import Counts
from stages.objectives import Judged, Objective, judge
from stages.protocols import TrainEngine


@dataclass
class Train:
    """The step on the columns the other stages wrote.

    Counts are those of the whole batch, so that micro-batches sum to one loss. A batch in which nothing is
    trained takes no optimizer step.
    """

    engine: TrainEngine
    objective: Objective
    task: str = "train"
    writes: tuple[str, ...] = ("loss",)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.objective.reads

    def __call__(self, batch: Batch) -> Output:
        counts = Counts.of(batch.padded("token_mask"), batch.tensor("sample_mask"))
        judged, update = Judged(torch.zeros(len(batch)), {}), None
        if counts.num_tokens:
            judged, update = judge(self.objective, self.engine, batch, counts), self.engine.update()
        return Output(
            batch.sample_ids,
            {"loss": judged.losses_B},
            metrics={
                "loss": 0.0,
                **judged.metrics,
                "trained_tokens": counts.num_tokens,
                "trained_samples": counts.num_samples,
                "grad_norm": update.grad_norm if update else 0.0,
                "learning_rate": update.learning_rate if update else 0.0,
                "optimizer_steps": 1 if update else 0,
            },
        )
