"""A stored run's recipe as replay runs it: every model on the hf engine, in this process.

Stages are the same functions on every engine, and engines agree to rounding; so a run of many processes is replayed
in one. What stands in for what is said in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from schemas.config import RunConfig, TeacherResourceConfig, TrainerConfig, get_non_colocated_teachers


class OneProcess(NamedTuple):
    """The recipe, and what its trainer and its teachers ran on where that is not hf in one process."""

    config: RunConfig
    trainer: str | None
    teachers: str | None


def in_one_process(config: RunConfig) -> OneProcess:
    """*config* without other engines, ranks, interpreters or GPUs for any role; the types of weights stay."""
    trainer, plain = config.trainer, TrainerConfig()
    alone = ("engine", "gpus", "data_parallel_size", "sequence_packing", *trainer.model_parallel_sizes)
    changes: dict[str, Any] = {
        "generator": config.generator.model_copy(update={"engine": "hf", "python": None, "replicas": 1, "gpus": 0}),
        "trainer": trainer.model_copy(update={name: getattr(plain, name) for name in alone}),
    }
    apart, teachers = get_non_colocated_teachers(config), list[TeacherResourceConfig]()
    if apart is not None:
        teachers = [apart.default_teacher_cfg, *apart.teacher_overrides.values()]
        here = apart.model_copy(
            update={
                "default_teacher_cfg": _here(apart.default_teacher_cfg),
                "teacher_overrides": {alias: _here(how) for alias, how in apart.teacher_overrides.items()},
            }
        )
        changes["on_policy_distillation"] = config.on_policy_distillation.model_copy(
            update={"non_colocated_teachers": here}
        )
    return OneProcess(config.model_copy(update=changes), _described([trainer]), _described(teachers))


def _here(how: TeacherResourceConfig) -> TeacherResourceConfig:
    sizes = dict.fromkeys(("num_nodes", "expert_model_parallel_size", *how.model_parallel_sizes), 1)
    return how.model_copy(
        update={
            "engine": "hf",
            "python": None,
            "gpus_per_node": 0,
            "sequence_packing": False,
            "megatron_cfg_overrides": {},
            **sizes,
        }
    )


def _described(hows: Sequence[TrainerConfig | TeacherResourceConfig]) -> str | None:
    """What they ran on, where that is not hf on one rank."""
    other = {f"{how.engine} on {how.ranks} rank{'s' * (how.ranks > 1)}" for how in hows}
    return " and ".join(sorted(other - {"hf on 1 rank"})) or None
