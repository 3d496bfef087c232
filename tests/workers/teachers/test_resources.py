"""What one teacher runs on, and what a recipe must not ask for."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.config import RunConfig
from schemas.config.recipe import validate
from schemas.errors import ConfigError
from stages.routing import teacher_configs
from workers.teachers.placement import Bundles
from workers.teachers.resources import TeacherEngine, placements, teacher_engine

STUDENT: dict[str, Any] = {
    "policy": {
        **{"model": "student", "dtype": "float16", "logprob_batch_size": 77},
        **{"train_micro_batch_size": 5, "micro_batch_tokens": 999},
    },
    "trainer": {
        **{"engine": "megatron", "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 3},
        **{"data_parallel_size": 2, "gradient_checkpointing": True, "gpus": 1},
    },
    "generator": {"engine": "vllm", "python": "other/python", "gpus": 1},
}


def config(apart: dict[str, Any] | None, teachers: dict[str, str] | None = None, **sections: Any) -> RunConfig:
    """Teachers ``math`` and ``code`` (or *teachers*) on resources *apart*."""
    opd = {
        "enabled": True,
        "teacher_model_by_agent_name": teachers or {"math": "t/math", "code": "t/code"},
        "non_colocated_teachers": apart,
    }
    values = {"policy": {"model": "student"}, "data": {"train": [{"path": "prompts.jsonl"}]}}
    return validate({**values, **sections, "on_policy_distillation": opd})


def engines(run: RunConfig) -> dict[str, TeacherEngine]:
    return {t.alias: teacher_engine(run, t) for t in teacher_configs(run.on_policy_distillation)}


def test_defaults_are_a_megatron_teacher_on_one_node_of_eight() -> None:
    made = engines(config({"enabled": True}))["math"]
    assert (made.engine, made.dtype, made.batch_size, made.ranks, made.gpus) == ("megatron", "bfloat16", 4, 8, 1.0)
    assert made.bundles == Bundles(8, 1.0, 1.0, num_nodes=1)


def test_an_override_changes_what_it_says_and_keeps_the_rest_of_the_default() -> None:
    default = {"tensor_model_parallel_size": 2, "precision": "fp32", "attention_backend": "flash"}
    run = config(
        {"enabled": True, "default_teacher_cfg": default, "teacher_overrides": {"code": {"num_nodes": 3, "moe_a": 1}}}
    )
    math, code = engines(run)["math"], engines(run)["code"]
    assert (math.ranks, math.replicas, code.ranks, code.replicas) == (8, 4, 24, 12)
    assert (code.dtype, code.parallel["tensor_model_parallel_size"]) == ("float32", 2)
    assert code.parallel["overrides"] == {"attention_backend": "flash", "moe_a": 1}
    assert math.parallel["overrides"] == {"attention_backend": "flash"}


def test_a_resolved_recipe_means_the_same_when_it_is_loaded_again() -> None:
    apart = {
        "enabled": True,
        "default_teacher_cfg": {"num_nodes": 2},
        "teacher_overrides": {"code": {"precision": "fp16"}},
    }
    run = config(apart)
    again = validate(run.model_dump(mode="json"))
    assert engines(again) == engines(run)
    assert engines(again)["code"].bundles == Bundles(16, 1.0, 1.0, num_nodes=2)


def test_a_teacher_on_its_own_resources_inherits_no_setting_of_the_student() -> None:
    apart = {"enabled": True, "default_teacher_cfg": {"gpus_per_node": 4}}
    assert engines(config(apart, **STUDENT)) == engines(config(apart))


def test_a_teacher_beside_the_student_is_one_hf_process_of_the_students_type() -> None:
    for apart in (None, {"enabled": False, "default_teacher_cfg": {"num_nodes": 9}}):
        assert engines(config(apart, **STUDENT))["math"] == TeacherEngine("hf", "float16", 77, 999)
        assert placements(config(apart)) == {}


def test_without_gpus_a_teacher_is_one_replica() -> None:
    made = engines(
        config({"enabled": True, "default_teacher_cfg": {"gpus_per_node": 0, "tensor_model_parallel_size": 2}})
    )
    assert (made["math"].ranks, made["math"].replicas, made["math"].gpus) == (2, 1, 0.0)


def test_aliases_of_one_checkpoint_are_placed_once_by_the_override_of_either() -> None:
    teachers = {"math": "t/one", "code": "t/two", "logic": "t/one"}
    run = config({"enabled": True, "teacher_overrides": {"logic": {"num_nodes": 2}}}, teachers)
    assert {role: bundles.ranks for role, bundles in placements(run).items()} == {"teacher:math": 16, "teacher:code": 8}


def test_aliases_of_one_checkpoint_that_ask_for_different_resources_are_refused() -> None:
    overrides = {"math": {"num_nodes": 2}, "code": {"num_nodes": 3}}
    shared = {"math": "t/one", "code": "t/one"}
    with pytest.raises(ConfigError, match="'math' and 'code' are one checkpoint, loaded once, and ask for different"):
        config({"enabled": True, "teacher_overrides": overrides}, shared)
    assert len(engines(config({"enabled": True, "teacher_overrides": overrides}))) == 2


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"tensor_model_parallel_size": 3}, r"gpus_per_node: 1 × 8 ranks are no multiple of the 3 .*= 3 × 1 × 1"),
        ({"gpus_per_node": 0, "num_nodes": 2}, r"num_nodes: 1 ranks .* cannot share 2"),
        ({"num_nodes": 5}, r"num_nodes: 5 are more than the nodes of a segment"),
        ({"engine": "hf", "tensor_model_parallel_size": 2}, r"tensor_model_parallel_size: the hf engine holds whole"),
        ({"engine": "hf", "expert_model_parallel_size": 2}, r"expert_model_parallel_size: the hf engine holds whole"),
        ({"engine": "hf", "precison": "fp32"}, r"default_teacher_cfg.precison: unknown key"),
        ({"engine": "vllm"}, r"gpus_per_node: the vllm engine scores in one process; expected 1 or 0, got 8"),
    ],
)
def test_resources_that_cannot_be_are_refused_with_their_key(resources: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config({"enabled": True, "default_teacher_cfg": resources}, cluster={"segment_size": 4})


def test_a_disabled_block_is_not_looked_at() -> None:
    assert config({"enabled": False, "default_teacher_cfg": {"tensor_model_parallel_size": 3}}) is not None
