"""The advantage of on-policy distillation, in the order in which its parts apply:

    d = teacher - student                      the gap (gap.py)
    A = scale · log(alpha·e^d + 1 - alpha)     proximal teacher, scaled shaping (proximal.py); scale · d at 1
    A ← Σ_{k≥t} gamma^(k-t) A_k                discount (discount.py), when set
    A ← A + w · A_orm                          outcome rewards (group_baseline.py), when use_orm_advantage
    A ← A - mean(A)                            global baseline over the step (global_baseline.py), when set
    A ← clip(A, low, high)                     when set

Rows with non-finite values and rows with too large a sequence error are masked before any of this. Everything
here is a constant for the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from stages.advantages.discount import discount
from stages.advantages.gap import gap
from stages.advantages.global_baseline import subtract_global_baseline
from stages.advantages.proximal import proximal
from stages.masking import fill, masked_mean, masked_std

if TYPE_CHECKING:
    from schemas.config import OnPolicyDistillationConfig


class Advantages(NamedTuple):
    """``values_BS`` feed the loss and are 0 where masked; ``metrics`` describe the step."""

    values_BS: Tensor
    metrics: dict[str, float]


class OPDAdvantageEstimator:
    """Advantages of a whole step under an ``on_policy_distillation`` config (read by attribute)."""

    def __init__(self, config: OnPolicyDistillationConfig) -> None:
        self.config = config

    def __call__(
        self, teacher_BS: Tensor, student_BS: Tensor, mask_BS: Tensor, reward_advantages_B: Tensor | None = None
    ) -> Advantages:
        """Advantages over the trained tokens *mask_BS*.

        A row whose teacher values are not finite at a trained token has no distillation part: its gap counts
        as 0 and stays out of the gap's mean. *reward_advantages_B* is A_orm, needed when ``use_orm_advantage``.
        """
        usable = mask_BS & (fill(teacher_BS, mask_BS).isfinite()).all(1, keepdim=True)
        d = gap(teacher_BS, student_BS, usable)
        advantages = self._distillation(d, usable)
        if self.config.use_orm_advantage and reward_advantages_B is not None:
            advantages = advantages + self.config.orm_advantage_weight * reward_advantages_B[:, None]
            advantages = fill(advantages, mask_BS)
        return self._finish(advantages, mask_BS, {"teacher_student_logprob_gap_mean": _mean(d, usable)})

    def _distillation(self, gap_BS: Tensor, mask_BS: Tensor) -> Tensor:
        advantages = proximal(gap_BS, self.config.proximal_teacher_alpha)
        if self.config.reward_shaping_scale != 1.0:
            advantages = self.config.reward_shaping_scale * advantages
        return advantages if self.config.discount is None else discount(advantages, mask_BS, self.config.discount)

    def _finish(self, advantages: Tensor, mask_BS: Tensor, metrics: dict[str, float]) -> Advantages:
        metrics["adv_mean_before_baseline"] = _mean(advantages, mask_BS)
        if self.config.subtract_global_baseline:
            advantages = subtract_global_baseline(advantages, mask_BS)
        low, high = self.config.advantage_clip or (None, None)
        clipped = advantages if low is None else fill(advantages.clamp(low, high), mask_BS)
        return Advantages(clipped, metrics | summary(advantages, clipped, mask_BS))


def summary(advantages_BS: Tensor, clipped_BS: Tensor, mask_BS: Tensor) -> dict[str, float]:
    """adv_mean and adv_std (unbiased) before the clip, so that they compare across clips; extremes after it."""
    kept = clipped_BS[mask_BS] if mask_BS.any() else torch.zeros(1)
    return {
        "adv_mean": _mean(advantages_BS, mask_BS),
        "adv_std": float(masked_std(advantages_BS.double(), mask_BS)),
        "adv_min": float(kept.min()),
        "adv_max": float(kept.max()),
    }


def _mean(values_BS: Tensor, mask_BS: Tensor) -> float:
    return float(masked_mean(values_BS.double(), mask_BS))
