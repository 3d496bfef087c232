"""The run's configuration: strict sections, what is refused, and how a recipe becomes one.

``load_recipe`` reads a YAML file or a built-in recipe; ``RunConfig`` is the result.
"""

from schemas.config.base import Section
from schemas.config.checks import (
    assert_prev_logprobs_available,
    assert_trust_region_supported,
    warnings,
)
from schemas.config.distillation import (
    NonColocatedTeachersConfig,
    OnPolicyDistillationConfig,
    OnPolicyDistillationFullConfig,
    TeacherResourceConfig,
    TopKLossConfig,
)
from schemas.config.enabled import (
    get_non_colocated_teachers,
    get_opd_full_config,
    get_topk_loss_config,
    is_non_colocated_teachers_enabled,
    is_opd_enabled,
)
from schemas.config.grpo import AdvEstimatorConfig, AsyncGRPOConfig, GRPOConfig
from schemas.config.job import (
    CheckpointingConfig,
    ClusterConfig,
    DataConfig,
    DataSource,
    FailuresConfig,
    LoggerConfig,
    RunSection,
    StoreConfig,
    ValidationConfig,
)
from schemas.config.loss import ClippedPGLossConfig
from schemas.config.models import (
    GeneratorConfig,
    OptimizerConfig,
    PolicyConfig,
    SamplingConfig,
    SchedulerConfig,
    TrainerConfig,
)
from schemas.config.recipe import load_recipe, load_resolved, recipe_names
from schemas.config.resolved import Setting, describe, save_resolved
from schemas.config.run import RunConfig

__all__ = [
    "AdvEstimatorConfig",
    "AsyncGRPOConfig",
    "CheckpointingConfig",
    "ClippedPGLossConfig",
    "ClusterConfig",
    "DataConfig",
    "DataSource",
    "FailuresConfig",
    "GRPOConfig",
    "GeneratorConfig",
    "LoggerConfig",
    "NonColocatedTeachersConfig",
    "OnPolicyDistillationConfig",
    "OnPolicyDistillationFullConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "RunConfig",
    "RunSection",
    "SamplingConfig",
    "SchedulerConfig",
    "Section",
    "Setting",
    "StoreConfig",
    "TeacherResourceConfig",
    "TopKLossConfig",
    "TrainerConfig",
    "ValidationConfig",
    "assert_prev_logprobs_available",
    "assert_trust_region_supported",
    "describe",
    "get_non_colocated_teachers",
    "get_opd_full_config",
    "get_topk_loss_config",
    "is_non_colocated_teachers_enabled",
    "is_opd_enabled",
    "load_recipe",
    "load_resolved",
    "recipe_names",
    "save_resolved",
    "warnings",
]
