"""Whole runs whose teachers have resources of their own."""

from __future__ import annotations

import os
import time

import pytest

from schemas.errors import InputError, JobFailed
from tests.workers.ray_runs import run_on_ray
from tests.workers.runs import query, run, small_config
from workers.rundir import RunDir

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")

ON_CPUS = {"engine": "hf", "gpus_per_node": 0, "precision": "fp32", "micro_batch_size": 3}


def apart(checkpoints, prompt_file, resources, **changes):
    section = {"enabled": True, "default_teacher_cfg": resources}
    return small_config(checkpoints, prompt_file, on_policy_distillation__non_colocated_teachers=section, **changes)


def test_teachers_on_resources_of_their_own_score_as_those_beside_the_student(
    checkpoints, prompt_file, tmp_path
) -> None:
    on_policy = {"grpo__async_grpo": {"enabled": False}, "grpo__max_num_steps": 2}
    there = run_on_ray(apart(checkpoints, prompt_file, ON_CPUS, **on_policy), tmp_path / "apart")
    beside = run(small_config(checkpoints, prompt_file, **on_policy), tmp_path / "beside")
    sums = "select sample_id, round(gap_sum, 3) from samples where step is not null order by 1"
    assert query(there, sums) == query(beside, sums)
    workers = "select distinct worker from events where task = 'teacher' and kind = 'committed' order by 1"
    assert query(there, workers) == [("teacher:rev",), ("teacher:sort",)]


def test_gpus_for_teachers_that_are_not_there_are_refused_before_anything_loads(
    checkpoints, prompt_file, tmp_path
) -> None:
    started = time.monotonic()
    with pytest.raises(InputError, match="GPUs are asked for"):
        run_on_ray(apart(checkpoints, prompt_file, {**ON_CPUS, "gpus_per_node": 1}), tmp_path / "run")
    assert time.monotonic() - started < 60  # far below any time-out of ours
    assert query(RunDir(tmp_path / "run"), "select worker from events where kind = 'worker_started'") == []


def test_a_teacher_whose_process_dies_at_once_too_often_fails_the_job(checkpoints, prompt_file, tmp_path) -> None:
    def dies(role) -> None:
        os._exit(7)

    config = apart(checkpoints, prompt_file, ON_CPUS)
    with pytest.raises(JobFailed, match="teacher:sort: cannot start"):
        run_on_ray(config, tmp_path / "run", {"teacher:sort": dies}, restarts=0)
