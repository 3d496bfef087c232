"""``loss_fn``: the clipped policy-gradient loss, with NeMo-RL's names."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.config.base import Section

Truncation = Literal["tis", "icepop", "seq-mask-tis"]

#: Bounds [min, max] of a truncation that is named without any: the MOPD recipe's and the reference ones.
DEFAULT_BOUNDS: dict[str, tuple[float, float]] = {"icepop": (0.2, 5.0), "seq-mask-tis": (0.999, 1.002)}


class ClippedPGLossConfig(Section):
    """The policy-gradient loss. Which settings go together is decided in ``schemas.config.checks``."""

    reference_policy_kl_penalty: float = Field(
        0.0, ge=0, description="weight of the KL to the reference policy; 0 = none"
    )
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of that KL")
    kl_input_clamp_value: float | None = Field(
        20.0, gt=0, description="bound on |log-ratio| going into the KL; null = none"
    )
    kl_output_clamp_value: float | None = Field(10.0, gt=0, description="bound on the KL per token; null = none")
    ratio_clip_min: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below at 1 - this")
    ratio_clip_max: float = Field(0.2, ge=0, description="the ratio is clipped above at 1 + this")
    ratio_clip_c: float | None = Field(None, gt=1, description="dual clip for negative advantages; null = none")
    disable_ppo_ratio: bool = Field(False, description="REINFORCE form: no importance ratio, no clip")
    force_on_policy_ratio: bool = Field(False, description="take the ratio as 1 (its gradient stays)")
    use_cispo: bool = Field(False, description="CISPO: the clipped ratio is a constant weight")
    sequence_level_importance_ratios: bool = Field(False, description="GSPO: one ratio a sequence")
    token_level_loss: bool = Field(
        True, description="mean over tokens; false = mean over sequences of their token means"
    )
    use_importance_sampling_correction: bool = Field(
        False, description="weight each token by exp(student - generation log-prob)"
    )
    truncated_importance_sampling_type: Truncation | None = Field(
        None, description="weights out of bounds: tis clamps them, icepop drops tokens, seq-mask-tis drops rows"
    )
    truncated_importance_sampling_ratio: float | None = Field(
        None, gt=0, description="upper bound; icepop and seq-mask-tis without any bounds take 5.0 and 1.002"
    )
    truncated_importance_sampling_ratio_min: float | None = Field(
        None, ge=0, description="lower bound; icepop and seq-mask-tis without any bounds take 0.2 and 0.999"
    )

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_the_type(cls, given: Any) -> Any:
        high, low = "truncated_importance_sampling_ratio", "truncated_importance_sampling_ratio_min"
        if not isinstance(given, dict) or high in given or low in given:
            return given
        bounds = DEFAULT_BOUNDS.get(str(given.get("truncated_importance_sampling_type")))
        return given if bounds is None else {**given, low: bounds[0], high: bounds[1]}
