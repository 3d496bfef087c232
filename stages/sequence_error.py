"""The sequence log-prob error mask: rows whose sampler and trainer disagree too much do not train.

Per row over the trained tokens: s = mean of exp(|generation - student log-prob|), which is 1 when both
engines agree. A row stays while s ≤ threshold. Rows without trained tokens have s = 0, stay, and are left
out of the statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.masking import fill, masked_mean, trained


class SequenceError(NamedTuple):
    """``error_B`` is s; ``sample_mask_B`` (bool) the mask after; ``metrics`` before and after it."""

    error_B: Tensor
    sample_mask_B: Tensor
    metrics: dict[str, float]


def sequence_logprob_error(generation_BS: Tensor, student_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """s of each row; [B], 0 for rows without a token in *mask_BS*."""
    difference = fill(generation_BS, mask_BS) - fill(student_BS, mask_BS)
    return masked_mean(difference.abs().exp(), mask_BS, dim=1)


def mask_sequence_error(
    generation_BS: Tensor,
    student_BS: Tensor,
    token_mask_BS: Tensor,
    sample_mask_B: Tensor,
    rewards_B: Tensor,
    threshold: float | None,
) -> SequenceError:
    """Drop the rows with s > *threshold* (none when it is None). Rewards only feed ``masked_correct_pct``."""
    before = sample_mask_B.bool()
    mask = trained(token_mask_BS, before)
    error = sequence_logprob_error(generation_BS, student_BS, mask)
    after = before if threshold is None else before & (error <= threshold)
    dropped = before & ~after
    metrics = _statistics(error, before & mask.any(1), "")
    metrics |= _statistics(error, after & mask.any(1), "_after_mask")
    metrics["num_masked_seqs"] = float(dropped.sum())
    metrics["masked_correct_pct"] = float((rewards_B[dropped] == 1).float().mean()) if dropped.any() else 0.0
    return SequenceError(error, after, metrics)


def _statistics(error_B: Tensor, rows_B: Tensor, suffix: str) -> dict[str, float]:
    kept = error_B[rows_B] if rows_B.any() else torch.zeros(1)
    return {
        f"max_seq_mult_prob_error{suffix}": float(kept.max()),
        f"mean_seq_mult_prob_error{suffix}": float(kept.mean()),
        f"min_seq_mult_prob_error{suffix}": float(kept.min()),
    }
