"""Small real runs, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dataplane import DataPlane, open_plane
from schemas.config import RunConfig
from schemas.config.recipe import validate
from workers.executors.inline import InlineExecutor
from workers.job import read_inputs, run_job
from workers.reports.report import Reporter
from workers.rundir import RunDir

Break = Callable[[Mapping[str, Any]], None]


def small_config(checkpoints: Path, prompt_file: Path, **changes: Any) -> RunConfig:
    """Steps of 4 prompts over 20; ``changes`` are dotted keys with ``__`` for dots."""
    values: dict[str, Any] = {
        "run": {"name": "small"},
        "data": {"train": [{"path": str(prompt_file)}]},
        "policy": {"model": str(checkpoints / "student"), "max_total_sequence_length": 32},
        "generator": {"sampling": {"max_new_tokens": 5}, "batch_size": 8},
        "trainer": {"optimizer": {"lr": 1e-3}},
        "grpo": {
            "num_prompts_per_step": 4,
            "max_num_steps": 3,
            "async_grpo": {"enabled": True, "max_staleness": 1},
        },
        "loss_fn": {
            "disable_ppo_ratio": True,
            "use_importance_sampling_correction": True,
            "truncated_importance_sampling_type": "icepop",
        },
        "on_policy_distillation": {
            "enabled": True,
            "teacher_model_by_agent_name": {name: str(checkpoints / name) for name in ("rev", "sort")},
        },
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        section = values
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return validate(values)


class Sabotaged(InlineExecutor):
    """An inline executor whose roles are tampered with once they are built."""

    def __init__(self, break_roles: Break) -> None:
        super().__init__()
        self.break_roles = break_roles

    def start(self, plane: DataPlane, roles: Any) -> None:
        super().start(plane, roles)
        self.break_roles(self.roles)


def run(
    config: RunConfig,
    directory: Path,
    *,
    resume: bool = False,
    break_roles: Break | None = None,
    report: Reporter | None = None,
) -> RunDir:
    """Run to the end, or to the error."""
    run_dir = RunDir(directory)
    executor = Sabotaged(break_roles) if break_roles else InlineExecutor()
    run_job(config, read_inputs(config), run_dir, executor, resume=resume, report=report)
    return run_dir


def query(run_dir: RunDir, sql: str) -> list[tuple[Any, ...]]:
    """Rows of *sql* over the run's store."""
    with open_plane(str(run_dir.plane), mode="r") as plane:
        return [tuple(row.values()) for row in plane.sql(sql).to_pylist()]
