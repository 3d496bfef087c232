"""``grpo``: the shape of a step, and where its advantages come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.config.base import Section


class AsyncGRPOConfig(Section):
    """How far generation may run ahead of training."""

    enabled: bool = Field(False, description="generate while training; false = strictly on policy")
    max_staleness: int = Field(1, ge=0, description="weight versions a sample may lag behind the step that trains it")
    sampler: Literal["in_order", "windowed", "first_ready"] = Field(
        "in_order", description="which groups a step takes: the oldest; or finished ones that overtake late ones"
    )
    sampler_window: int | None = Field(
        None, ge=1, description="groups admitted so many places after a late one wait for it; null = half a step + 1"
    )
    max_buffered_rows: int | None = Field(
        None, ge=1, description="rows admitted and in no step yet, past which no more are admitted; null = no bound"
    )

    @property
    def window(self) -> int:
        """The staleness that is allowed in fact, in weight versions."""
        return self.max_staleness if self.enabled else 0


class AdvEstimatorConfig(Section):
    """Where advantages come from."""

    name: Literal["opd", "grpo"] = Field(
        "grpo",
        description="opd = teacher minus student; grpo = group rewards; left out: opd when distillation is enabled",
    )
    use_leave_one_out_baseline: bool = Field(True, description="a row's own reward stays out of its group baseline")
    normalize_rewards: bool = Field(True, description="divide group advantages by the rewards' standard deviation")


class GRPOConfig(Section):
    """The shape of a step."""

    num_prompts_per_step: int = Field(32, ge=1, description="prompts trained in one step")
    num_generations_per_prompt: int = Field(1, ge=1, description="samples of each prompt: a group")
    max_num_steps: int = Field(100, ge=1, description="training steps of the run")
    seq_logprob_error_threshold: float | None = Field(
        None, ge=1, description="mask a row whose mean exp(|generation - student log-prob|) is above; null = never"
    )
    adv_estimator: AdvEstimatorConfig = Field(
        default_factory=AdvEstimatorConfig, description="where advantages come from"
    )
    async_grpo: AsyncGRPOConfig = Field(default_factory=AsyncGRPOConfig, description="how far generation runs ahead")

    @property
    def num_samples_per_step(self) -> int:
        """Rows that a step asks for."""
        return self.num_prompts_per_step * self.num_generations_per_prompt
