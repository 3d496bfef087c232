"""Importance correction: the sampler is not quite the trainer, so weigh each token by how much.

w = exp(student - generation log-prob), a constant; NaN and ±inf become 0. Under GSPO one weight per row:
exp(Σ_t (student - generation)). Then ``truncated_importance_sampling_type``:

    tis           clamp w to [min or 0, max]                                          out of bounds: per token
    icepop        keep w if min ≤ w ≤ max, else 0                                     out of bounds: per token
    seq-mask-tis  keep a row if min ≤ exp(mean_t(student - generation)) ≤ max, else 0; out of bounds: per row
                  kept rows use their raw token weights

A gate drops weight, never count: the loss is still divided by all trained tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stages.masking import fill, masked_mean

if TYPE_CHECKING:
    from schemas.config import ClippedPGLossConfig


def importance_weights(
    student_BS: Tensor, generation_BS: Tensor, mask_BS: Tensor, config: ClippedPGLossConfig
) -> tuple[Tensor, Tensor | None]:
    """(weights [B, S] or [B, 1], out of bounds) for log-probs whose masked entries are already replaced.

    Out of bounds is bool [B, S] (or [B, 1]), or [B] for seq-mask-tis; None when nothing is truncated.
    """
    log_ratio = (student_BS - generation_BS).detach()
    if config.sequence_level_importance_ratios:
        log_ratio = log_ratio.sum(1, keepdim=True)
    weights = torch.nan_to_num(log_ratio.exp(), nan=0.0, posinf=0.0, neginf=0.0)
    return _truncate(weights, log_ratio, mask_BS, config)


def _truncate(
    weights: Tensor, log_ratio_BS: Tensor, mask_BS: Tensor, config: ClippedPGLossConfig
) -> tuple[Tensor, Tensor | None]:
    low = config.truncated_importance_sampling_ratio_min or 0.0
    high = config.truncated_importance_sampling_ratio or math.inf
    match config.truncated_importance_sampling_type:
        case "tis":
            return weights.clamp(low, high), (weights < low) | (weights > high)
        case "icepop":
            outside = (weights < low) | (weights > high)
            return fill(weights, ~outside), outside
        case "seq-mask-tis":
            finite = torch.nan_to_num(log_ratio_BS, nan=0.0, posinf=0.0, neginf=0.0)
            ratio_B = masked_mean(finite, mask_BS, dim=1).exp()
            outside = (ratio_B < low) | (ratio_B > high)
            return fill(weights, ~outside[:, None]), outside
        case _:
            return weights, None
