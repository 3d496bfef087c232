"""What the loss tells about a batch, each number a share of the global batch.

Every metric is already divided by the global counts, so a step's value is the sum over its micro-batches and ranks;
names ending in ``_min`` and ``_max`` are extremes instead. ``generation_kl_error`` is KL(generation || student),
``policy_kl_error`` the reverse, both by ``reference_policy_kl_type``; ``js_divergence_error`` their Jensen-Shannon
counterpart by k3; ``token_mult_prob_error`` the mean of exp(|generation - student|); ``approx_entropy`` the mean of
-exp(current - generation)·current. ``probs_ratio`` is the mean of exp(current - student), under
``disable_ppo_ratio`` too, where it weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from stages.losses.counts import Counts
from stages.losses.reference_kl import kl_estimate
from stages.losses.surrogate import Ratio
from stages.masking import EPS, masked_sum

if TYPE_CHECKING:
    from schemas.config import ClippedPGLossConfig


class Parts(NamedTuple):
    """What the loss computed on the way, masked entries replaced."""

    current_BS: Tensor
    student_BS: Tensor
    generation_BS: Tensor
    mask_BS: Tensor
    ratio: Ratio
    weights: Tensor
    outside: Tensor | None


@torch.no_grad()
def loss_metrics(parts: Parts, sample_mask_B: Tensor, counts: Counts, config: ClippedPGLossConfig) -> dict[str, float]:
    """The metrics of one micro-batch."""
    per_token = _disagreement(parts, config.reference_policy_kl_type)
    per_token["approx_entropy"] = -(parts.current_BS - parts.generation_BS).exp() * parts.current_BS
    per_token["probs_ratio"] = parts.ratio.raw
    if not config.disable_ppo_ratio:
        per_token["probs_ratio_clamped"] = parts.ratio.clipped
    values = {name: masked_sum(value, parts.mask_BS) / (counts.num_tokens + EPS) for name, value in per_token.items()}
    values |= _correction(parts, sample_mask_B, counts, config.sequence_level_importance_ratios)
    values["num_valid_samples"] = sample_mask_B.sum()
    values |= _extremes(parts, clipped=not config.disable_ppo_ratio)
    return dict(zip(values, torch.stack([value.double() for value in values.values()]).tolist(), strict=True))


def _disagreement(parts: Parts, kind: str) -> dict[str, Tensor]:
    """How far sampler and trainer are apart, per token."""
    student, generation = parts.student_BS, parts.generation_BS
    log_ratio = student - generation
    log_half = torch.logaddexp(student, generation) - math.log(2)
    js = kl_estimate(student - log_half, "k3") + kl_estimate(generation - log_half, "k3")
    return {
        "token_mult_prob_error": log_ratio.abs().exp(),
        "generation_kl_error": kl_estimate(log_ratio, kind),
        "policy_kl_error": kl_estimate(-log_ratio, kind),
        "js_divergence_error": js / 2,
    }


def _correction(parts: Parts, sample_mask_B: Tensor, counts: Counts, per_row: bool) -> dict[str, Tensor]:
    if per_row:
        ratio = masked_sum(parts.weights[:, 0], sample_mask_B.bool()) / (counts.num_samples + EPS)
    else:
        ratio = masked_sum(parts.weights, parts.mask_BS) / (counts.num_tokens + EPS)
    metrics = {"sampling_importance_ratio": ratio}
    if parts.outside is not None and parts.outside.dim() == 1:
        metrics["is_oob_ratio"] = (parts.outside & sample_mask_B.bool()).sum().double() / (counts.num_samples + EPS)
    elif parts.outside is not None:
        metrics["is_oob_ratio"] = (parts.outside & parts.mask_BS).sum().double() / (counts.num_tokens + EPS)
    return metrics


def _extremes(parts: Parts, clipped: bool) -> dict[str, Tensor]:
    """Smallest and largest ratio; inf and -inf when the batch trains no token."""
    named = {"probs_ratio": parts.ratio.raw} | ({"probs_ratio_clamped": parts.ratio.clipped} if clipped else {})
    ends = parts.current_BS.new_tensor([torch.inf, -torch.inf])
    kept = {name: torch.cat([value[parts.mask_BS], ends[:0]]) for name, value in named.items()}
    return {
        f"{name}_{end}": pick(torch.cat([value, none]))
        for name, value in kept.items()
        for end, pick, none in (("min", torch.amin, ends[:1]), ("max", torch.amax, ends[1:]))
    }


def combine_metrics(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One global batch's metrics from those of its micro-batches (or ranks): sums, and extremes of extremes."""
    total: dict[str, float] = {}
    for part in metrics:
        for name, value in part.items():
            if name not in total:
                total[name] = value
            elif name.endswith("_min"):
                total[name] = min(total[name], value)
            elif name.endswith("_max"):
                total[name] = max(total[name], value)
            else:
                total[name] += value
    return total
