"""Which parts of distillation take part in a run: a block counts only where all around it is enabled too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.config.distillation import (
        NonColocatedTeachersConfig,
        OnPolicyDistillationFullConfig,
        TopKLossConfig,
    )
    from schemas.config.run import RunConfig


def is_opd_enabled(config: RunConfig) -> bool:
    """Whether teachers take part in the run at all."""
    return config.on_policy_distillation.enabled


def is_non_colocated_teachers_enabled(config: RunConfig) -> bool:
    """Whether they do, on resources of their own."""
    return get_non_colocated_teachers(config) is not None


def get_non_colocated_teachers(config: RunConfig) -> NonColocatedTeachersConfig | None:
    """The teachers' own resources when both they and distillation are enabled, else None."""
    apart = config.on_policy_distillation.non_colocated_teachers
    return apart if is_opd_enabled(config) and apart is not None and apart.enabled else None


def get_opd_full_config(config: RunConfig) -> OnPolicyDistillationFullConfig | None:
    """The full-vocabulary settings when both it and distillation are enabled, else None."""
    full = config.on_policy_distillation.full
    return full if is_opd_enabled(config) and full is not None and full.enabled else None


def get_topk_loss_config(config: RunConfig) -> TopKLossConfig | None:
    """The top-k settings when both they and distillation are enabled, else None."""
    top = config.on_policy_distillation.topk_loss
    return top if is_opd_enabled(config) and top is not None and top.enabled else None
