"""Large blocks are written into a spare file; what is stored and what is left behind are the same without it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.backends import spare
from dataplane.backends.files import write_all
from dataplane.backends.spare import LEAST_BYTES, Spare

SIZE = LEAST_BYTES + 5


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    """A spare that is ready, on whatever file system this is."""
    monkeypatch.setattr(spare, "_in_memory", lambda folder: True)
    made = Spare(tmp_path)
    assert not made.fill(str(tmp_path / "first"), SIZE, _nothing)
    _ready(made)
    yield made
    made.close()


def _nothing(fd: int) -> None:
    raise AssertionError("there is no spare to write into yet")


def _ready(made: Spare) -> None:
    until = time.monotonic() + 20
    while made._held is None:
        assert time.monotonic() < until, "no spare was made"
        time.sleep(0.002)


def _writing(data: bytes) -> Callable[[int], None]:
    return lambda fd: write_all(fd, [data[:7], data[7:]])


@pytest.mark.parametrize("size", [LEAST_BYTES, SIZE, 3 * SIZE])
def test_a_file_shorter_or_longer_than_its_spare_is_whole(held: Spare, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    assert held.fill(str(tmp_path / "block"), size, _writing(data))
    assert [file.name for file in tmp_path.iterdir()] == ["block"]
    assert (tmp_path / "block").read_bytes() == data


def test_small_files_take_no_spare(held: Spare, tmp_path: Path) -> None:
    assert not held.fill(str(tmp_path / "block"), LEAST_BYTES - 1, _nothing)
    assert held._held is not None and list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_and_the_next_one_has_a_spare_again(held: Spare, tmp_path: Path) -> None:
    def fails(fd: int) -> None:
        os.write(fd, b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        held.fill(str(tmp_path / "block"), SIZE, fails)
    assert list(tmp_path.iterdir()) == []
    _ready(held)
    assert held.fill(str(tmp_path / "block"), SIZE, _writing(bytes(SIZE)))


def test_a_fork_does_not_write_into_its_parents_spare(held: Spare, tmp_path: Path) -> None:
    held._owner += 1  # what a fork finds
    assert not held.fill(str(tmp_path / "block"), SIZE, _nothing)
    assert held._held is None


def test_closing_gives_the_descriptor_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "_in_memory", lambda folder: True)
    before = len(os.listdir("/proc/self/fd"))
    made = Spare(tmp_path)
    made.fill(str(tmp_path / "block"), SIZE, _nothing)
    _ready(made)
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_a_memory_file_system_has_a_spare(tmp_path: Path) -> None:
    assert spare._in_memory(Path("/dev/shm"))
    assert not spare._in_memory(Path("/proc/self"))
