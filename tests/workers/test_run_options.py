"""What single settings of a recipe do to a run."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from schemas.errors import JobFailed
from tests.workers.runs import query, run, small_config
from workers.reports.report import Reports, TensorBoard


def test_two_generators_share_the_rows_and_each_row_is_trained_once(checkpoints, prompt_file, tmp_path):
    run_dir = run(
        small_config(checkpoints, prompt_file, generator__replicas=2, generator__batch_size=3), tmp_path / "run"
    )
    workers = query(
        run_dir, "select distinct worker from events where task = 'generate' and kind = 'committed' order by 1"
    )
    assert workers == [("generator:0",), ("generator:1",)]
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_retention_clears_old_steps_and_a_resume_repeats_no_prompt(checkpoints, prompt_file, tmp_path):
    changes = {"store__retention": 1, "checkpointing__period": 1}
    run(small_config(checkpoints, prompt_file, grpo__max_num_steps=3, **changes), tmp_path / "run")
    longer = small_config(
        checkpoints, prompt_file, grpo__max_num_steps=5, store__retention="never", checkpointing__period=1
    )
    run_dir = run(longer, tmp_path / "run", resume=True)
    rows = query(
        run_dir, "select step, count(distinct prompt_id) from samples where status = 'trained' group by 1 order by 1"
    )
    assert rows == [(3, 4), (4, 4), (5, 4)]
    assert query(run_dir, "select max(sample_id) from samples where step is not null") == [("0000019-0",)]


def quarantines_one(roles):
    """The student's score of one sealed row is not a number."""
    stage = roles["trainer"].step_workers[0].stage
    score = stage.engine.logprobs

    def broken(sequences, temperature):
        scored = score(sequences, temperature)
        scored[0] = scored[0] * math.nan
        return scored

    stage.engine = SimpleNamespace(logprobs=broken)  # the stage's view of it: weights are published as they are


def test_a_row_lost_after_the_seal_is_masked_when_the_recipe_lets_the_step_shrink(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints,
        prompt_file,
        failures__max_quarantined_share=0.5,
        failures__min_step_fraction=0.5,
        failures__stop_on_invariant=False,
    )
    run_dir = run(config, tmp_path / "run", break_roles=quarantines_one)
    rows = query(
        run_dir, "select step, count(*) filter (where status = 'masked'), count(*) from samples group by 1 order by 1"
    )
    assert rows[:3] == [(1, 1, 4), (2, 1, 4), (3, 1, 4)]


def test_a_row_lost_after_the_seal_ends_the_job_when_the_recipe_says_fail(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints,
        prompt_file,
        failures__max_quarantined_share=0.5,
        failures__after_seal="fail",
        failures__stop_on_invariant=False,
    )
    with pytest.raises(JobFailed, match="1 of 4 samples of the step are quarantined.*after_seal 'fail'"):
        run(config, tmp_path / "run", break_roles=quarantines_one)


def test_tensorboard_gets_every_metric_of_a_step(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    Reports(board).trained(3, {"loss": 0.5, "gap_mean": -1.0})
    Reports(board).validated(3, {"accuracy": 0.25})
    board.writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["train/gap_mean", "train/loss", "validation/accuracy"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(3, 0.5)]
