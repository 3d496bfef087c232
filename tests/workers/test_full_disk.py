"""A disk that fills up while a run goes on is an error that says so; with room again the run goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import yaml
from safetensors import SafetensorError

from dataplane.backends.files import write_all
from schemas.errors import JobFailed, StoreError
from tests.workers.runs import query, run, small_config
from tests.workers.test_killed_anywhere import check, job  # noqa: F401  # a fixture
from tests.workers.test_killed_anywhere import run as pretend
from workers.cli.app import main
from workers.rundir import RunDir

FULL = "No space left on device; free some space, or clear rows of old steps"


class Disk:
    """Has room for so many writes of the store; the next one leaves a half, and those after it too."""

    def __init__(self, room: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = room
        self.written = 0
        monkeypatch.setattr("dataplane.backends.local.write_all", self.write_all)

    def write_all(self, fd: int, parts: list[bytes]) -> None:
        if self.written >= self.room:
            os.write(fd, b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written += 1
        write_all(fd, parts)


def test_full_at_any_write_and_with_room_again_every_prompt_is_trained_once(job, tmp_path, monkeypatch):  # noqa: F811
    whole = Disk(float("inf"), monkeypatch)
    pretend(job, RunDir(tmp_path / "whole"))
    for room in range(2, whole.written, 9):
        run_dir, disk = RunDir(tmp_path / str(room)), Disk(room, monkeypatch)
        with pytest.raises(StoreError, match=FULL):
            pretend(job, run_dir)
        with pytest.raises(StoreError, match=FULL):  # still
            pretend(job, run_dir, resume=True)
        disk.room = float("inf")
        pretend(job, run_dir, resume=True)
        check(run_dir)


def test_the_command_says_so_and_exits_1_and_goes_on(checkpoints, prompt_file, tmp_path, monkeypatch, capsys):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    disk = Disk(90, monkeypatch)
    command = ["run", str(tmp_path / "recipe.yaml"), "--executor", "inline", "--run-dir", str(tmp_path / "run")]
    ends = []
    for arguments in (command, [*command, "--resume"]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        ends.append((left.value.code or 0, f"failed: {FULL}" in capsys.readouterr().err))
        disk.room = float("inf")
    assert ends == [(1, True), (0, False)]
    trained = "select count(*), count(distinct prompt_id) from samples where status = 'trained'"
    assert query(RunDir(tmp_path / "run"), trained) == [(20, 20)]


def test_weights_that_find_no_room_end_the_run_and_leave_nothing(checkpoints, prompt_file, tmp_path, monkeypatch):
    def full(tensors, path: Path, metadata) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    config = small_config(checkpoints, prompt_file)
    with monkeypatch.context() as patched, pytest.raises(JobFailed, match="weights of version 0: .*No space left"):
        patched.setattr("workers.weights.save_file", full)
        run(config, tmp_path / "run")
    assert list((tmp_path / "run" / "weights").iterdir()) == []
    assert query(run(config, tmp_path / "run", resume=True), "select count(*) from steps") == [(3,)]


def test_metrics_that_cannot_be_written_are_rendered_when_the_run_goes_on(checkpoints, prompt_file, tmp_path):
    config, metrics = small_config(checkpoints, prompt_file), tmp_path / "run" / "metrics.jsonl"
    with pytest.raises(StoreError, match=r"writing .*metrics.jsonl failed: Is a directory"):
        run(config, tmp_path / "run", break_roles=lambda roles: metrics.mkdir())
    metrics.rmdir()
    run(config, tmp_path / "run", resume=True)
    assert len(metrics.read_text().splitlines()) == 3
