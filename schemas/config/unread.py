"""Settings that the chosen path would never read, as one table: a knob that does nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from schemas.config.base import MODEL_PARALLEL
from schemas.config.enabled import get_opd_full_config, get_topk_loss_config, is_opd_enabled
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.config.run import RunConfig


@dataclass(frozen=True)
class Unread:
    """``keys`` of ``section`` do nothing when ``when`` holds, because of what ``why`` says."""

    section: str
    keys: tuple[str, ...]
    when: Callable[[RunConfig], bool]
    why: str


_KL = ("reference_policy_kl_type", "kl_input_clamp_value", "kl_output_clamp_value")
_CLIP = ("ratio_clip_min", "ratio_clip_max", "ratio_clip_c")
_BOUNDS = ("truncated_importance_sampling_ratio", "truncated_importance_sampling_ratio_min")
_TRUNCATION = ("truncated_importance_sampling_type", *_BOUNDS)
_VLLM = ("logprobs_mode", "weight_update", "gpu_memory_utilization", "kv_cache_bytes")
_GROUP = ("use_leave_one_out_baseline", "normalize_rewards")
_RATIO = ("disable_ppo_ratio", "use_cispo", "force_on_policy_ratio", "sequence_level_importance_ratios")
_POLICY_GRADIENT = (
    *(*_CLIP, *_TRUNCATION, *_RATIO, "use_importance_sampling_correction"),
    *("reference_policy_kl_penalty", *_KL),
)
#: What tunes the top-k diagnostics. Published recipes carry these beside ``log_topk_stats: false``: warned about.
TOPK_STATS = ("topk_stats_log_period", "topk_stats_mode", "topk_stats_k", "topk_stats_max_tokens")


def _full(config: RunConfig) -> bool:
    return get_opd_full_config(config) is not None


def _top_k(config: RunConfig) -> bool:
    return get_topk_loss_config(config) is not None


def _distils_without(config: RunConfig, switch: str) -> bool:
    return is_opd_enabled(config) and not getattr(config.on_policy_distillation, switch)


def _rewards_are_compared(config: RunConfig) -> bool:
    return config.grpo.adv_estimator.name == "grpo" or config.on_policy_distillation.use_orm_advantage


def _opd_without_rewards(config: RunConfig) -> bool:
    return is_opd_enabled(config) and not config.on_policy_distillation.use_orm_advantage


def _never_ahead(config: RunConfig) -> bool:
    return config.grpo.async_grpo.enabled and config.grpo.async_grpo.window == 0


TABLE: tuple[Unread, ...] = (
    Unread("loss_fn", _KL, lambda c: c.loss_fn.reference_policy_kl_penalty == 0, "reference_policy_kl_penalty is 0"),
    Unread(
        "loss_fn",
        (*_CLIP, "force_on_policy_ratio", "sequence_level_importance_ratios"),
        lambda c: c.loss_fn.disable_ppo_ratio,
        "disable_ppo_ratio leaves no ratio",
    ),
    Unread("loss_fn", _CLIP, lambda c: c.loss_fn.force_on_policy_ratio, "force_on_policy_ratio leaves nothing to clip"),
    Unread(
        "loss_fn",
        _TRUNCATION,
        lambda c: not c.loss_fn.use_importance_sampling_correction,
        "use_importance_sampling_correction is false",
    ),
    Unread(
        "loss_fn",
        _BOUNDS,
        lambda c: c.loss_fn.truncated_importance_sampling_type is None,
        "truncated_importance_sampling_type is null",
    ),
    Unread("loss_fn", _POLICY_GRADIENT, _full, "full-vocabulary distillation replaces the policy-gradient loss"),
    Unread("loss_fn", _POLICY_GRADIENT, _top_k, "top-k distillation replaces the policy-gradient loss"),
    Unread(
        "on_policy_distillation.full",
        ("beta",),
        lambda c: _full(c) and section_of(c, "on_policy_distillation.full").divergence != "jsd",
        "only the divergence jsd has a beta",
    ),
    Unread(
        "on_policy_distillation.full",
        ("teacher_lm_head_lifecycle", "validate_decomposition"),
        lambda c: _full(c) and section_of(c, "on_policy_distillation.full").teacher_payload == "logits",
        "teachers that ship logits keep their heads to themselves",
    ),
    Unread(
        "grpo.adv_estimator",
        _GROUP,
        lambda c: not _rewards_are_compared(c),
        "no outcome reward enters the advantage (on_policy_distillation.use_orm_advantage is false)",
    ),
    Unread(
        "on_policy_distillation",
        ("orm_advantage_weight", "nonfinite_teacher_keeps_reward"),
        _opd_without_rewards,
        "use_orm_advantage is false",
    ),
    Unread(
        "on_policy_distillation",
        ("sample_stats_log_period", "log_sample_responses"),
        lambda c: _distils_without(c, "log_sample_stats"),
        "log_sample_stats is false",
    ),
    Unread(
        "on_policy_distillation",
        ("token_stats_log_period",),
        lambda c: _distils_without(c, "log_token_stats"),
        "log_token_stats is false",
    ),
    Unread(
        "grpo.async_grpo",
        ("sampler", "max_buffered_rows"),
        _never_ahead,
        "max_staleness 0 admits one step at a time",
    ),
    Unread("store", ("max_buffered_bytes",), _never_ahead, "max_staleness 0 admits one step at a time"),
    Unread(
        "grpo.async_grpo",
        ("sampler_window",),
        lambda c: c.grpo.async_grpo.enabled and c.grpo.async_grpo.sampler != "windowed",
        "only the sampler windowed has a window",
    ),
    Unread(
        "store",
        ("payload_retention",),
        lambda c: not (_full(c) or _top_k(c)),
        "sampled-token distillation stores no payload",
    ),
    Unread(
        "checkpointing",
        ("metric_name",),
        lambda c: c.checkpointing.keep is None,
        "keep is null, so that every checkpoint stays",
    ),
    Unread(
        "checkpointing", ("higher_is_better",), lambda c: c.checkpointing.metric_name is None, "metric_name is null"
    ),
    Unread("generator", _VLLM, lambda c: c.generator.engine != "vllm", "only the vllm engine reads it"),
    Unread("trainer", MODEL_PARALLEL, lambda c: c.trainer.engine == "hf", "the hf engine trains on one rank"),
    Unread("trainer", ("sequence_packing",), lambda c: c.trainer.engine == "hf", "the hf engine pads rows"),
    Unread(
        "trainer.scheduler", ("min_lr_ratio",), lambda c: c.trainer.scheduler.decay == "constant", "decay is constant"
    ),
)


def assert_every_setting_is_read(config: RunConfig) -> None:
    """Raise for the first setting that differs from its default and that nothing would read."""
    for row in TABLE:
        if not row.when(config):
            continue
        section = section_of(config, row.section)
        for key in (key for key in row.keys if is_changed(section, key)):
            raise ConfigError(f"{row.section}.{key}: has no effect, because {row.why}; remove it")


def section_of(config: RunConfig, path: str) -> Any:
    """The section at a dotted path."""
    section: Any = config
    for name in path.split("."):
        section = getattr(section, name)
    return section


def is_changed(section: BaseModel, key: str) -> bool:
    """Whether *key* differs from its default."""
    default = type(section).model_fields[key].get_default(call_default_factory=True)
    return getattr(section, key) != default
