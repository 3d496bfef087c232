"""train: one optimizer update on a whole step, and each row's share of its loss."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from schemas.batch import Batch
from schemas.config import ClippedPGLossConfig
from stages.base import Output
from stages.losses.counts import Counts
from stages.losses.metrics import combine_metrics
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss
from stages.protocols import TrainEngine


@dataclass
class Train:
    """The policy-gradient step on the columns the other stages wrote.

    Counts are those of the whole batch, so that micro-batches sum to one loss. A batch in which nothing is
    trained takes no optimizer step.
    """

    engine: TrainEngine
    loss: ClippedPGLossConfig = field(default_factory=ClippedPGLossConfig)
    temperature: float = 1.0
    task: str = "train"
    reads: tuple[str, ...] = (
        "input_ids",
        "token_mask",
        "sample_mask",
        "generation_logprobs",
        "student_logprobs",
        "advantages",
    )
    writes: tuple[str, ...] = ("loss",)

    def __call__(self, batch: Batch) -> Output:
        counts = Counts.of(batch.padded("token_mask"), batch.tensor("sample_mask"))
        row_losses: list[torch.Tensor] = []
        metrics: list[dict[str, float]] = []

        def micro_loss(current_logprobs_BS: torch.Tensor, micro: Batch) -> torch.Tensor:
            result = policy_gradient_loss(
                current_logprobs_BS, loss_batch(micro, current_logprobs_BS.device), counts, self.loss
            )
            row_losses.append(result.row_losses_B.cpu())
            metrics.append(result.metrics)
            return result.loss

        if counts.num_tokens:
            self.engine.forward_backward(batch, micro_loss, self.temperature)
        update = self.engine.update() if counts.num_tokens else None
        losses = torch.cat(row_losses) if row_losses else torch.zeros(len(batch))
        return Output(
            batch.sample_ids,
            {"loss": losses},
            metrics={
                "loss": 0.0,
                **combine_metrics(metrics),
                "trained_tokens": counts.num_tokens,
                "trained_samples": counts.num_samples,
                "grad_norm": update.grad_norm if update else 0.0,
                "learning_rate": update.learning_rate if update else 0.0,
                "optimizer_steps": 1 if update else 0,
            },
        )


def loss_batch(micro: Batch, device: torch.device) -> LossBatch:
    """The padded columns of a micro-batch that the loss reads."""
    return LossBatch(
        token_mask=micro.padded("token_mask").to(device),
        sample_mask=micro.tensor("sample_mask").to(device),
        generation_logprobs=micro.padded("generation_logprobs").to(device),
        student_logprobs=micro.padded("student_logprobs").to(device),
        advantages=micro.padded("advantages").to(device),
    )
