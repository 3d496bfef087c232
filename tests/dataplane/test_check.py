"""``check`` finds what is wrong with a store, and ``repair`` keeps what is whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from dataplane import open_plane
from dataplane.backends.local import LocalStorage
from dataplane.backends.redis import RedisStorage
from dataplane.backends.storage import Storage
from dataplane.upkeep.check import Checked, check
from dataplane.upkeep.repair import repair
from tests.dataplane.servers import shared_server
from tests.dataplane.stores import pipeline
from tests.dataplane.test_claims import admit, claimed, generated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of three rows, closed: two blocks."""
    with open_plane(tmp_path / "plane") as plane:
        admit(pipeline(plane), 3)
        claimed(plane, "generate").commit(generated(3))
    return tmp_path / "plane"


def looked(folder: Path) -> Checked:
    return check(LocalStorage(folder, create=False))


def mended(folder: Path) -> list[str]:
    done = repair(lambda: LocalStorage(folder))
    assert looked(folder).problems == []
    return done


def kinds(found: Checked) -> list[str]:
    return [problem.kind for problem in found.problems]


def first_block(folder: Path) -> Path:
    return min((folder / "blocks").iterdir())


def test_a_store_as_it_was_left_is_clean(folder: Path) -> None:
    found = looked(folder)
    assert (found.problems, found.records, found.blocks, found.live) == ([], 8, 2, False)


def test_every_flipped_byte_of_values_is_found(folder: Path) -> None:
    block = first_block(folder)
    whole = bytearray(block.read_bytes())
    values = [at for at in range(len(whole)) if whole[at : at + 6] == b"s0s1s2"]
    assert len(values) == 2  # the prompts and the ids
    for at in range(values[0], values[0] + 6):
        whole[at] ^= 0x10
        block.write_bytes(whole)
        assert kinds(looked(folder)) == ["damaged_block"]
        whole[at] ^= 0x10


def test_a_block_cut_at_every_length_is_found(folder: Path) -> None:
    block = first_block(folder)
    whole = block.read_bytes()
    for size in range(0, len(whole), 7):
        block.write_bytes(whole[:size])
        assert kinds(looked(folder)) == ["damaged_block"], size


def test_a_missing_block_is_found_and_its_rows_are_lost(folder: Path) -> None:
    first_block(folder).unlink()
    assert kinds(looked(folder)) == ["missing_block"]
    assert "3 rows: cleared prompt" in mended(folder)[0]
    with open_plane(folder, mode="r") as plane:
        assert plane.get("train", ["s2"], ["input_ids"]).values("input_ids") == [[1, 2]]
        assert [e.split(":")[0] for e in plane.row_state("train").column("error").to_pylist()] == ["lost"] * 3


def test_a_damaged_column_is_cleared_and_the_others_of_its_block_stay(folder: Path) -> None:
    block = max((folder / "blocks").iterdir())
    data = block.read_bytes()
    at = data.index(b"\0\0\0\xbf")  # −0.5, in generation_logprobs
    block.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    assert [p.where.split()[1] for p in looked(folder).problems] == ["generation_logprobs"]
    mended(folder)
    with open_plane(folder, mode="r") as plane:
        assert plane.rows("train", have=["generation_logprobs"]) == []
        assert plane.get("train", ["s1"], ["input_ids"]).values("input_ids") == [[1, 2]]


def test_an_orphan_in_a_closed_store_is_a_problem_and_repair_deletes_it(folder: Path) -> None:
    (folder / "blocks" / "orphan.arrow").write_bytes(first_block(folder).read_bytes())
    found = looked(folder)
    assert (kinds(found), found.clean) == (["orphaned_block"], False)
    assert mended(folder) == ["deleted block orphan, which nobody needs"]


def test_what_a_crash_leaves_is_no_problem_and_goes_with_the_next_writer(folder: Path) -> None:
    plane = open_plane(folder)
    plane._write("train", ["s0"], {})
    plane.storage.append(b"\x10\0\0")
    plane.storage.close()
    found = looked(folder)
    assert (kinds(found), found.clean) == (["torn_tail", "orphaned_block"], True)
    open_plane(folder).close()
    assert looked(folder).problems == []


def test_a_journal_cut_at_every_byte_is_found_and_what_is_whole_is_kept(folder: Path) -> None:
    (segment,) = (folder / "journal").iterdir()
    whole, lock = segment.read_bytes(), (folder / "lock").read_bytes()
    blocks = {file.name: file.read_bytes() for file in (folder / "blocks").iterdir()}
    kept = set()
    for size in range(0, len(whole), 11):
        segment.write_bytes(whole[:size])
        (folder / "lock").write_bytes(lock)
        assert not looked(folder).clean, size
        mended(folder)
        with open_plane(folder, mode="r") as plane:
            found = [name for name, schema in plane.partitions().items() if "input_ids" in schema.names]
            held = [plane.rows(name, have=["input_ids"]) for name in found]
            assert [ids for ids in held if ids] == [["s0", "s1", "s2"]], size
            kept.add(found[0])
        for name, data in blocks.items():
            (folder / "blocks" / name).write_bytes(data)
        for file in (folder / "blocks").iterdir():
            if file.name not in blocks:
                file.unlink()
    assert len(kept) > 1 and "train" in kept  # before the partition was declared, a block becomes one of its own


def test_of_two_attempts_without_records_the_later_counts_and_what_was_made_of_the_first_is_hidden(tmp_path) -> None:
    folder = tmp_path / "plane"
    with open_plane(folder) as plane:
        admit(pipeline(plane), 1)
        whole = (folder / "journal" / "00000000000000000000.log").stat().st_size
        for tokens in ([1, 2], [7, 8]):
            claimed(plane, "generate").commit({"input_ids": [tokens], "generation_logprobs": [[0.0, -0.5]]})
            if tokens == [1, 2]:
                claimed(plane, "teacher").commit({"teacher_logprobs": [[0.0, -1.0]]})
                plane.requeue("train", ["s0"], ["generate", "teacher"])
    os.truncate(folder / "journal" / "00000000000000000000.log", whole)
    mended(folder)
    with open_plane(folder) as plane:
        assert plane.rows("train", have=["teacher_logprobs"]) == [] and plane.claim("train", "generate") is None
        assert claimed(plane, "teacher").batch.values("input_ids") == [[7, 8]]


def test_a_damaged_record_before_a_snapshot_costs_nothing_but_its_history(folder: Path) -> None:
    with open_plane(folder) as plane:
        plane._writer.snapshot(False)
        plane.put("train", ["late"], {"prompt": ["x"]})
    (segment,) = (folder / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(data)
    assert "journal_damaged" in kinds(looked(folder))
    mended(folder)
    with open_plane(folder, mode="r") as plane:
        assert plane.ids("train") == ["s0", "s1", "s2", "late"]
        assert plane.get("train", ["s0", "late"], ["prompt"]).values("prompt") == ["s0", "x"]


def test_a_damaged_snapshot_is_made_again(folder: Path) -> None:
    with open_plane(folder) as plane:
        plane._writer.snapshot(False)
    (snapshot,) = (folder / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-5])
    assert kinds(looked(folder)) == ["snapshot_damaged"]
    assert mended(folder) == ["made the snapshot again from the journal"]


def test_a_store_that_is_being_written_is_looked_at_without_a_complaint(folder: Path) -> None:
    with open_plane(folder) as plane:
        for i in range(30):
            plane.put("train", [f"n{i}"], {"prompt": ["x"]})
            plane._write("train", ["s0"], {})
            plane.clear("train", [f"n{i - 1}"])
            found = looked(folder)
            assert (found.problems, found.live) == ([], True)


@pytest.mark.parametrize("seed", range(40))
def test_a_store_from_a_hostile_source_is_an_error_and_never_a_crash(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in draw.sample(files, 2):
        data = bytearray(file.read_bytes() or b"x")
        for _ in range(draw.randint(1, 5)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
    looked(folder)
    mended(folder)


def test_the_same_on_redis(tmp_path: Path) -> None:
    url = f"{shared_server().url}?prefix={tmp_path.name}"

    def opened() -> Storage:
        return RedisStorage(url)

    with open_plane(url) as plane:
        admit(pipeline(plane), 3)
        claimed(plane, "generate").commit(generated(3))
        first, second = plane.blocks().column("id").to_pylist()
    storage = RedisStorage(url)
    assert check(storage).problems == []
    chunk = storage._chunk(second, 0)
    storage._client.setrange(chunk, 400, b"junk")
    storage._client.delete(storage._chunk(first, 0))
    assert kinds(check(storage)) == ["missing_block", "damaged_block"]
    repair(opened)
    assert check(storage).problems == []
    storage.close()
