"""train: one optimizer update on a whole step, and each row's share of its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from schemas.batch import Batch
from stages.base import Output
from stages.losses.counts import Counts
from stages.losses.metrics import combine_metrics
from stages.objectives import Objective
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
        results = self.objective(self.engine, batch, counts) if counts.num_tokens else []
        update = self.engine.update() if counts.num_tokens else None
        losses = torch.cat([result.row_losses_B.cpu() for result in results]) if results else torch.zeros(len(batch))
        return Output(
            batch.sample_ids,
            {"loss": losses},
            metrics={
                "loss": 0.0,
                **combine_metrics(result.metrics for result in results),
                "trained_tokens": counts.num_tokens,
                "trained_samples": counts.num_samples,
                "grad_norm": update.grad_norm if update else 0.0,
                "learning_rate": update.learning_rate if update else 0.0,
                "optimizer_steps": 1 if update else 0,
            },
        )
