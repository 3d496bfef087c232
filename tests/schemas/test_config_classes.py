"""The sections hold the published names and defaults, and say what every key means."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import schemas.config as config
from schemas.config import RunConfig, Section
from schemas.config.recipe import validate
from schemas.errors import ConfigError

#: Public names known from NeMo-RL, with their defaults. Fields may be added; these stay.
PUBLISHED = {
    "TeacherResourceConfig": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "num_nodes": 1,
        "gpus_per_node": 8,
        "precision": "bf16",
        "micro_batch_size": 4,
        "megatron_cfg_overrides": {},
    },
    "NonColocatedTeachersConfig": {
        "enabled": False,
        "default_teacher_cfg": config.TeacherResourceConfig(),
        "teacher_overrides": {},
    },
    "OnPolicyDistillationFullConfig": {
        "enabled": False,
        "teacher_payload": "hidden_states",
        "divergence": "reverse_kl",
        "payload_dtype": "bfloat16",
        "chunk_size": None,
        "teacher_lm_head_lifecycle": "offload",
        "validate_decomposition": False,
    },
    "OnPolicyDistillationConfig": {
        "enabled": False,
        "teacher_model_by_agent_name": {},
        "default_teacher_alias": None,
        "strict_agent_name_match": False,
        "deduplicate_shared_teacher_checkpoints": True,
        "non_colocated_teachers": None,
        "full": None,
        "proximal_teacher_alpha": 1.0,
        "subtract_global_baseline": False,
        "use_orm_advantage": False,
        "orm_advantage_weight": 1.0,
    },
    "ClippedPGLossConfig": {
        "reference_policy_kl_penalty": 0.0,
        "reference_policy_kl_type": "k3",
        "kl_input_clamp_value": 20.0,
        "kl_output_clamp_value": 10.0,
        "ratio_clip_min": 0.2,
        "ratio_clip_max": 0.2,
        "ratio_clip_c": None,
        "disable_ppo_ratio": False,
        "force_on_policy_ratio": False,
        "use_cispo": False,
        "sequence_level_importance_ratios": False,
        "token_level_loss": True,
        "use_importance_sampling_correction": False,
        "truncated_importance_sampling_type": None,
        "truncated_importance_sampling_ratio": None,
        "truncated_importance_sampling_ratio_min": None,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_fields_keep_their_defaults(name: str) -> None:
    section = getattr(config, name)()
    assert {key: getattr(section, key) for key in PUBLISHED[name]} == PUBLISHED[name]


SECTIONS: list[type[BaseModel]] = Section.__subclasses__()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_says_what_it_means(section: type[BaseModel]) -> None:
    silent = [name for name, field in section.model_fields.items() if not field.description]
    assert silent == []


def test_top_level_keys_are_the_published_ones() -> None:
    assert list(RunConfig.model_fields) == [
        *("run", "store", "data", "policy", "generator", "trainer", "grpo", "loss_fn", "on_policy_distillation"),
        *("validation", "checkpointing", "logger", "cluster", "failures"),
    ]


def test_only_teacher_resources_take_unknown_keys_and_hand_them_to_megatron() -> None:
    teacher = config.TeacherResourceConfig.model_validate({"num_nodes": 2, "sequence_parallel": True})
    assert (teacher.num_nodes, teacher.megatron_cfg_overrides) == (2, {"sequence_parallel": True})
    takers = [s.__name__ for s in SECTIONS if s.model_config["extra"] != "forbid"]
    assert takers == []


def test_a_megatron_setting_given_twice_is_refused() -> None:
    twice = {"recompute": 1, "megatron_cfg_overrides": {"recompute": 2}}
    with pytest.raises(ValueError, match="'recompute' is given here and in megatron_cfg_overrides"):
        config.TeacherResourceConfig.model_validate(twice)


def test_chunk_size_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chunk_size: expected null or at least 1 token, got 0"):
        config.OnPolicyDistillationFullConfig(chunk_size=0)


@pytest.mark.parametrize(
    ("enabled", "name"),
    [(True, "opd"), (False, "grpo")],
)
def test_estimator_follows_whether_distillation_is_on(recipe, enabled: bool, name: str) -> None:
    bent = recipe(on_policy_distillation__enabled=enabled, grpo__num_generations_per_prompt=3)
    assert validate(bent).grpo.adv_estimator.name == name


def test_staleness_window_is_zero_when_async_is_off() -> None:
    window = [config.AsyncGRPOConfig(enabled=on, max_staleness=3).window for on in (False, True)]
    assert window == [0, 3]


@pytest.mark.parametrize(("kind", "low", "high"), [("icepop", 0.2, 5.0), ("seq-mask-tis", 0.999, 1.002)])
def test_a_truncation_without_bounds_takes_the_published_ones(kind: str, low: float, high: float) -> None:
    loss = config.ClippedPGLossConfig.model_validate({"truncated_importance_sampling_type": kind})
    assert (loss.truncated_importance_sampling_ratio_min, loss.truncated_importance_sampling_ratio) == (low, high)


@pytest.mark.parametrize("value", [True, "3", 3.0])
def test_numbers_are_not_guessed_from_other_kinds(recipe, value: object) -> None:
    with pytest.raises(ConfigError, match=r"^grpo.max_num_steps: expected a whole number"):
        validate(recipe(grpo__max_num_steps=value))
