"""A run of many processes and engines, replayed in one."""

from __future__ import annotations

from typing import Any

from stages.routing import teacher_configs
from tests.workers.runs import small_config
from workers.replay.one_process import in_one_process
from workers.teachers.resources import teacher_engine

APART = "on_policy_distillation__non_colocated_teachers"


def recipe(checkpoints: Any, prompt_file: Any, **changes: Any) -> Any:
    return small_config(
        checkpoints,
        prompt_file,
        generator__engine="vllm",
        generator__python="/opt/python",
        generator__gpus=1,
        trainer__engine="megatron",
        trainer__tensor_model_parallel_size=2,
        trainer__data_parallel_size=3,
        **{
            APART: {
                "enabled": True,
                "default_teacher_cfg": {"engine": "megatron", "gpus_per_node": 8, "tensor_model_parallel_size": 4},
                "teacher_overrides": {
                    "sort": {
                        **{"engine": "hf", "precision": "fp32", "micro_batch_size": 3},
                        **{"gpus_per_node": 0, "tensor_model_parallel_size": 1},
                    }
                },
            }
        },
        **changes,
    )


def test_every_role_comes_to_hf_in_this_process_and_keeps_its_types(checkpoints, prompt_file):
    config, trainer, teachers = in_one_process(recipe(checkpoints, prompt_file))
    assert (trainer, teachers) == ("megatron on 6 ranks", "megatron on 8 ranks")
    assert (config.trainer.engine, config.trainer.ranks) == ("hf", 1)
    assert (config.generator.engine, config.generator.python, config.generator.gpus) == ("hf", None, 0)
    hows = {t.alias: teacher_engine(config, t) for t in teacher_configs(config.on_policy_distillation)}
    assert {alias: (how.engine, how.ranks, how.gpus, how.dtype, how.batch_size) for alias, how in hows.items()} == {
        "rev": ("hf", 1, 0, "bfloat16", 4),
        "sort": ("hf", 1, 0, "float32", 3),
    }


def test_what_does_not_say_where_a_model_runs_stays(checkpoints, prompt_file):
    given = recipe(checkpoints, prompt_file, trainer__optimizer={"lr": 0.25})
    config = in_one_process(given).config
    assert config.trainer.optimizer == given.trainer.optimizer and config.policy == given.policy
    assert config.generator.sampling == given.generator.sampling and config.loss_fn == given.loss_fn


def test_a_run_of_one_process_has_nothing_to_say(checkpoints, prompt_file):
    given = small_config(checkpoints, prompt_file)
    assert in_one_process(given) == (given, None, None)
