"""What a recipe must not ask for: refusals over several sections, and warnings.

A refusal is raised when settings contradict each other, when the advantage could never be computed, or when a
setting would be read by nobody. Inside a block with ``enabled: false`` everything is visibly off and nothing is
refused. A value equal to its default is never refused, so that a saved, resolved recipe loads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from schemas.config.enabled import get_opd_full_config, get_topk_loss_config, is_opd_enabled
from schemas.config.engines import assert_vllm_records_exact_logprobs, assert_vllm_teachers_can_score
from schemas.config.teacher_resources import assert_teacher_resources_fit
from schemas.config.unread import TOPK_STATS, assert_every_setting_is_read, is_changed
from schemas.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from schemas.config.run import RunConfig


def distribution_loss(config: RunConfig) -> str | None:
    """What replaces the policy-gradient loss, in words; None when nothing does."""
    if get_opd_full_config(config) is not None:
        return "full-vocabulary distillation"
    return "top-k distillation" if get_topk_loss_config(config) is not None else None


def check(config: RunConfig) -> None:
    """Every refusal of this module; raises one ConfigError that lists all that apply."""
    refused = list(_refusals(config))
    if refused:
        raise ConfigError("\n".join(refused))


def _refusals(config: RunConfig) -> Iterator[str]:
    for refuse in CHECKS:
        try:
            refuse(config)
        except ConfigError as error:
            yield str(error)


def assert_estimator_has_its_source(config: RunConfig) -> None:
    """Raise if the advantage could never be computed: no teacher, or no group to compare rewards in."""
    estimator, opd = config.grpo.adv_estimator, config.on_policy_distillation
    if estimator.name == "opd" and not opd.enabled:
        raise ConfigError(
            "grpo.adv_estimator.name: 'opd' needs teacher log-probs, but on_policy_distillation.enabled is false; "
            "enable it, or use 'grpo' to train on rewards"
        )
    if estimator.name == "grpo" and opd.enabled:
        raise ConfigError(
            "grpo.adv_estimator.name: 'grpo' never reads the teachers that on_policy_distillation enables; "
            "use 'opd' (with use_orm_advantage to add rewards), or disable distillation"
        )
    if opd.enabled and not opd.teacher_model_by_agent_name:
        raise ConfigError(
            "on_policy_distillation.teacher_model_by_agent_name: map each agent to a teacher checkpoint; got none"
        )
    compares_rewards = estimator.name == "grpo" or opd.use_orm_advantage
    if compares_rewards and config.grpo.num_generations_per_prompt < 2:
        raise ConfigError(
            "grpo.num_generations_per_prompt: rewards are compared inside a group, and a group of 1 always has "
            "advantage 0; use at least 2"
        )


def assert_prev_logprobs_available(config: RunConfig) -> None:
    """Raise if distillation is on but nothing makes the student pass run that its advantage subtracts."""
    skipped = config.loss_fn.force_on_policy_ratio and config.grpo.seq_logprob_error_threshold is None
    if is_opd_enabled(config) and skipped:
        raise ConfigError(
            "loss_fn.force_on_policy_ratio: leaves student_logprobs uncomputed, which the distillation advantage "
            "subtracts; set it to false, or set grpo.seq_logprob_error_threshold"
        )


def assert_trust_region_supported(config: RunConfig) -> None:
    """Raise if an advantage knob is set on a path that never reads the advantage: full vocabulary, or top-k."""
    opd, form = config.on_policy_distillation, distribution_loss(config)
    if form is None:
        return
    knobs = {
        "proximal_teacher_alpha": opd.proximal_teacher_alpha != 1.0,
        "subtract_global_baseline": opd.subtract_global_baseline,
        "reward_shaping_scale": opd.reward_shaping_scale != 1.0,
        "use_orm_advantage": opd.use_orm_advantage,
        "advantage_clip": opd.advantage_clip is not None,
        "discount": opd.discount is not None,
    }
    for name in (name for name, is_set in knobs.items() if is_set):
        raise ConfigError(
            f"on_policy_distillation.{name}: {form} never reads the advantage; "
            f"leave {name} at its default, or disable that form of distillation"
        )


def assert_one_distribution_loss(config: RunConfig) -> None:
    """Raise if the whole distribution and its top k are to be matched at once."""
    if get_opd_full_config(config) is not None and get_topk_loss_config(config) is not None:
        raise ConfigError(
            "on_policy_distillation.topk_loss: cannot be combined with on_policy_distillation.full, which "
            "matches these tokens too; enable one of the two"
        )


def assert_teachers_are_known(config: RunConfig) -> None:
    """Raise if the default alias, a resource override or a source's agent names no teacher."""
    opd = config.on_policy_distillation
    if not opd.enabled:
        return
    known = opd.teacher_model_by_agent_name
    listing = f"known: {', '.join(known)}"
    if opd.default_teacher_alias is not None and opd.default_teacher_alias not in known:
        raise ConfigError(
            f"on_policy_distillation.default_teacher_alias: no teacher named {opd.default_teacher_alias!r}"
            f"{did_you_mean(opd.default_teacher_alias, known)}; {listing}"
        )
    overrides = opd.non_colocated_teachers.teacher_overrides if opd.non_colocated_teachers else {}
    for alias in (alias for alias in overrides if alias not in known):
        raise ConfigError(
            f"on_policy_distillation.non_colocated_teachers.teacher_overrides.{alias}: no such teacher"
            f"{did_you_mean(alias, known)}; {listing}"
        )
    if opd.strict_agent_name_match or opd.default_teacher_alias is None:
        _assert_agents_have_teachers(config, listing)


def _assert_agents_have_teachers(config: RunConfig, listing: str) -> None:
    known = config.on_policy_distillation.teacher_model_by_agent_name
    sources = {"train": config.data.train, "validation": config.data.validation}
    agents = {f"data.{kind}.{at}.agent": s.agent for kind, given in sources.items() for at, s in enumerate(given)}
    for key, agent in agents.items():
        if agent is not None and agent not in known:
            raise ConfigError(
                f"{key}: {agent!r} has no teacher{did_you_mean(agent, known)}; "
                f"{listing}; map it in on_policy_distillation, or name a default_teacher_alias"
            )


def assert_loss_form_is_one(config: RunConfig) -> None:
    """Raise if the loss is asked to be two things at once."""
    loss, truncation = config.loss_fn, config.loss_fn.truncated_importance_sampling_type
    forms = {
        "use_cispo": {
            "disable_ppo_ratio": loss.disable_ppo_ratio,
            "force_on_policy_ratio": loss.force_on_policy_ratio,
            "sequence_level_importance_ratios": loss.sequence_level_importance_ratios,
            "ratio_clip_c": loss.ratio_clip_c is not None,
            "token_level_loss: false": not loss.token_level_loss,
        },
        "sequence_level_importance_ratios": {
            "token_level_loss: true": loss.token_level_loss,
            "truncated_importance_sampling_type: seq-mask-tis": truncation == "seq-mask-tis",
        },
    }
    for form, others in forms.items():
        for other in (other for other, is_set in others.items() if is_set and getattr(loss, form)):
            raise ConfigError(f"loss_fn.{form}: cannot be combined with {other}; choose one of the two")


def assert_truncation_is_whole(config: RunConfig) -> None:
    """Raise if importance weights are to be truncated without bounds, or with bounds the wrong way round."""
    loss = config.loss_fn
    kind, low, high = (
        loss.truncated_importance_sampling_type,
        loss.truncated_importance_sampling_ratio_min,
        loss.truncated_importance_sampling_ratio,
    )
    if kind is None:
        return
    if high is None or (low is None and kind != "tis"):
        absent = "truncated_importance_sampling_ratio" + ("" if high is None else "_min")
        raise ConfigError(f"loss_fn.{absent}: {kind} needs this bound")
    if low is not None and low > high:
        raise ConfigError(f"loss_fn.truncated_importance_sampling_ratio_min: {low} is above the upper bound {high}")


def assert_lengths_fit(config: RunConfig) -> None:
    """Raise if a response alone fills the sequence."""
    new, total = config.generator.sampling.max_new_tokens, config.policy.max_total_sequence_length
    if new >= total:
        raise ConfigError(
            f"generator.sampling.max_new_tokens: {new} leaves no room for a prompt in "
            f"policy.max_total_sequence_length {total}; lower the one or raise the other"
        )


def assert_buffer_holds_a_step(config: RunConfig) -> None:
    """Raise if the bound on admitted rows would leave no step whole."""
    rows, step = config.grpo.async_grpo.max_buffered_rows, config.grpo.num_samples_per_step
    if config.grpo.async_grpo.enabled and rows is not None and rows < step:
        raise ConfigError(
            f"grpo.async_grpo.max_buffered_rows: {rows} is less than the {step} rows of a step, which would never be "
            "whole; raise it, or lower grpo.num_prompts_per_step"
        )


def assert_best_metric_is_measured(config: RunConfig) -> None:
    """Raise if checkpoints are to be judged by what is measured on held-out prompts, and there are none."""
    name = config.checkpointing.metric_name
    if name and name.partition("/")[0] in ("accuracy", "exact_kl") and not config.data.validation:
        raise ConfigError(
            f"checkpointing.metric_name: {name!r} is measured on held-out prompts; name some in data.validation"
        )


CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    assert_estimator_has_its_source,
    assert_prev_logprobs_available,
    assert_trust_region_supported,
    assert_one_distribution_loss,
    assert_teachers_are_known,
    assert_teacher_resources_fit,
    assert_vllm_records_exact_logprobs,
    assert_vllm_teachers_can_score,
    assert_loss_form_is_one,
    assert_truncation_is_whole,
    assert_lengths_fit,
    assert_buffer_holds_a_step,
    assert_best_metric_is_measured,
    assert_every_setting_is_read,
)


def warnings(config: RunConfig) -> list[str]:
    """What is allowed but not what it seems: each a line naming the key."""
    return [*_unwise(config), *_without_effect(config)] if is_opd_enabled(config) else []


def _unwise(config: RunConfig) -> Iterator[str]:
    """Distillation without the loss settings that it was published with."""
    loss = config.loss_fn
    if distribution_loss(config) is not None:
        return
    recommended = {
        "disable_ppo_ratio": ("true", loss.disable_ppo_ratio),
        "use_importance_sampling_correction": ("true", loss.use_importance_sampling_correction),
        "truncated_importance_sampling_type": ("icepop", loss.truncated_importance_sampling_type == "icepop"),
    }
    for key in (key for key, (_, fulfilled) in recommended.items() if not fulfilled):
        yield f"loss_fn.{key}: on-policy distillation was published with {recommended[key][0]}"


def _without_effect(config: RunConfig) -> Iterator[str]:
    """Settings that published recipes carry and that this version cannot honour, without any harm to the result."""
    opd = config.on_policy_distillation
    if not opd.log_topk_stats:
        for key in (key for key in TOPK_STATS if is_changed(opd, key)):
            yield f"on_policy_distillation.{key}: read by nobody, since log_topk_stats is false"
