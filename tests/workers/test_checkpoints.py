"""Checkpoints written beside training: whole or absent, and the right ones kept."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from dataplane import open_plane
from schemas.config.job import CheckpointingConfig
from schemas.errors import JobFailed
from tests.workers.runs import query, run, small_config
from tests.workers.spawned import on_ranks
from workers.checkpoints import CheckpointWriter, drop_checkpoints, is_complete
from workers.control.resume import best_checkpoint, newest_checkpoint
from workers.ranks import Ranks
from workers.rundir import RunDir


def text(content: str):
    return lambda directory: (directory / "weights").write_text(content)


def test_nothing_is_whole_before_it_is_written_and_it_has_its_name_only_then(tmp_path):
    go, writer = threading.Event(), CheckpointWriter(tmp_path)
    writer.begin(7, lambda directory: (go.wait(), text("seven")(directory)))
    assert writer.whole() == [] and not list(tmp_path.glob("step_*"))
    go.set()
    assert writer.whole(wait=True) == [(7, str(tmp_path / "step_000007"))]
    assert is_complete(tmp_path / "step_000007") and (tmp_path / "step_000007" / "weights").read_text() == "seven"
    assert writer.whole(wait=True) == [] and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_write_that_fails_names_its_step_and_leaves_nothing(tmp_path, kind):
    def full(directory: Path) -> None:
        text("half")(directory)
        raise kind("No space left on device")

    writer = CheckpointWriter(tmp_path)
    writer.begin(3, full)
    with pytest.raises(JobFailed, match=r"checkpoint of step 3: cannot be written in .*No space left on device"):
        writer.whole(wait=True)
    assert not list(tmp_path.iterdir())


def test_a_durable_one_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed = []

    def fsync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        flushed.append((path.name, [each.name for each in tmp_path.glob("step_*")]))

    monkeypatch.setattr(os, "fsync", fsync)
    writer = CheckpointWriter(tmp_path, durable=True)
    writer.begin(7, text("seven"))
    writer.whole(wait=True)
    before, named = [], ["step_000007"]
    assert sorted(flushed[:2]) == [("trainer_state.json", before), ("weights", before)]
    assert flushed[2:] == [(".step_000007.partial", before), (tmp_path.name, named)]


def test_what_a_killed_writer_left_is_swept(tmp_path):
    (tmp_path / ".step_000002.partial").mkdir()
    (tmp_path / ".step_000002.partial" / "weights").write_text("half")
    writer = CheckpointWriter(tmp_path)
    writer.begin(4, text("four"))
    writer.whole(wait=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_a_copy_that_raises_ends_the_run_and_the_one_before_is_what_it_resumes_from(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine, snapshots = roles["trainer"].engine, iter(range(9))
        snapshot = engine.snapshot

        def failing():
            write, number = snapshot(), next(snapshots)

            def half(directory: Path) -> None:
                write(directory)
                if number == 1:
                    raise OSError("No space left on device")

            return half

        engine.snapshot = failing

    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3, checkpointing__period=1)
    with pytest.raises(JobFailed, match="checkpoint of step 2: cannot be written in .*No space left on device"):
        run(config, tmp_path / "run", break_roles=break_roles)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if is_complete(path)] == ["step_000001"]
    run_dir = run(config, tmp_path / "run", resume=True)
    assert query(run_dir, "select detail from events where kind = 'epoch_opened'")[0][0].count('"after_step": 1')
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_killed_while_it_is_written_or_removed_the_loader_picks_the_one_before(tmp_path):
    go, writer = threading.Event(), CheckpointWriter(tmp_path)
    with open_plane("memory://") as plane:
        for step in (1, 2, 3):
            writer.begin(step, text(str(step)))
            plane.record_checkpoint(*writer.whole(wait=True)[0])
        writer.begin(4, lambda directory: (text("half")(directory), go.wait()))
        (tmp_path / "step_000003" / "trainer_state.json").unlink()  # what is left of it halfway through its removal
        newest = newest_checkpoint(plane, RunDir(tmp_path.parent))
        go.set()
        writer.whole(wait=True)
    assert newest == (2, str(tmp_path / "step_000002"))


def test_a_run_that_was_copied_goes_on_from_its_own_checkpoint_and_without_any_it_does_not_start_over(
    checkpoints, prompt_file, tmp_path
):
    config = small_config(checkpoints, prompt_file, checkpointing__period=2)
    shutil.copytree(run(config, tmp_path / "run").path, tmp_path / "copy")
    longer = small_config(checkpoints, prompt_file, checkpointing__period=2, grpo__max_num_steps=4)
    copy = run(longer, tmp_path / "copy", resume=True)
    assert query(copy, "select detail from events where kind = 'epoch_opened'")[0][0].count('"after_step": 3')
    shutil.rmtree(copy.checkpoints)
    with pytest.raises(JobFailed, match=r"checkpoints of steps 2, 3, 4, and none is whole in .*copy/checkpoints"):
        run(longer, tmp_path / "copy", resume=True)


def write_parts(ranks: Ranks, directory: str) -> list[object]:
    writer = CheckpointWriter(Path(directory), ranks)
    released = threading.Event()

    def write(partial: Path) -> None:
        if not ranks.leader:
            released.wait()
        (partial / f"part_{ranks.rank}").write_text("x")

    writer.begin(1, write)
    before = writer.whole()
    ranks.share()  # the leader has looked while the others had not written
    released.set()
    return [before, [step for step, _ in writer.whole(wait=True)] if ranks.leader else None]


def test_the_leader_waits_for_the_parts_of_all_ranks(tmp_path):
    found = on_ranks(3, tmp_path / "ranks", write_parts, str(tmp_path / "checkpoints"))
    assert found[0] == [[], [1]]
    [whole] = (tmp_path / "checkpoints").iterdir()
    assert sorted(path.name for path in whole.iterdir()) == ["part_0", "part_1", "part_2", "trainer_state.json"]


def whole(directory: Path, *steps: int) -> None:
    for step in steps:
        path = directory / f"step_{step:06d}"
        path.mkdir()
        (path / "trainer_state.json").touch()


def left(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in directory.iterdir())


def test_the_newest_and_the_best_stay(tmp_path):
    whole(tmp_path, 1, 2, 3, 4, 5)
    drop_checkpoints(tmp_path, {1, 2, 3, 4, 5}, keep=2, best=1)
    assert left(tmp_path) == [1, 4, 5]


def test_what_an_earlier_life_left_does_not_push_out_what_the_run_would_resume_from(tmp_path):
    whole(tmp_path, 2, 3, 6)  # step 6 was written, and the run was killed before it was recorded
    drop_checkpoints(tmp_path, {2, 3}, keep=1)
    assert left(tmp_path) == [3, 6]


def test_a_checkpoint_that_is_half_removed_is_not_complete(tmp_path, monkeypatch):
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    whole(tmp_path, 1, 2)
    monkeypatch.setattr("workers.checkpoints.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        drop_checkpoints(tmp_path, {1, 2}, keep=1)
    assert not is_complete(tmp_path / "step_000001") and is_complete(tmp_path / "step_000002")


@pytest.mark.parametrize(("higher", "best"), [(True, 2), (False, 3)])
def test_the_best_is_the_newest_with_the_best_finite_value_that_is_still_there(tmp_path, higher, best):
    values = {1: 9.0, 2: 3.0, 3: 1.0, 4: float("nan"), 5: 2.0}
    with open_plane("memory://") as plane:
        plane.create_partition("train", ["prompt"])
        for step, value in values.items():
            plane.put("train", [f"s{step}"], {"prompt": ["p"]})
            plane.seal(step, [f"s{step}"])
            plane.record_trained(step, {"accuracy": value})
            path = tmp_path / f"step_{step:06d}"
            if step != 1:  # dropped
                path.mkdir()
                (path / "trainer_state.json").touch()
            plane.record_checkpoint(step, str(path))
        keeping = CheckpointingConfig(metric_name="accuracy", higher_is_better=higher)
        assert best_checkpoint(plane, RunDir(tmp_path.parent), keeping) == best
        assert best_checkpoint(plane, RunDir(tmp_path.parent), CheckpointingConfig(metric_name="no such")) is None
        assert best_checkpoint(plane, RunDir(tmp_path.parent), CheckpointingConfig()) is None


def test_a_run_keeps_its_best_checkpoint_beside_the_newest(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints,
        prompt_file,
        grpo__max_num_steps=4,
        checkpointing={"period": 1, "keep": 1, "metric_name": "step", "higher_is_better": False},
    )
    run_dir = run(config, tmp_path / "run")
    assert sorted(path.name for path in run_dir.checkpoints.iterdir()) == ["step_000001", "step_000004"]
    recorded = "select step from events where kind = 'checkpointed' order by 1"
    assert query(run_dir, recorded) == [(1,), (2,), (3,), (4,)]
