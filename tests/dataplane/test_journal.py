"""Frames: torn tails end the reading, damage is an error; segments roll."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane import open_plane
from dataplane.backends.local import LocalStorage
from dataplane.catalog.journal import Journal, frame, frames
from schemas.errors import CorruptData, InputError, StoreError
from schemas.records import Checkpointed, Noted, StepSealed

RECORDS = [Noted(time=1.5, name="a"), StepSealed(time=2.0, step=1, partition="train", runs=[3, 2, 9, 1])]


def test_frames_give_back_their_records_and_ends() -> None:
    data = b"".join(map(frame, RECORDS))
    assert [record for _, record in frames(data)] == RECORDS
    assert [end for end, _ in frames(data, start=100)] == [100 + len(frame(RECORDS[0])), 100 + len(data)]


def test_a_frame_cut_anywhere_is_a_torn_tail() -> None:
    first, second = map(frame, RECORDS)
    data = first + second
    whole = [len(list(frames(data[:size]))) for size in range(len(data) + 1)]
    assert whole == [0] * len(first) + [1] * len(second) + [2]


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    assert len(list(frames(frame(RECORDS[0]) + bytes(500)))) == 1


def test_every_flipped_byte_in_the_middle_is_found() -> None:
    data = bytearray(b"".join(map(frame, RECORDS)))
    for at in range(len(frame(RECORDS[0]))):
        data[at] ^= 0x40
        with pytest.raises((CorruptData, StoreError), match="record at byte 0"):
            list(frames(bytes(data)))
        data[at] ^= 0x40


def test_segments_roll_and_read_as_one(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "plane", segment_bytes=100)
    storage.lock()
    journal = Journal(storage)
    for step in range(10):
        journal.append(Checkpointed(time=float(step), step=step, path="p"))
    assert len(list((tmp_path / "plane" / "journal").iterdir())) == 5
    reader = Journal(storage)
    assert [record.step for record in reader.read()] == list(range(10))
    assert (reader.position, reader.seq) == (journal.position, 10)
    assert storage.journal(journal.position - 5) == storage.journal()[-5:]
    storage.close()


def test_cutting_drops_later_segments(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "plane", segment_bytes=10)
    storage.lock()
    for part in (b"0123456789ab", b"cdefghijklmn", b"op"):
        storage.append(part)
    storage.cut(14)
    storage.append(b"XY")
    assert storage.journal() == b"0123456789abcdXY"
    storage.close()


def test_a_failed_append_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path / "plane")
    storage.lock()
    storage.append(b"whole")

    def full(fd: int, parts: object) -> None:
        import os

        os.write(fd, b"ha")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dataplane.backends.local.write_all", full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        storage.append(b"half")
    assert storage.journal() == b"whole"
    storage.close()


def test_closing_without_room_does_not_hide_what_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, parts: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(KeyError), open_plane(tmp_path) as plane:
        plane.create_partition("train", ["prompt"])
        patched.setattr("dataplane.catalog.claims.CLOSE_BYTES", 0)  # a snapshot is due
        patched.setattr("dataplane.backends.local.write_all", full)
        patched.setattr("dataplane.backends.local.set_text", full)
        raise KeyError("what ended it")
    with open_plane(tmp_path) as again:
        assert list(again.partitions()) == ["train"]


def test_block_names_reach_nothing_outside_the_store(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "plane")
    with pytest.raises(StoreError, match="not a name this store gives"):
        storage.view("../../etc/passwd")


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected 'process' or 'power', got 'fsync'"):
        LocalStorage(tmp_path, durability="fsync")  # type: ignore[arg-type]
