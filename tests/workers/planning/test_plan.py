"""What a recipe would take, on models that exist only as a config and an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.config import RunConfig
from schemas.config.recipe import validate
from schemas.errors import InputError
from workers.partitions import LOGITS_BUDGET
from workers.planning.memory import KL_LOGITS
from workers.planning.plan import plan
from workers.planning.shapes import model_shape

SMALL = {
    **{"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 40, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 4, "vocab_size": 100, "dtype": "bfloat16", "tie_word_embeddings": True},
}


def checkpoint(folder: Path, total_size: int, **changes: Any) -> str:
    """A checkpoint whose shards are elsewhere."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
    index = {"metadata": {"total_size": total_size}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def recipe(student: str, teacher: str, **sections: Any) -> RunConfig:
    """Steps of 6 × 10 tokens on 2 nodes of 4 GPUs with 1 GB each; sections are laid over it."""
    values: dict[str, Any] = {
        "data": {"train": [{"path": "prompts.jsonl"}]},
        "policy": {"model": student, "max_total_sequence_length": 10, "dtype": "bfloat16"},
        "generator": {"replicas": 2, "gpus": 1, "sampling": {"max_new_tokens": 4}},
        "trainer": {"gpus": 1, "data_parallel_size": 2},
        "grpo": {"num_prompts_per_step": 6, "max_num_steps": 50},
        "cluster": {"num_nodes": 2, "gpus_per_node": 4, "gpu_memory_gb": 2},
        "on_policy_distillation": {
            "enabled": True,
            "teacher_model_by_agent_name": {"math": teacher},
            "non_colocated_teachers": {"enabled": True, "default_teacher_cfg": {"gpus_per_node": 4}},
        },
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return validate(values)


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """A student of 10,000 numbers in bfloat16 and a teacher of 50,000."""
    return checkpoint(tmp_path / "student", 20_000), checkpoint(tmp_path / "teacher", 100_000, hidden_size=32)


def test_every_role_has_its_processes_and_nodes(models) -> None:
    roles = {role.name: role for role in plan(recipe(*models)).roles}
    assert {name: (role.engine, role.processes, role.nodes) for name, role in roles.items()} == {
        "generator": ("hf", 2, {"node 1": 2}),
        "teacher:math": ("megatron", 4, {"node 0": 4}),
        "trainer": ("hf", 2, {"node 1": 2}),
    }


def test_bytes_of_weights_gradients_and_optimizer_follow_from_the_number_of_parameters(models) -> None:
    roles = {role.name: role.memory for role in plan(recipe(*models)).roles}
    trainer = roles["trainer"].device
    assert (trainer["weights"], trainer["gradients"], trainer["optimizer"]) == (20_000, 20_000, 40_000)
    assert roles["teacher:math"].device["weights"] == 100_000
    assert "gradients" not in roles["teacher:math"].device
    # the hf generator samples in float32, 6 rows of 10 tokens: 3 layers of 2 heads of 4 numbers, keys and values
    assert roles["generator"].device["weights"] == 40_000
    assert roles["generator"].device["kv cache"] == 6 * 10 * 3 * 2 * 2 * 4 * 4


def test_a_megatron_rank_holds_its_share_and_masters_in_float32(models) -> None:
    sizes = {"engine": "megatron", "tensor_model_parallel_size": 2, "data_parallel_size": 1}
    trainer = {role.name: role.memory for role in plan(recipe(*models, trainer=sizes)).roles}["trainer"].device
    assert (trainer["weights"], trainer["gradients"], trainer["optimizer"]) == (10_000, 20_000, 60_000)


def test_the_first_stage_of_a_pipeline_holds_the_embedding_beside_its_layers(models) -> None:
    sizes = {"engine": "megatron", "pipeline_model_parallel_size": 2, "data_parallel_size": 1}
    trainer = {role.name: role.memory for role in plan(recipe(*models, trainer=sizes)).roles}["trainer"].device
    assert trainer["weights"] == 2 * ((10_000 - 1_600) // 2 + 1_600)


def test_bytes_of_columns_by_token_and_step(models) -> None:
    columns = {column.name: column for column in plan(recipe(*models)).columns}
    assert (columns["teacher_logprobs"].per_token, columns["teacher_logprobs"].step_bytes) == (4, 60 * 4 + 6 * 8)
    assert columns["token_mask"].per_token == 0.125
    assert (columns["reward"].per_token, columns["reward"].step_bytes) == (0, 24)
    assert "reference_logprobs" not in columns and "topk_stats_student_ids" not in columns


def test_payloads_count_by_their_width_and_go_earlier(models) -> None:
    full = {"full": {"enabled": True}, "enabled": True, "teacher_model_by_agent_name": {"math": models[1]}}
    planned = plan(recipe(*models, on_policy_distillation=full, store={"retention": 7, "payload_retention": 2}))
    [shipped] = [column for column in planned.columns if column.heavy]
    assert (shipped.name, shipped.per_token) == ("payload_hidden_states", 2 * 32)
    assert (planned.store.steps_kept, planned.store.payload_steps) == (27, 22)
    assert planned.store.payload_bytes == 22 * shipped.step_bytes
    assert planned.store.rows_bytes == 27 * (planned.store.step_bytes - shipped.step_bytes)


def test_top_k_columns_count_k_values_at_the_tokens_that_are_kept_in_their_steps(models) -> None:
    opd = {
        **{"enabled": True, "teacher_model_by_agent_name": {"math": models[1]}, "log_topk_stats": True},
        **{"topk_stats_k": 5, "topk_stats_log_period": 4, "topk_stats_max_tokens": 8},
    }
    columns = {column.name: column for column in plan(recipe(*models, on_policy_distillation=opd)).columns}
    assert columns["topk_stats_teacher_ids"].per_token == 4 + 5 * 4
    assert columns["topk_stats_teacher_ids"].step_bytes == (8 * 24 + 6 * 8) // 4


def test_what_a_gpu_does_not_hold_is_named_with_a_way_out(tmp_path) -> None:
    student = checkpoint(tmp_path / "large", 2 * 10**9)
    teacher = checkpoint(tmp_path / "tiny", 1_000)
    [problem] = plan(recipe(student, teacher, generator={"engine": "vllm"}, cluster={"gpu_memory_gb": 7})).problems
    assert problem.startswith("trainer: a process takes 9.")
    assert "its GPU, which has 7.0 GB; most of it is optimizer (4.0 GB): spread the model over more ranks" in problem


def test_a_cluster_that_is_too_small_says_what_is_missing(models) -> None:
    planned = plan(recipe(*models, cluster={"num_nodes": 1}))
    [problem] = planned.problems
    assert "8 GPUs are asked for, 4 are free: 4 are missing (generator 2 × 1 GPUs" in problem
    assert [role.nodes for role in planned.roles] == [{}, {}, {}]


def test_a_checkpoint_that_is_not_here_is_noted_and_the_rest_is_planned(models, tmp_path) -> None:
    planned = plan(recipe(models[0], str(tmp_path / "elsewhere")))
    assert planned.notes == [
        f"checkpoint {str(tmp_path / 'elsewhere')!r} is not on this machine: its bytes are left out"
    ]
    assert [role.memory is None for role in planned.roles] == [False, True, False]


def test_memory_of_this_machine_is_checked_when_no_cluster_is_named(tmp_path) -> None:
    student = checkpoint(tmp_path / "huge", 2 * 10**12)
    beside = {"enabled": True, "teacher_model_by_agent_name": {"math": student}}
    config = recipe(
        student,
        student,
        cluster={"num_nodes": None},
        generator={"gpus": 0},
        trainer={"gpus": 0},
        on_policy_distillation={**beside, "non_colocated_teachers": None},
    )
    assert [problem.partition(":")[0] for problem in plan(config).problems] == ["memory", "store"]


def test_shapes_come_from_headers_where_the_files_are_there(checkpoints) -> None:
    shape = model_shape(checkpoints / "student")
    assert (shape.parameters, shape.file_bytes) == (136_640, 4 * 136_640)
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.head_dim, shape.vocabulary) == (2, 64, 4, 16, 81)


def test_without_weights_or_index_a_dense_model_is_counted_from_its_settings(checkpoints, tmp_path) -> None:
    config = json.loads((checkpoints / "student" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    norms_of_heads = 2 * 2 * 16
    assert model_shape(tmp_path).parameters == 136_640 - norms_of_heads


def test_a_config_that_is_no_decoders_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
    with pytest.raises(InputError, match="cannot be planned for .*num_hidden_layers"):
        model_shape(tmp_path)
    assert model_shape(tmp_path / "nowhere") is None


def test_the_budget_of_held_out_logits_is_the_one_of_a_run() -> None:
    assert KL_LOGITS == LOGITS_BUDGET
