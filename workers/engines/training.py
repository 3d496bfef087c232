"""What the training engines take from a recipe alike, and the two numbers by which they tell of a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from schemas.batch import Batch
from workers.engines.batching import plan

if TYPE_CHECKING:
    from schemas.config import OptimizerConfig, RunConfig, SchedulerConfig

#: Numbers of a gradient that are summed up at once.
_PIECE = 2**22


def adamw_options(optimizer: OptimizerConfig) -> dict[str, Any]:
    """What AdamW is made with."""
    return {
        "lr": optimizer.lr,
        "betas": tuple(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
    }


def training_options(config: RunConfig, max_steps: int) -> dict[str, Any]:
    """How a trainer steps, and how it cuts batches."""
    return {
        "schedule": lr_schedule(config.trainer.scheduler, max_steps),
        "clip_grad_norm": config.trainer.optimizer.clip_grad_norm,
        "micro_batch_size": config.policy.train_micro_batch_size,
        "batch_size": config.policy.logprob_batch_size,
        "batch_tokens": config.policy.micro_batch_tokens,
    }


def lr_schedule(scheduler: SchedulerConfig, max_steps: int) -> Callable[[int], float]:
    """Factor of the learning rate at update n = 1, 2, …: linear warm-up times the decay to ``min_lr_ratio``."""

    def factor(update: int) -> float:
        warm = min(1.0, update / max(1, scheduler.warmup_steps))
        progress = min(1.0, (update - 1) / max_steps)
        shape = {
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "linear": 1 - progress,
            "constant": 1.0,
        }[scheduler.decay]
        return warm * (scheduler.min_lr_ratio + (1 - scheduler.min_lr_ratio) * shape)

    return factor


def in_micro_batches(batch: Batch, *, rows: int, tokens: int | None) -> Iterator[Batch]:
    """*batch* in the parts that share a forward pass, as :func:`plan` cuts it."""
    for part in plan(batch.lengths().tolist(), rows=rows, tokens=tokens)[0]:
        yield batch if len(part) == len(batch) else batch.take(part)


def gradient_summary(gradient: torch.Tensor | None) -> tuple[float, float]:
    """Norm of a gradient and its projection on a direction that is the same every time."""
    squares = projection = 0.0
    pieces = () if gradient is None else gradient.flatten().split(_PIECE)
    for number, piece in enumerate(pieces):
        values = piece.double()
        direction = torch.arange(len(values), device=values.device, dtype=torch.float64).add(number).cos()
        squares += float(values @ values)
        projection += float(values @ direction)
    return math.sqrt(squares), projection
