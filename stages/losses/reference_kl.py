"""KL to a reference policy, per sampled token (Schulman, "Approximating KL divergence").

With logr = reference - current log-prob, clamped to ±``kl_input_clamp_value``:

    k1 = -logr        k2 = logr² / 2        k3 = e^logr - 1 - logr

The sample was drawn from the policy that is trained, so the estimate is multiplied by exp(lp - sg lp) = 1, which
carries the score-function part of the gradient (arXiv 2506.09477). Where the input clamp acts the factor is
constant, so that the token sends no gradient at all. Last, clamped to ±``kl_output_clamp_value``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from schemas.errors import InputError

if TYPE_CHECKING:
    from schemas.config import ClippedPGLossConfig


def kl_estimate(log_ratio: Tensor, kind: str) -> Tensor:
    """k1, k2 or k3 of logr = log q - log p, an estimate of KL(p || q) for samples of p."""
    match kind:
        case "k1":
            return -log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return log_ratio.exp() - 1 - log_ratio
        case _:
            raise InputError(f"reference_policy_kl_type: expected k1, k2 or k3, got {kind!r}")


def reference_kl(current_BS: Tensor, reference_BS: Tensor, config: ClippedPGLossConfig) -> Tensor:
    """The KL penalty of each token, not yet weighted; [B, S]."""
    log_ratio = reference_BS - current_BS
    limit = config.kl_input_clamp_value
    inside = torch.ones_like(log_ratio, dtype=torch.bool) if limit is None else log_ratio.abs() <= limit
    if limit is not None:
        log_ratio = log_ratio.clamp(-limit, limit)
    score = (current_BS - current_BS.detach()).exp()
    kl = torch.where(inside, score, score.detach()) * kl_estimate(log_ratio, config.reference_policy_kl_type)
    bound = config.kl_output_clamp_value
    return kl if bound is None else kl.clamp(-bound, bound)
