"""The process tree of a run killed at random moments and resumed: nothing is lost, nothing trained twice."""

from __future__ import annotations

import pytest
import yaml

from benchmarks.chaos_run import chaos, explain, sound, trained_once
from dataplane import open_plane
from tests.workers.runs import small_config

STEPS = 12


def test_a_run_killed_three_times_trains_every_prompt_once_and_its_events_explain_how(
    checkpoints, prompt_file, tmp_path
):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=STEPS, checkpointing__period=2)
    recipe, run_dir = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    kills = chaos([str(recipe)], run_dir, kills=3, seconds=1.5, seed=3)
    sound(str(run_dir / "plane"))
    assert not list(run_dir.rglob("*.partial"))
    with open_plane(str(run_dir / "plane"), mode="r") as plane:
        trained_once(plane, STEPS, 4)
        history = explain(plane)
    assert kills >= 1 and history.lives >= 1 and history.steps == STEPS and history.trained >= STEPS


@pytest.fixture
def plane():
    with open_plane("memory://") as plane:
        plane.create_partition("train", ["reward"])
        plane.put("train", [f"r{step}" for step in range(4)], {"reward": [0.5] * 4})
        for step in range(1, 4):
            plane.seal(step, [f"r{step}"])
        yield plane


def test_a_history_that_goes_back_to_a_checkpoint_is_told(plane):
    plane.record_trained(1, {})
    plane.record_checkpoint(1, "here")
    plane.record_trained(2, {})
    plane.new_epoch(1)
    plane.record_trained(2, {})
    plane.record_trained(3, {})
    assert explain(plane) == (1, 1, 4, 3)


def test_a_history_that_goes_back_to_no_checkpoint_is_found_out(plane):
    plane.record_trained(1, {})
    plane.new_epoch(1)
    with pytest.raises(AssertionError, match="of which there was no checkpoint"):
        explain(plane)


def test_a_step_left_out_is_found_out(plane):
    plane.record_trained(2, {})
    with pytest.raises(AssertionError, match="step 2 was trained after step 0"):
        explain(plane)
