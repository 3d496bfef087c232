"""Runs as a person starts and ends them: a signal, and --resume."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.workers.runs import query, small_config
from workers.rundir import RunDir

STEPS = 5


@pytest.fixture
def recipe(checkpoints, prompt_file, tmp_path) -> Path:
    path = tmp_path / "recipe.yaml"
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=STEPS, checkpointing__period=2)
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


@pytest.fixture(autouse=True)
def interruptible():
    """Runs are started so that SIGINT reaches them, also where the tests themselves are a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(recipe: Path, run_dir: Path, *flags: str) -> subprocess.Popen[str]:
    """``opd run`` at the head of a process group of its own."""
    command = [sys.executable, "-m", "workers.cli.app", "run", str(recipe), "--run-dir", str(run_dir), *flags]
    piped = subprocess.PIPE
    return subprocess.Popen(command, stdout=piped, stderr=piped, text=True, start_new_session=True)


def until_started(run_dir: Path) -> None:
    """Wait for the first published weights: the roles are there and the run is under way."""
    deadline = time.monotonic() + 120
    while not list(run_dir.glob("weights/version_*.safetensors")):
        assert time.monotonic() < deadline, "the run never began"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_one_line_and_leaves_it_resumable(recipe, tmp_path, number):
    process = start(recipe, tmp_path / "run", "--executor", "inline", "grpo.max_num_steps=500")
    until_started(tmp_path / "run")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted" in said.splitlines()[-1] and "Traceback" not in said
    metrics = tmp_path / "run" / "metrics.jsonl"
    last = (len(metrics.read_text().splitlines()) if metrics.exists() else 0) + 2
    flags = ("--executor", "inline", f"grpo.max_num_steps={last}")
    again = start(recipe, tmp_path / "run", *flags, "--resume")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    rows = query(
        RunDir(tmp_path / "run"), "select count(*), count(distinct step) from samples where status = 'trained'"
    )
    assert rows == [(4 * last, last)]


def test_sigterm_ends_a_run_on_ray_in_one_line_and_is_in_its_events(recipe, tmp_path):
    process = start(recipe, tmp_path / "run", "grpo.max_num_steps=500")
    until_started(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said.splitlines()[-1] == "opd: interrupted" and "***" not in said
    ended = query(RunDir(tmp_path / "run"), "select detail from events where kind = 'run_failed'")
    assert len(ended) == 1 and '"reason": "interrupted"' in ended[0][0]


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_resume_before_the_first_checkpoint_and_one_of_a_complete_run_end_with_exit_0(recipe, tmp_path, executor):
    flags = ("--executor", executor, "checkpointing.period=500")
    killed = start(recipe, tmp_path / "run", *flags)
    until_started(tmp_path / "run")
    killed.kill()
    killed.communicate(timeout=60)
    assert not list((tmp_path / "run").glob("checkpoints/step_*"))
    for complete in (False, True):
        resumed = start(recipe, tmp_path / "run", *flags, "--resume")
        shown, said = resumed.communicate(timeout=120)
        assert (resumed.returncode, "complete already: nothing was left to train" in shown) == (0, complete), said
        told = query(RunDir(tmp_path / "run"), "select count(*) from samples where status = 'trained'")
        assert told == [(4 * STEPS,)]
    lives = query(RunDir(tmp_path / "run"), "select detail from events where kind = 'epoch_opened' order by seq")
    assert [f'"after_step": {step}' in detail for step, (detail,) in zip((0, STEPS), lives, strict=True)] == [True] * 2


def test_a_resumed_run_keeps_its_settings_and_says_what_the_recipe_says_now(recipe, tmp_path):
    first = start(recipe, tmp_path / "run", "--executor", "inline", "run.seed=3", "grpo.max_num_steps=1")
    assert first.communicate(timeout=120) and first.returncode == 0
    again = start(recipe, tmp_path / "run", "--executor", "inline", "grpo.max_num_steps=2", "--resume")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0 and "warning: run.seed: the run keeps 3\n" in said
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["run"]["seed"] == 3


def test_a_resumed_run_keeps_what_its_order_of_prompts_depends_on_and_names_what_else_changes(recipe, tmp_path):
    first = start(recipe, tmp_path / "run", "--executor", "inline", "grpo.max_num_steps=1")
    assert first.communicate(timeout=120) and first.returncode == 0
    for key in ("run.seed=5", "policy.model=elsewhere", "data.train.0.path=other.jsonl"):
        refused = start(recipe, tmp_path / "run", "--executor", "inline", key, "--resume")
        _, said = refused.communicate(timeout=120)
        assert refused.returncode == 2 and key.partition("=")[0] in said and "start a new run" in said
    again = start(recipe, tmp_path / "run", "--executor", "inline", "grpo.max_num_steps=2", "--resume")
    assert "grpo.max_num_steps: 1 until now, 2 from here on" in again.communicate(timeout=120)[1]


def test_a_place_that_cannot_hold_a_run_is_refused_in_one_line(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    process = start(recipe, tmp_path / "file" / "run", "--executor", "inline")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "cannot be a run directory" in said.splitlines()[-1]
