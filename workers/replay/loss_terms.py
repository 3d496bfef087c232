"""The loss of a step from its stored columns alone, and what a change of the recipe does to it.

At the start of a step the student that is trained is the student that scored, so ``student_logprobs`` stand for the
current log-probs: every term of the policy-gradient loss but its gradient is there without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from schemas.batch import Batch
from schemas.config import ClippedPGLossConfig
from stages.base import Output
from stages.losses.counts import Counts
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss

_COLUMNS = ("generation_logprobs", "student_logprobs", "advantages")

#: Samples named in a report of what moved.
MOVED = 10


@dataclass
class LossTerms:
    """``train`` without its model: each row's share of the loss."""

    config: ClippedPGLossConfig
    task: str = "train"
    writes: tuple[str, ...] = ("loss",)

    @property
    def reads(self) -> tuple[str, ...]:
        reference = ("reference_logprobs",) if self.config.reference_policy_kl_penalty else ()
        return ("token_mask", "sample_mask", *_COLUMNS, *reference)

    def __call__(self, batch: Batch) -> Output:
        named = {name: batch.padded(name) for name in self.reads if name != "sample_mask"}
        columns = LossBatch(sample_mask=batch.tensor("sample_mask"), **named)
        counts = Counts.of(columns.token_mask, columns.sample_mask)
        loss = policy_gradient_loss(columns.student_logprobs, columns, counts, self.config)
        return Output(batch.sample_ids, {"loss": loss.row_losses_B}, metrics=loss.metrics)


def change(stored: Batch, replayed: Batch, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """What a step would have been: batches with masks and advantages as stored and replayed, and their loss metrics."""
    return {
        "advantages": {"stored": distribution(stored), "replayed": distribution(replayed)},
        "share_gated": {"stored": before.get("is_oob_ratio"), "replayed": after.get("is_oob_ratio")},
        "loss": {"stored": before.get("loss"), "replayed": after.get("loss")},
        "samples_masked": {"stored": _masked(stored), "replayed": _masked(replayed)},
        "moved": moved(stored, replayed),
    }


def distribution(batch: Batch) -> dict[str, float]:
    """Of the advantages of trained tokens: how many, mean, standard deviation (unbiased), extremes and quantiles."""
    mask = batch.padded("token_mask") & batch.tensor("sample_mask")[:, None]
    values = batch.padded("advantages")[mask].double()
    if not len(values):
        return {"tokens": 0}
    marks = torch.quantile(values, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {
        "tokens": len(values),
        "mean": float(values.mean()),
        "std": float(values.std()) if len(values) > 1 else 0.0,
        "min": float(values.min()),
        **dict(zip(("p5", "median", "p95"), marks, strict=True)),
        "max": float(values.max()),
    }


def moved(stored: Batch, replayed: Batch, limit: int = MOVED) -> list[dict[str, Any]]:
    """The samples whose advantages moved most: mean over generated tokens of |replayed - stored|, largest first."""
    mask = stored.padded("token_mask")
    old, new = _trained_advantages(stored), _trained_advantages(replayed)
    tokens = mask.sum(1).clamp(min=1)
    apart = torch.where(mask, (new - old).abs(), 0).sum(1) / tokens
    means = [torch.where(mask, values, 0).sum(1) / tokens for values in (old, new)]
    order = apart.argsort(descending=True, stable=True)[:limit].tolist()
    return [
        {
            "sample_id": stored.sample_ids[row],
            "mean_abs_change": float(apart[row]),
            "stored_mean": float(means[0][row]),
            "replayed_mean": float(means[1][row]),
        }
        for row in order
        if apart[row] > 0
    ]


def _trained_advantages(batch: Batch) -> torch.Tensor:
    return torch.where(batch.tensor("sample_mask")[:, None], batch.padded("advantages").double(), 0)


def _masked(batch: Batch) -> int:
    return int((~batch.tensor("sample_mask")).sum())


def joined(batch: Batch, columns: Mapping[str, Any], names: Sequence[str]) -> Batch:
    """*batch* with those of *columns* that are among *names* in place of its own."""
    return batch.with_columns({name: data for name, data in columns.items() if name in names})
