"""A store opened again: after closing, after a crash at any point, beside its writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from dataplane import DataPlane, open_plane
from dataplane.backends.local import LocalStorage
from schemas.errors import InputError, LeaseLost, MissingRows, StoreLocked
from tests.dataplane.state import catalog_of, durable
from tests.dataplane.stores import COLUMNS, FakeClock, Store, pipeline
from tests.dataplane.test_claims import admit, claimed, generated
from tests.dataplane.test_run_verbs import train_step


def test_a_closed_store_opens_with_everything_in_it(plane: DataPlane, store: Store) -> None:
    train_step(plane, 1, admit(plane, 3))
    plane.record_checkpoint(1, "c/1")
    before = durable(catalog_of(plane))
    plane.close()
    with store.open() as again:
        assert durable(catalog_of(again)) == before
        assert again.get("train", ["s2", "s0"], ["teacher_logprobs"]).values("teacher_logprobs") == [[0.0, -1.0]] * 2
        assert again.members(1) == ["s0", "s1", "s2"]


def test_after_a_crash_leases_are_over_and_rows_are_ready(plane: DataPlane, store: Store) -> None:
    admit(plane, 3)
    claim = claimed(plane, "generate", limit=2)
    claim.commit(generated(1), sample_ids=["s0"])
    again = store.crash(plane)
    assert (retry := claimed(again, "generate")).sample_ids == ["s1", "s2"]
    assert retry.attempt == 2
    assert claimed(again, "teacher").sample_ids == ["s0"]


def test_a_claim_of_the_host_that_died_is_refused_by_the_next(plane: DataPlane, store: Store) -> None:
    admit(plane, 1)
    claim = claimed(plane, "generate")
    again = store.crash(plane)
    with pytest.raises(LeaseLost):
        again._writer.renew(claim.id, 60)


def test_a_block_without_its_record_is_invisible_and_the_next_writer_deletes_it(plane: DataPlane, store: Store) -> None:
    admit(plane, 2)
    plane._write("train", ["s0"], {})
    assert len(store.blocks()) == 2
    again = store.crash(plane)
    assert (again.ids("train"), again.blocks().num_rows, len(store.blocks())) == (["s0", "s1"], 1, 1)


def test_a_second_writer_is_refused_naming_the_first(plane: DataPlane, store: Store) -> None:
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        store.open()
    plane.close()
    store.open().close()


def test_a_follower_sees_what_was_committed_when_it_refreshed(plane: DataPlane, store: Store) -> None:
    admit(plane, 2)
    with store.open("r") as follower:
        claim = claimed(plane, "generate")
        claim.commit(generated(1), sample_ids=["s0"])
        assert follower.rows("train", have=["input_ids"]) == []
        follower.refresh()
        assert follower.rows("train", have=["input_ids"]) == ["s0"]
        assert follower.get("train", ["s0"], ["input_ids"]).values("input_ids") == [[1, 2]]
        assert follower.row_state("train").column("claimed").to_pylist() == [False, True]
        assert follower.progress("train") == plane.progress("train")


def test_a_follower_counts_a_dead_writers_leases_as_over(plane: DataPlane, store: Store, clock: FakeClock) -> None:
    admit(plane, 1)
    claimed(plane, "generate", lease_s=30)
    with store.open("r") as follower:
        assert follower.progress("train").tasks["generate"].claimed == 1
        clock.sleep(30)
        follower.refresh()
        assert follower.progress("train").tasks["generate"].ready == 1


def test_a_follower_of_cleared_rows_says_they_are_gone(plane: DataPlane, store: Store) -> None:
    admit(plane, 1)
    with store.open("r") as follower:
        plane.clear("train", ["s0"])
        with pytest.raises(MissingRows, match="'s0'"):
            follower.get("train", ["s0"], ["prompt"])


def test_a_follower_of_replaced_rows_gets_the_new_values(plane: DataPlane, store: Store) -> None:
    admit(plane, 1)
    with store.open("r") as follower:
        plane.replace("train", ["s0"], {"prompt": ["new"]})
        assert follower.get("train", ["s0"], ["prompt"]).values("prompt") == ["new"]


def test_reading_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no store here"):
        open_plane(tmp_path / "nothing", mode="r")
    assert not (tmp_path / "nothing").exists()


def test_a_journal_cut_at_any_byte_opens_with_every_whole_record(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane", clock=FakeClock()) as plane:
        plane.create_partition("train", {"reward": COLUMNS["reward"]})
        plane.declare_task("train", "judge", ["reward"])
        plane.put("train", ["a", "b"], {"reward": [1.0, 2.0]})
        claimed(plane, "judge", limit=1).commit()
        kinds = plane.events().column("kind").to_pylist()
    (segment,) = (tmp_path / "plane" / "journal").iterdir()
    whole = segment.read_bytes()
    seen = set()
    for size in range(len(whole)):
        segment.write_bytes(whole[:size])
        with open_plane(tmp_path / "plane", mode="r") as follower:
            found = follower.events().column("kind").to_pylist()
        assert found == kinds[: len(found)]
        seen.add(len(found))
    assert seen == set(range(len(kinds)))


def test_the_writer_cuts_a_torn_tail_and_goes_on(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        admit(pipeline(plane), 2)
        events = plane.events().num_rows
    (segment,) = (tmp_path / "plane" / "journal").iterdir()
    segment.write_bytes(segment.read_bytes()[:-3])
    with open_plane(tmp_path / "plane", mode="r") as follower:
        assert follower.ids("train") == []
    with open_plane(tmp_path / "plane") as plane:
        admit(plane, 3)
        assert (plane.events().num_rows, plane.ids("train")) == (events + 1, ["s0", "s1", "s2"])


_WRITER = """
import sys
from dataplane import open_plane
from tests.dataplane.stores import pipeline
plane = pipeline(open_plane(sys.argv[1]))
for i in range(10_000):
    ids = [f"s{i}-{k}" for k in range(1 + i % 3)]
    plane.put("train", ids, {"prompt": ids, "input_ids": [[i] * (i % 5)] * len(ids)}, put_id=str(i))
    claim = plane.claim("train", "teacher", limit=2)
    claim.commit({"teacher_logprobs": [[0.5] * (i % 5)] * len(claim)}, failed=None)
    if i % 7 == 6:
        plane.clear("train", ids[:1])
    print(i, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [3, 17, 40])
def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path, acknowledged: int) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "plane")]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == acknowledged:
            break
    with pytest.raises(StoreLocked, match=f"process {writer.pid}"):
        open_plane(tmp_path / "plane")
    os.kill(writer.pid, signal.SIGKILL)
    last = max(map(int, writer.stdout.read().split()), default=acknowledged)
    writer.stdout.close()
    writer.wait()
    with open_plane(tmp_path / "plane") as plane:
        ids = [f"s{i}-{k}" for i in range(last + 1) for k in range(1 + i % 3) if not (i % 7 == 6 and k == 0)]
        assert set(ids) <= set(plane.ids("train"))
        assert plane.get("train", ids, ["input_ids"]).values("input_ids") == [
            [int(i[1:].split("-")[0])] * (int(i[1:].split("-")[0]) % 5) for i in ids
        ]
        assert len(plane.rows("train", have=["teacher_logprobs"])) >= last
        assert plane.progress("train").tasks["teacher"].claimed == 0
        assert set(plane.blocks().column("id").to_pylist()) <= set(LocalStorage(tmp_path / "plane").blocks())


def test_an_inspector_beside_the_writer_sees_only_whole_rows(store: Store) -> None:
    writer = pipeline(store.open())
    stop, seen, wrong = threading.Event(), [], []

    def inspect() -> None:
        with store.open("r") as follower:
            while not stop.is_set():
                follower.refresh()
                for row in follower.table("train", ["prompt", "reward"]).to_pylist():
                    if row["reward"] is not None and row["prompt"] != str(row["reward"]):
                        wrong.append(row)
                seen.append(len(follower.ids("train")))

    inspector = threading.Thread(target=inspect)
    inspector.start()
    i = -1
    while (i := i + 1) < 60 or len(seen) < 2:
        writer.put("train", [f"s{i}"], {"prompt": [str(float(i))], "reward": [float(i)]})
        writer.replace("train", ["s0"], {"prompt": [str(float(i))], "reward": [float(i)]})
        if i > 10:
            writer.clear("train", [f"s{i - 10}"])
    stop.set()
    inspector.join()
    writer.close()
    assert wrong == [] and seen == sorted(seen[:1]) + seen[1:] and len(seen) > 1


def test_batches_hold_maps_and_no_descriptors(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        pipeline(plane)
        before = len(os.listdir("/proc/self/fd"))
        ids = [f"s{i}" for i in range(30)]
        for i in ids:
            plane.put("train", [i], {"input_ids": [list(range(50_000))]})
        held = [plane.get("train", [i], ["input_ids"], copy=False) for i in ids]
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        assert sum(int(batch.lengths()[0]) for batch in held) == 30 * 50_000


def test_durability_power_writes_the_same_store(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane", durability="power") as plane:
        train_step(pipeline(plane), 1, admit(plane, 2))
        before = durable(catalog_of(plane))
    with open_plane(tmp_path / "plane", mode="r") as plane:
        assert durable(catalog_of(plane)) == before


def test_opening_again_and_again_leaves_no_files_or_descriptors(tmp_path: Path) -> None:
    counts = []
    for round_ in range(6):
        with open_plane(tmp_path / "plane") as plane:
            pipeline(plane).put("train", ["a"], {"prompt": [f"round {round_}"]})
            assert plane.get("train", ["a"], ["prompt"], copy=False).values("prompt") == [f"round {round_}"]
            plane.clear("train", ["a"])
        counts.append((len(list((tmp_path / "plane").rglob("*"))), len(os.listdir("/proc/self/fd"))))
    assert counts[1:] == counts[1:2] * 5


@pytest.mark.parametrize("verb", ["put", "commit"])
def test_an_interrupt_just_after_the_journal_took_the_record_leaves_its_block(tmp_path, monkeypatch, verb):
    with open_plane(tmp_path) as plane:
        plane.create_partition("p", {"x": pa.int32(), "y": pa.int32()})
        plane.declare_task("p", "t", ["x"], ["y"])
        plane.put("p", ["a"], {"x": [1]})
        claim, inner = plane.claim("p", "t"), getattr(plane._host, verb)

        def interrupted(request):
            inner(request)
            raise KeyboardInterrupt

        monkeypatch.setattr(plane._host, verb, interrupted)
        with pytest.raises(KeyboardInterrupt):
            plane.put("p", ["b"], {"x": [2]}) if verb == "put" else claim.commit({"y": [3]})
    with open_plane(tmp_path) as plane:
        rows = ("b", "x", 2) if verb == "put" else ("a", "y", 3)
        assert plane.get("p", [rows[0]], [rows[1]]).values(rows[1]) == [rows[2]]
