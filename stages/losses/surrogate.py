"""The policy-gradient surrogate per token, whose gradient is A_t times a (clipped) ratio.

    REINFORCE  -A·lp                                                  ``disable_ppo_ratio``
    PPO        max(-A·r, -A·clip(r, 1 - ε_lo, 1 + ε_hi))              r = exp(lp - student)
    dual clip  min(PPO, -c·A) where A < 0                             ``ratio_clip_c`` > 1, arXiv 1912.09729
    CISPO      -A·sg(clip(r))·lp                                      ``use_cispo``, arXiv 2506.13585
    GSPO       PPO with r = exp(mean_t(lp - student)), one per row    ``sequence_level_importance_ratios``, 2507.18071
    forced     PPO with r = exp(lp - sg lp) = 1, unclipped            ``force_on_policy_ratio``

Masked entries of what comes in are already replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from stages.masking import masked_mean

if TYPE_CHECKING:
    from schemas.config import ClippedPGLossConfig


class Ratio(NamedTuple):
    """r and its clipped form; [B, S]."""

    raw: Tensor
    clipped: Tensor


def policy_ratio(current_BS: Tensor, student_BS: Tensor, mask_BS: Tensor, config: ClippedPGLossConfig) -> Ratio:
    """exp(current - student log-prob) per token, or per row under GSPO, and the same clipped."""
    log_ratio = current_BS - student_BS
    if config.sequence_level_importance_ratios:
        log_ratio = masked_mean(log_ratio, mask_BS, dim=1)[:, None].expand_as(current_BS)
    raw = log_ratio.exp()
    if config.force_on_policy_ratio:
        return Ratio(raw, raw)
    return Ratio(raw, raw.clamp(1.0 - config.ratio_clip_min, 1.0 + config.ratio_clip_max))


def surrogate(current_BS: Tensor, advantages_BS: Tensor, ratio: Ratio, config: ClippedPGLossConfig) -> Tensor:
    """The surrogate loss of each token; [B, S]."""
    if config.disable_ppo_ratio:
        return -advantages_BS * current_BS
    if config.use_cispo:
        return -advantages_BS * ratio.clipped.detach() * current_BS
    loss = torch.maximum(-advantages_BS * ratio.raw, -advantages_BS * ratio.clipped)
    if config.ratio_clip_c is None:
        return loss
    return torch.where(advantages_BS < 0, torch.minimum(loss, -config.ratio_clip_c * advantages_BS), loss)
