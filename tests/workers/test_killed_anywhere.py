"""Killed before any record of its journal, and resumed, a run trains every prompt once, and its weights are whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import count

import pytest

from dataplane import open_plane
from schemas.columns import TRAIN
from tests.workers.fake_job import PretendExecutor
from tests.workers.runs import small_config
from workers.job import read_inputs, run_job
from workers.rundir import RunDir

POINTS = 50


class Killed(BaseException):
    """Stands for a process that ends: nothing of ours catches it."""


def dies_before(record: int):
    """Raises Killed before the journal's record of that number, counted from 0 and from when roles are hosted."""
    records = count()

    def before_write() -> None:
        if next(records) == record:
            raise Killed

    return before_write


@pytest.fixture(scope="module")
def job(checkpoints, prompt_file):
    """Five steps of four prompts and two generations each, and their inputs."""
    config = small_config(
        checkpoints,
        prompt_file,
        grpo__num_generations_per_prompt=2,
        grpo__max_num_steps=5,
        checkpointing__period=2,
        on_policy_distillation={},
        loss_fn={},
    )
    return config, read_inputs(config)


def run(job, run_dir: RunDir, before_write=lambda: None, *, resume: bool = False) -> None:
    executor = PretendExecutor(run_dir, before_write, broken=["0000003-0", "0000011-1"])
    run_job(*job, run_dir, executor, resume=resume)


def check(run_dir: RunDir) -> None:
    """Every prompt once, no row too old, and weights that are the sum of the steps."""
    with open_plane(str(run_dir.plane), mode="r") as plane:
        steps = plane.steps()
        assert [step.step for step in steps if step.trained_at] == [1, 2, 3, 4, 5]
        names = ["prompt_id", "weight_version"]
        rows = [(step.step, plane.get(TRAIN, plane.members(step.step), names)) for step in steps]
    prompts = Counter(prompt for _, batch in rows for prompt in batch.values("prompt_id"))
    assert len(prompts) == 20 and set(prompts.values()) == {2}
    assert all(step - 1 - version <= 1 for step, batch in rows for version in batch.values("weight_version"))
    assert json.loads((run_dir.checkpoints / "step_000005" / "weights.json").read_text()) == [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def records(job, tmp_path_factory) -> int:
    """Records of an undisturbed run."""
    records = count()
    run(job, RunDir(tmp_path_factory.mktemp("whole") / "run"), lambda: next(records))
    return next(records)


def test_killed_at_fifty_random_points_every_prompt_is_trained_once(job, records, tmp_path):
    moments = random.Random(17)
    for point in moments.sample(range(records), POINTS):
        run_dir = RunDir(tmp_path / str(point))
        with pytest.raises(Killed):
            run(job, run_dir, dies_before(point))
        run(job, run_dir, resume=True)
        check(run_dir)


def test_killed_again_and_again_it_ends_all_the_same(job, records, tmp_path):
    moments, run_dir, lives = random.Random(5), RunDir(tmp_path / "run"), 1
    with pytest.raises(Killed):
        run(job, run_dir, dies_before(records // 4))
    for _ in range(12):
        lives += 1
        try:
            run(job, run_dir, dies_before(moments.randrange(records // 2)), resume=True)
        except Killed:
            continue
        break
    else:
        run(job, run_dir, resume=True)
    check(run_dir)
    assert lives > 2
