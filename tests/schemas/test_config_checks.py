"""Recipes that contradict themselves, or hold a setting that nobody would read, are refused by name."""

from __future__ import annotations

import pytest

from schemas.config import warnings
from schemas.config.recipe import validate
from schemas.errors import ConfigError

OPD, LOSS, GRPO = "on_policy_distillation__", "loss_fn__", "grpo__"
FULL = {OPD + "full": {"enabled": True}}
TOP_K = {OPD + "topk_loss": {"enabled": True}}
CORRECTED = {LOSS + "use_importance_sampling_correction": True}
GSPO = {LOSS + "sequence_level_importance_ratios": True}

REFUSED = {
    "opd without teachers": ({OPD + "teacher_model_by_agent_name": {}}, "teacher_model_by_agent_name: map each agent"),
    "opd while disabled": (
        {OPD + "enabled": False, GRPO + "adv_estimator": {"name": "opd"}},
        "'opd' needs teacher log-probs",
    ),
    "teachers nobody reads": ({GRPO + "adv_estimator": {"name": "grpo"}}, "never reads the teachers"),
    "rewards in groups of one": ({OPD + "enabled": False}, "a group of 1 always has advantage 0"),
    "orm in groups of one": ({OPD + "use_orm_advantage": True}, "a group of 1 always has advantage 0"),
    "student pass skipped": ({LOSS + "force_on_policy_ratio": True}, "leaves student_logprobs uncomputed"),
    "proximal teacher under full": (
        {**FULL, OPD + "proximal_teacher_alpha": 0.2},
        "proximal_teacher_alpha: full-vocabulary distillation never reads the advantage",
    ),
    "baseline under full": ({**FULL, OPD + "subtract_global_baseline": True}, "subtract_global_baseline: full-vocab"),
    "unknown default alias": (
        {OPD + "default_teacher_alias": "srot"},
        r"no teacher named 'srot' \(did you mean 'sort'\?\); known: rev, sort",
    ),
    "override of no teacher": (
        {OPD + "non_colocated_teachers": {"teacher_overrides": {"rve": {}}}},
        r"teacher_overrides.rve: no such teacher \(did you mean 'rev'\?\)",
    ),
    "agent without teacher": (
        {"data__train": [{"path": "a"}, {"path": "b", "agent": "math"}]},
        r"data.train.1.agent: 'math' has no teacher; known: rev, sort",
    ),
    "held-out agent without teacher": (
        {"data__validation": [{"path": "a", "agent": "srot"}]},
        r"data.validation.0.agent: 'srot' has no teacher \(did you mean 'sort'\?\)",
    ),
    "cispo and reinforce": ({LOSS + "use_cispo": True, LOSS + "disable_ppo_ratio": True}, "use_cispo: cannot be comb"),
    "cispo and forced ratio": (
        {LOSS + "use_cispo": True, LOSS + "force_on_policy_ratio": True},
        "use_cispo: cannot be combined with force_on_policy_ratio",
    ),
    "cispo and gspo": ({LOSS + "use_cispo": True, **GSPO}, "with sequence_level_importance_ratios"),
    "cispo and dual clip": ({LOSS + "use_cispo": True, LOSS + "ratio_clip_c": 3.0}, "with ratio_clip_c"),
    "cispo and sequence loss": (
        {LOSS + "use_cispo": True, LOSS + "token_level_loss": False},
        "with token_level_loss: false",
    ),
    "gspo and token loss": (GSPO, "sequence_level_importance_ratios: cannot be combined with token_level_loss: true"),
    "gspo and seq-mask-tis": (
        {
            **GSPO,
            LOSS + "token_level_loss": False,
            **CORRECTED,
            LOSS + "truncated_importance_sampling_type": "seq-mask-tis",
        },
        "with truncated_importance_sampling_type: seq-mask-tis",
    ),
    "tis without bound": (
        {**CORRECTED, LOSS + "truncated_importance_sampling_type": "tis"},
        "truncated_importance_sampling_ratio: tis needs this bound",
    ),
    "icepop with one bound": (
        {
            **CORRECTED,
            LOSS + "truncated_importance_sampling_type": "icepop",
            LOSS + "truncated_importance_sampling_ratio": 5.0,
        },
        "truncated_importance_sampling_ratio_min: icepop needs this bound",
    ),
    "bounds the wrong way round": (
        {
            **CORRECTED,
            LOSS + "truncated_importance_sampling_type": "icepop",
            LOSS + "truncated_importance_sampling_ratio": 0.5,
            LOSS + "truncated_importance_sampling_ratio_min": 2.0,
        },
        "2.0 is above the upper bound 0.5",
    ),
    "no room for a prompt": (
        {"generator__sampling": {"max_new_tokens": 512}},
        "512 leaves no room for a prompt in policy.max_total_sequence_length 512",
    ),
    "clip without ratio": (
        {LOSS + "disable_ppo_ratio": True, LOSS + "ratio_clip_max": 0.28},
        "ratio_clip_max: has no effect, because disable_ppo_ratio",
    ),
    "truncation without correction": (
        {LOSS + "truncated_importance_sampling_type": "icepop"},
        "truncated_importance_sampling_type: has no effect, because use_importance_sampling_correction is false",
    ),
    "bound without type": ({**CORRECTED, LOSS + "truncated_importance_sampling_ratio": 2.0}, "_type is null"),
    "kl type without kl": ({LOSS + "reference_policy_kl_type": "k1"}, "reference_policy_kl_penalty is 0"),
    "loss knob under full": ({**FULL, **CORRECTED}, "full-vocabulary distillation replaces the policy-gradient loss"),
    "group knob without rewards": (
        {GRPO + "adv_estimator": {"normalize_rewards": False}},
        "grpo.adv_estimator.normalize_rewards: has no effect, because no outcome reward",
    ),
    "orm weight without orm": ({OPD + "orm_advantage_weight": 0.5}, "orm_advantage_weight: has no effect"),
    "parallel sizes on hf": ({"trainer": {"tensor_model_parallel_size": 2}}, "the hf engine trains on one rank"),
    "floor without decay": ({"trainer": {"scheduler": {"min_lr_ratio": 0.1}}}, "decay is constant"),
    "proximal teacher under top-k": (
        {**TOP_K, OPD + "proximal_teacher_alpha": 0.2},
        "proximal_teacher_alpha: top-k distillation never reads the advantage",
    ),
    "kl under full": ({**FULL, LOSS + "reference_policy_kl_penalty": 0.1}, "kl_penalty: has no effect"),
    "loss knob under top-k": ({**TOP_K, LOSS + "use_cispo": True}, "top-k distillation replaces the policy-gradient"),
    "full and top-k": ({**FULL, **TOP_K}, "topk_loss: cannot be combined with on_policy_distillation.full"),
    "beta without jsd": ({OPD + "full": {"enabled": True, "beta": 0.1}}, "full.beta: has no effect, because only"),
    "head lifecycle without heads": (
        {OPD + "full": {"enabled": True, "teacher_payload": "logits", "teacher_lm_head_lifecycle": "evict"}},
        "teacher_lm_head_lifecycle: has no effect, because teachers that ship logits",
    ),
    "decomposition without heads": (
        {OPD + "full": {"enabled": True, "teacher_payload": "logits", "validate_decomposition": True}},
        "validate_decomposition: has no effect",
    ),
    "responses without a file": ({OPD + "log_sample_responses": True}, "has no effect, because log_sample_stats is"),
    "period without a file": ({OPD + "token_stats_log_period": 5}, "has no effect, because log_token_stats is false"),
    "retention of no payload": ({"store": {"payload_retention": 3}}, "sampled-token distillation stores no payload"),
    "a buffer smaller than a step": (
        {GRPO + "async_grpo": {"enabled": True, "max_buffered_rows": 31}},
        "max_buffered_rows: 31 is less than the 32 rows of a step",
    ),
    "a sampler with nothing to choose from": (
        {GRPO + "async_grpo": {"enabled": True, "max_staleness": 0, "sampler": "first_ready"}},
        "async_grpo.sampler: has no effect, because max_staleness 0",
    ),
    "a window that no sampler has": (
        {GRPO + "async_grpo": {"enabled": True, "sampler_window": 4}},
        "sampler_window: has no effect, because only the sampler windowed",
    ),
    "best by what nobody measures": (
        {"checkpointing": {"metric_name": "accuracy/rev"}},
        "'accuracy/rev' is measured on held-out prompts; name some in data.validation",
    ),
    "the better half of no metric": ({"checkpointing": {"higher_is_better": False}}, "because metric_name is null"),
    "clip upside down": ({OPD + "advantage_clip": [1.0, -2.0]}, r"expected \[low, high\] with low < high"),
    "two origins of prompts": ({"data__train": [{"path": "a", "generator": "m:f"}]}, "exactly one of path and gen"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(recipe, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate(recipe(**changes))


ACCEPTED = {
    "generalised jsd with its ends": {OPD + "full": {"enabled": True, "divergence": "jsd", "beta": 0.0}},
    "full with a sequence-level loss": {**FULL, LOSS + "token_level_loss": False},
    "top-k forward": {OPD + "topk_loss": {"enabled": True, "k": 8, "direction": "forward"}},
    "a kl to the reference": {LOSS + "reference_policy_kl_penalty": 0.1, LOSS + "reference_policy_kl_type": "k1"},
    "reinforce with icepop": {
        LOSS + "disable_ppo_ratio": True,
        **CORRECTED,
        LOSS + "truncated_importance_sampling_type": "icepop",
    },
    "gspo with sequence loss": {**GSPO, LOSS + "token_level_loss": False},
    "cispo": {LOSS + "use_cispo": True, LOSS + "ratio_clip_max": 0.28},
    "tis without lower bound": {
        **CORRECTED,
        LOSS + "truncated_importance_sampling_type": "tis",
        LOSS + "truncated_importance_sampling_ratio": 2.0,
    },
    "forced ratio with the student pass kept": {
        LOSS + "force_on_policy_ratio": True,
        GRPO + "seq_logprob_error_threshold": 2.0,
    },
    "unmapped agent with a default": {
        "data__train": [{"path": "a", "agent": "math"}],
        OPD + "default_teacher_alias": "rev",
    },
    "windowed, within bounds": {
        GRPO + "async_grpo": {"enabled": True, "sampler": "windowed", "sampler_window": 4, "max_buffered_rows": 32},
        "store": {"max_buffered_bytes": 1},
    },
    "a sampler below enabled: false": {GRPO + "async_grpo": {"sampler": "first_ready", "max_buffered_rows": 64}},
    "everything off below enabled: false": {
        OPD + "enabled": False,
        OPD + "proximal_teacher_alpha": 0.2,
        OPD + "default_teacher_alias": "nobody",
        GRPO + "num_generations_per_prompt": 4,
    },
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(recipe, changes: dict[str, object]) -> None:
    validate(recipe(**changes))


def test_every_mistake_is_told_at_once(recipe) -> None:
    bent = recipe(loss_fn__force_on_policy_ratio=True, generator__sampling={"max_new_tokens": 600})
    with pytest.raises(ConfigError) as refused:
        validate(bent)
    keys = [line.partition(":")[0] for line in str(refused.value).splitlines()]
    assert keys == ["loss_fn.force_on_policy_ratio", "generator.sampling.max_new_tokens"]


def test_opd_without_its_recommended_loss_is_warned_about(recipe) -> None:
    keys = [line.partition(":")[0] for line in warnings(validate(recipe(loss_fn__disable_ppo_ratio=True)))]
    assert keys == ["loss_fn.use_importance_sampling_correction", "loss_fn.truncated_importance_sampling_type"]


def test_settings_of_published_recipes_without_effect_are_warned_about(recipe) -> None:
    published = {OPD + "non_colocated_teachers": {"enabled": True}, OPD + "topk_stats_k": 8}
    lines = warnings(validate(recipe(**ACCEPTED["reinforce with icepop"], **published)))
    keys = [line.partition(":")[0].rpartition(".")[2] for line in lines]
    assert keys == ["topk_stats_k"]


def test_recommended_loss_is_silent(recipe) -> None:
    assert warnings(validate(recipe(**ACCEPTED["reinforce with icepop"]))) == []
