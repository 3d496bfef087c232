"""A store whose journal was cut is repaired, and the run goes on from what is left."""

from __future__ import annotations

import os
import shutil

import pytest

from dataplane.backends.local import LocalStorage
from dataplane.upkeep.check import check
from dataplane.upkeep.repair import repair
from tests.workers.runs import query, run, small_config
from workers.rundir import RunDir


@pytest.fixture(scope="module")
def config(checkpoints, prompt_file):
    held_out = {"train": [{"path": str(prompt_file)}], "validation": [{"path": str(prompt_file)}]}
    return small_config(
        checkpoints,
        prompt_file,
        data=held_out,
        grpo__max_num_steps=5,
        checkpointing__period=2,
        validation={"period": 2, "rows": 6, "exact_kl_rows": 3},
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> RunDir:
    return run(config, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("share", [0.95, 0.7, 0.5, 0.3])
def test_a_run_whose_journal_was_cut_is_repaired_and_trains_every_prompt_once(config, whole, tmp_path, share):
    shutil.copytree(whole.path, tmp_path / "run")
    run_dir = RunDir(tmp_path / "run")
    [journal] = run_dir.plane.glob("journal/*")
    os.truncate(journal, int(journal.stat().st_size * share))
    repair(lambda: LocalStorage(run_dir.plane))
    assert check(LocalStorage(run_dir.plane)).clean
    belongs = "select distinct partition, sample_id like 'v%' from samples"
    assert sorted(query(run_dir, belongs)) == [("train", False), ("validation", True), ("validation_sampled", True)]
    run(config, run_dir.path, resume=True)
    trained = "select count(*), count(distinct prompt_id), max(step) from samples where status = 'trained'"
    assert query(run_dir, trained) == [(20, 20, 5)]
