"""``RunConfig``: a whole recipe."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from schemas.config import checks
from schemas.config.base import Section
from schemas.config.distillation import OnPolicyDistillationConfig
from schemas.config.grpo import GRPOConfig
from schemas.config.job import (
    CheckpointingConfig,
    ClusterConfig,
    DataConfig,
    FailuresConfig,
    LoggerConfig,
    RunSection,
    StoreConfig,
    ValidationConfig,
)
from schemas.config.loss import ClippedPGLossConfig
from schemas.config.models import GeneratorConfig, PolicyConfig, TrainerConfig


class RunConfig(Section):
    """A recipe: every key that a run reads. Relative paths resolve against the working directory."""

    run: RunSection = Field(default_factory=RunSection, description="the run itself")
    store: StoreConfig = Field(default_factory=StoreConfig, description="where the columns live")
    data: DataConfig = Field(description="prompts to train on and to validate with")
    policy: PolicyConfig = Field(description="the student")
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig, description="what samples from the student")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="what trains the student")
    grpo: GRPOConfig = Field(default_factory=GRPOConfig, description="the shape of a step")
    loss_fn: ClippedPGLossConfig = Field(default_factory=ClippedPGLossConfig, description="the policy-gradient loss")
    on_policy_distillation: OnPolicyDistillationConfig = Field(
        default_factory=OnPolicyDistillationConfig, description="teachers and advantages"
    )
    validation: ValidationConfig = Field(
        default_factory=ValidationConfig, description="greedy answers on held-out prompts"
    )
    checkpointing: CheckpointingConfig = Field(
        default_factory=CheckpointingConfig, description="resumable states on disk"
    )
    logger: LoggerConfig = Field(default_factory=LoggerConfig, description="what one sees")
    cluster: ClusterConfig = Field(default_factory=ClusterConfig, description="where Ray runs")
    failures: FailuresConfig = Field(default_factory=FailuresConfig, description="how much may go wrong")

    @model_validator(mode="before")
    @classmethod
    def _name_the_estimator(cls, given: Any) -> Any:
        """Advantages come from the teachers when distillation is enabled and nothing else is said."""
        if not isinstance(given, dict):
            return given
        distillation, grpo = given.get("on_policy_distillation", {}), given.get("grpo", {})
        if not (isinstance(distillation, dict) and distillation.get("enabled") is True and isinstance(grpo, dict)):
            return given
        estimator = grpo.get("adv_estimator", {})
        if not isinstance(estimator, dict) or "name" in estimator:
            return given
        return {**given, "grpo": {**grpo, "adv_estimator": {"name": "opd", **estimator}}}

    @model_validator(mode="after")
    def _sections_fit_together(self) -> RunConfig:
        checks.check(self)
        return self
