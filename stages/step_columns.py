"""The columns of a step as padded tensors, and the rows in which they do not line up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.batch import Batch


@dataclass(frozen=True)
class StepColumns:
    """[B, S] tensors, padded with false and NaN so that nothing can be read by mistake; rewards [B], NaN if missing.

    ``misaligned`` gives the reason by row where a column is missing or has another length than ``token_mask``.
    """

    token_mask: Tensor
    logprobs: dict[str, Tensor]
    rewards: Tensor
    group_ids: list[str | None]
    lengths: Tensor
    misaligned: dict[int, str]

    @classmethod
    def of(cls, batch: Batch, logprobs: Sequence[str]) -> StepColumns:
        """Read *batch*, with the token columns *logprobs* beside ``token_mask``."""
        lengths = {name: batch.lengths(name) for name in ("token_mask", *logprobs)}
        width = max(int(length.max(initial=0)) for length in lengths.values())
        rewards = [np.nan if value is None else value for value in batch.values("reward")]
        return cls(
            token_mask=batch.padded("token_mask", False, length=width),
            logprobs={name: batch.padded(name, torch.nan, length=width) for name in logprobs},
            rewards=torch.tensor(rewards, dtype=torch.float32),
            group_ids=batch.values("group_id"),
            lengths=torch.from_numpy(lengths["token_mask"]),
            misaligned=_misaligned(batch, lengths),
        )

    @property
    def generation(self) -> Tensor:
        """The sampler's log-probs."""
        return self.logprobs["generation_logprobs"]

    @property
    def student(self) -> Tensor:
        """The trainer's log-probs at the start of the step."""
        return self.logprobs["student_logprobs"]

    @property
    def teacher(self) -> Tensor | None:
        """The teachers' log-probs, where there are teachers."""
        return self.logprobs.get("teacher_logprobs")

    def jagged(self, values_BS: Tensor) -> tuple[Tensor, Tensor]:
        """*values_BS* without its padding, as (values, offsets)."""
        inside = torch.arange(values_BS.shape[1]) < self.lengths[:, None]
        return values_BS[inside], torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])


def _misaligned(batch: Batch, lengths: dict[str, np.ndarray]) -> dict[int, str]:
    reasons: dict[int, str] = {}
    expected = lengths["token_mask"]
    for name, found in lengths.items():
        missing = batch.array(name).is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(missing):
            reasons.setdefault(int(row), f"misaligned: {name} is missing")
        for row in np.flatnonzero(found != expected):
            reasons.setdefault(int(row), f"misaligned: {name} has {found[row]} entries, token_mask {expected[row]}")
    return reasons
