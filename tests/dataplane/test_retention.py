"""Contract of history: snapshots, trimming, merging, and clearing of columns and steps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dataplane import DataPlane, open_plane
from dataplane.backends.local import LocalStorage
from dataplane.catalog.journal import Place
from dataplane.catalog.snapshot import pack, unpack
from dataplane.upkeep.check import check
from schemas.errors import CorruptData, InputError, MissingRows, StoreError
from tests.dataplane.servers import shared_server
from tests.dataplane.state import catalog_of, durable
from tests.dataplane.stores import Store, pipeline
from tests.dataplane.test_claims import admit, claimed, generated

READS = ["prompt", "input_ids", "generation_logprobs", "teacher_logprobs", "reward"]


def three_steps(plane: DataPlane) -> None:
    """Steps 1, 2 and 3 of 2, 3 and 2 rows, all trained; row s4 of step 2 failed; the checkpoint covers 1 and 2."""
    plane.put("train", [f"s{i}" for i in range(7)], {"prompt": [f"p{i}" for i in range(7)]})
    claimed(plane, "generate").commit(generated(6), failed={"s4": "engine_error: no"})
    plane.requeue("train", ["s4"], ["generate"])
    plane.fail("train", {"s4": "lost: gone"})
    claimed(plane, "teacher").commit({"teacher_logprobs": [[0.0, -float(i)] for i in range(6)]})
    for step, ids in ((1, ["s1", "s0"]), (2, ["s2", "s3", "s4"]), (3, ["s6", "s5"])):
        plane.seal(step, ids)
        if claim := plane.claim("train", "train", step=step):
            claim.commit({"reward": [float(step)] * len(claim)})
        plane.record_trained(step, {"loss": 1.0 / step})
    plane.record_checkpoint(2, "c/2")


def everything(plane: DataPlane) -> dict[str, list[object]]:
    return plane.table("train", ["sample_id", *READS]).to_pydict()


def test_a_covered_step_is_merged_into_one_block_and_reads_the_same(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    before, state = everything(plane), plane.row_state("train")
    assert plane.retain() == (0, 0, 2)
    assert everything(plane) == before and plane.row_state("train") == state
    merged = {row["live_rows"]: row["columns"] for row in plane.blocks().to_pylist() if row["task"] == "merge"}
    assert merged == {2: READS, 3: READS}
    assert len(store.blocks()) == plane.blocks().num_rows
    assert plane.retain() == (0, 0, 0)


def test_merged_rows_read_the_same_after_opening_again(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    plane.retain()
    before, state = everything(plane), durable(catalog_of(plane))
    plane.close()
    with store.open() as again:
        assert everything(again) == before and durable(catalog_of(again)) == state


def test_a_follower_that_looked_before_the_merge_finds_the_values_after_it(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    with store.open("r") as follower:
        plane.retain()
        assert follower.get("train", ["s3", "s0"], ["prompt"]).values("prompt") == ["p3", "p0"]


def test_claims_by_value_see_a_value_changed_after_its_row_was_merged() -> None:
    """The new value's block takes the index in the catalog that the old one's had before the merge."""
    with open_plane("memory://") as plane:
        plane.create_partition("p", {"kind": pa.string(), "x": pa.int32()})
        plane.declare_task("p", "use", ["kind"])
        plane.put("p", ["a", "b"], {"kind": ["u", "v"]})
        plane.put("p", ["a", "b"], {"x": [1, 2]})
        assert plane.claim("p", "use", where={"kind": "nothing"}) is None  # from here on values are known by row
        plane.seal(1, ["a", "b"], "p")
        plane.record_trained(1, {})
        plane.record_checkpoint(1, "c/1")
        assert plane.retain(partition="p").merged == 1
        plane.put("p", ["c"], {"x": [3]})
        plane.replace("p", ["a"], {"kind": ["w"]})
        assert plane.claim("p", "use", where={"kind": "u"}) is None
        assert plane.claim("p", "use", where={"kind": ["v", "w"]}).sample_ids == ["a", "b"]


def test_old_steps_go_and_the_events_begin_later(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    seen = plane.events().num_rows
    follower = store.open("r")
    assert plane.retain(steps=1) == (2, 0, 1)
    assert plane.ids("train") == ["s2", "s3", "s4", "s5", "s6"]
    assert plane.events().num_rows == 0
    plane.put("train", ["t"], {"prompt": ["new"]})
    assert plane.events().column("seq").to_pylist() == [seen + 2]
    assert plane.events(with_ids=True).column("sample_ids").to_pylist() == [["t"]]
    follower.refresh()
    assert follower.ids("train") == plane.ids("train")
    with pytest.raises(MissingRows, match="never put, or cleared whole"):
        plane.get("train", ["s0"], ["prompt"])
    follower.close()


def test_a_trimmed_store_opens_with_everything_in_it(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    plane.retain(steps=1)
    admit(plane, 1)
    assert claimed(plane, "generate").attempt == 1
    before = durable(catalog_of(plane))
    again = store.crash(plane)
    assert durable(catalog_of(again)) == before
    assert claimed(again, "generate").attempt == 2


def test_facts_stay_however_far_the_journal_is_trimmed(plane: DataPlane, store: Store) -> None:
    plane.record_fact("recipe", "run: {seed: 1}")
    plane.record_fact("teachers", "[]")
    plane.record_fact("recipe", "run: {seed: 2}")
    plane.record_fact("recipe", "run: {seed: 2}")
    assert plane.events()["kind"].to_pylist().count("fact_recorded") == 3
    plane._writer.snapshot(True)
    assert len(plane.events()) == 0
    plane = store.crash(plane)
    assert plane.facts() == {"recipe": "run: {seed: 2}", "teachers": "[]"} == store.open("r").facts()


def test_heavy_columns_go_before_their_rows_and_reading_says_so(plane: DataPlane, store: Store) -> None:
    three_steps(plane)
    assert plane.retain(heavy=["teacher_logprobs"], heavy_steps=1) == (0, 2, 2)
    with pytest.raises(MissingRows, match="column.*'teacher_logprobs' of sample 's1': cleared, as retention asks"):
        plane.get("train", ["s1"], ["teacher_logprobs"])
    assert plane.get("train", ["s1"], ["prompt"]).values("prompt") == ["p1"]
    assert plane.rows("train", have=["teacher_logprobs"]) == ["s2", "s3", "s5", "s6"]


def test_columns_of_an_uncovered_step_stay(plane: DataPlane) -> None:
    three_steps(plane)
    with pytest.raises(InputError, match="belongs to step 3, which no checkpoint covers"):
        plane.clear("train", ["s1", "s5"], ["reward"])
    assert plane.clear("train", ["s1", "s4"], ["reward"]) == 1
    assert plane.clear("train", ["s1", "s4"], ["reward"]) == 0


def test_a_cleared_column_may_be_written_again(plane: DataPlane) -> None:
    admit(plane, 2)
    plane.clear("train", ["s0"], ["prompt"])
    assert claimed(plane, "generate").sample_ids == ["s1"]
    plane.put("train", ["s0"], {"prompt": ["again"]})
    assert claimed(plane, "generate").batch.values("prompt") == ["again"]


def test_a_snapshot_gives_back_the_catalog_it_was_made_of(store: Store) -> None:
    with store.open() as plane:
        three_steps(pipeline(plane))
        plane.put("train", ["x"], {"prompt": ["x"]})
        claimed(plane, "generate")
        catalog = catalog_of(plane)
        data = b"".join(pack(catalog, Place(5, 2)))  # type: ignore[arg-type]
        again, place = unpack(data)
        assert (durable(again), place) == (durable(catalog), (5, 2))
        assert pack(again, place) == pack(catalog, place)


def test_a_snapshot_cut_or_changed_anywhere_is_refused(plane: DataPlane) -> None:
    admit(plane, 2)
    data = b"".join(pack(catalog_of(plane), Place(5, 2)))  # type: ignore[arg-type]
    for at in range(len(data)):
        with pytest.raises(StoreError):
            unpack(data[:at])
        if not 8 <= at < 24:  # the place is not part of what is checked
            with pytest.raises(StoreError):
                unpack(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])


def test_a_damaged_snapshot_is_passed_over_while_the_whole_journal_is_there(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        admit(pipeline(plane), 2)
        plane._writer.snapshot(False)
    (snapshot,) = (tmp_path / "plane" / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    with open_plane(tmp_path / "plane") as plane:
        assert plane.ids("train") == ["s0", "s1"]
        plane._writer.snapshot(True)
    (snapshot,) = (tmp_path / "plane" / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    with pytest.raises(CorruptData, match="checksum differs"):
        open_plane(tmp_path / "plane")


def test_a_store_saved_elsewhere_and_back_is_the_same(plane: DataPlane, store: Store, tmp_path: Path) -> None:
    three_steps(plane)
    plane.retain(steps=1)
    admit(plane, 2)
    redis = f"{shared_server().url}?prefix={tmp_path.name}-saved"
    assert plane.save(redis) == plane.blocks().num_rows
    with open_plane(redis, mode="r") as saved:
        saved.save(tmp_path / "back")
    assert check(LocalStorage(tmp_path / "back")).problems == []
    with open_plane(tmp_path / "back") as back:
        assert everything(back) == everything(plane)
        assert back.row_state("train").drop("claimed") == plane.row_state("train").drop("claimed")
    with pytest.raises(InputError, match="there is a store already"):
        plane.save(tmp_path / "back")


def test_a_long_journal_is_opened_from_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.catalog.claims.SNAPSHOT_BYTES", 2000)
    with open_plane(tmp_path / "plane") as plane:
        pipeline(plane)
        for i in range(60):
            plane.put("train", [f"s{i}"], {"prompt": ["x"]})
        before, position = durable(catalog_of(plane)), plane._host._journal.position  # type: ignore[union-attr]
        assert plane.events().num_rows == 65
    with open_plane(tmp_path / "plane", mode="r") as follower:
        journal = follower._host._journal  # type: ignore[union-attr]
        assert 0 < journal.snapshot_at < position and durable(catalog_of(follower)) == before
        assert len(list((tmp_path / "plane" / "snapshots").iterdir())) == 1
