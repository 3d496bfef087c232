"""The local backend: a directory on disk or in /dev/shm.

DIR/lock                    held by the writer (flock); its text names the process, or where the last one closed
DIR/blocks/ID.arrow         immutable Arrow IPC files, any Arrow reader opens them
DIR/blocks/ID.tmp           a block being written; renamed when whole
DIR/journal/0000….log       segments, each named by the journal offset it starts at
DIR/snapshots/0000….snap    the snapshot, named by its position in the journal
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dataplane.backends.files import disk_errors, fsync_directory, locked, set_text, write_all
from dataplane.backends.maps import map_private
from dataplane.backends.spare import Spare
from dataplane.backends.storage import REPAIR, BlockGone, BytesLike, Trimmed, Writer
from schemas.errors import CorruptData, InputError, StoreError, StoreLocked

Durability = Literal["process", "power"]

#: A new journal segment starts when the last one is larger.
SEGMENT_BYTES = 64 << 20

#: Smaller blocks are read: a map and its page faults would cost more.
MAP_FROM_BYTES = 64 << 10


class LocalStorage:
    """Blocks as files, the journal as segments. ``durability="power"`` adds fsync to every write."""

    maps_from: int | None = MAP_FROM_BYTES
    max_block_bytes: int | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: Durability = "process",
        create: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        if durability not in ("process", "power"):
            raise InputError(f"durability: expected 'process' or 'power', got {durability!r}")
        self.path = Path(path).absolute()
        self.url = self.location = str(self.path)
        self.segment_bytes = segment_bytes
        self.fsync = durability == "power"
        self._blocks = self.path / "blocks"
        self._segments = self.path / "journal"
        self._snapshots = self.path / "snapshots"
        self._lock_fd: int | None = None
        self._segment: _Segment | None = None
        self._guard = threading.Lock()
        if create:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._segments.mkdir(exist_ok=True)
            self._snapshots.mkdir(exist_ok=True)
        elif not self._segments.is_dir():
            raise InputError(f"{self.url}: no store here; whoever opens it for writing makes one")
        self._spare = Spare(self._blocks)

    # -- the writer -----------------------------------------------------------------------------------------------

    def lock(self) -> None:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        if not locked(fd, fcntl.LOCK_EX):
            holder = os.pread(fd, 100, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StoreLocked(
                f"{self.url} is already open for writing by process {holder}; end it first, or only read beside it"
            )
        self._lock_fd = fd
        self._say(f"{os.getpid()}\n")
        for leftover in (*self._blocks.glob("*.tmp"), *self._snapshots.glob("*.tmp")):
            leftover.unlink(missing_ok=True)

    def writer(self) -> Writer:
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return Writer(False, None)
        try:
            if not locked(fd, fcntl.LOCK_SH):
                return Writer(True, None)
            word, _, position = os.pread(fd, 100, 0).decode(errors="replace").strip().partition(" ")
            return Writer(False, int(position) if word == "closed" and position.isdecimal() else None)
        finally:
            os.close(fd)

    def closed(self, position: int) -> None:
        self._say(f"closed {position}\n")

    def _say(self, text: str) -> None:
        """To whoever looks at the lock."""
        if self._lock_fd is not None:
            with disk_errors(f"lock of {self.url}"):
                set_text(self._lock_fd, text)

    def close(self) -> None:
        self._spare.close()
        with self._guard:
            self._close_segment()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    # -- blocks ---------------------------------------------------------------------------------------------------

    def write(self, block: str, parts: Sequence[BytesLike]) -> None:
        target, size = self._file(block), sum(map(len, parts))  # type: ignore[arg-type]  # bytes or pyarrow.Buffer
        with disk_errors(f"block {block} in {self.url}"):
            if not self.fsync and self._spare.fill(target, size, lambda fd: write_all(fd, parts)):
                return
        self._keep(target, f"block {block}", parts)

    def _keep(self, target: str, what: str, parts: Sequence[BytesLike]) -> None:
        """A file with *parts*, whole or not at all: written under another name, then renamed."""
        temporary = f"{os.path.splitext(target)[0]}.tmp"
        with disk_errors(f"{what} in {self.url}"):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                write_all(fd, parts)
                if self.fsync:
                    os.fsync(fd)
            except BaseException:
                os.unlink(temporary)
                raise
            finally:
                os.close(fd)
            os.rename(temporary, target)
            if self.fsync:
                fsync_directory(Path(target).parent)

    def view(self, block: str) -> BytesLike:
        return self._mapped(block, MAP_FROM_BYTES)

    def private(self, block: str) -> BytesLike:
        return self._mapped(block, 0)

    def _mapped(self, block: str, least: int) -> BytesLike:
        try:
            return map_private(self._file(block), least)
        except FileNotFoundError:
            raise BlockGone(block, self.url) from None

    def delete(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            with suppress(FileNotFoundError):
                os.unlink(self._file(block))

    def blocks(self) -> dict[str, int]:
        with os.scandir(self._blocks) as entries:
            return {e.name[:-6]: e.stat().st_size for e in entries if e.name.endswith(".arrow")}

    def _file(self, block: str) -> str:
        if not block.isalnum():  # ids come from the journal, which may be hostile: no way out of the directory
            raise StoreError(f"block id {block!r} is not a name this store gives")
        return f"{self._blocks}/{block}.arrow"

    # -- the journal ----------------------------------------------------------------------------------------------

    def append(self, data: bytes, durable: bool = True) -> None:
        with self._guard, disk_errors(f"journal of {self.url}"):
            segment = self._open_segment()
            try:
                write_all(segment.fd, [data])
            except BaseException:
                os.ftruncate(segment.fd, segment.size)
                raise
            segment.size += len(data)
            if self.fsync and durable:
                os.fdatasync(segment.fd)

    def journal(self, start: int = 0) -> bytes:
        starts = self._starts()
        if starts and start < starts[0]:
            raise Trimmed(f"{self.url}: the journal begins at byte {starts[0]}, not {start}")
        holder = max((s for s in starts if s <= start), default=0)
        if starts and holder == starts[-1] and start > holder + os.path.getsize(self._segment_file(holder)):
            raise CorruptData(f"{self.url}: the journal ends before byte {start}, where the snapshot stands; {REPAIR}")
        try:
            return b"".join(_read_from(self._segment_file(s), max(0, start - s)) for s in starts if s >= holder)
        except FileNotFoundError:
            raise Trimmed(f"{self.url}: the journal was trimmed just now") from None

    def start(self) -> int:
        return next(iter(self._starts()), 0)

    def trim(self, position: int) -> None:
        with self._guard:
            self._close_segment()
            self._segment_file(position).touch()
            if self.fsync:
                fsync_directory(self._segments)
            for start in self._starts():
                if start < position:
                    self._segment_file(start).unlink()

    def save(self, position: int, parts: Sequence[BytesLike]) -> None:
        self._snapshots.mkdir(exist_ok=True)
        target = self._snapshots / f"{position:020d}.snap"
        self._keep(str(target), "snapshot", parts)
        for old in self._snapshots.glob("*.snap"):
            if old.name < target.name:
                old.unlink(missing_ok=True)

    def saved(self) -> tuple[int, BytesLike] | None:
        while True:
            newest = max(self._snapshots.glob("*.snap"), default=None)
            if newest is None:
                return None
            with suppress(FileNotFoundError):  # a newer one took its place
                return int(newest.stem), map_private(str(newest))

    def cut(self, size: int) -> None:
        with self._guard:
            self._close_segment()
            for start in reversed(self._starts()):
                if start > size:
                    self._segment_file(start).unlink()
                else:
                    os.truncate(self._segment_file(start), size - start)
                    break

    def _open_segment(self) -> _Segment:
        """The segment to append to; a new one when the last is large."""
        if self._lock_fd is None:
            raise StoreError(f"{self.url} is not open for writing")
        segment = self._segment
        if segment is None:
            start = self._starts()[-1] if self._starts() else 0
            segment = self._segment = _Segment(self._segment_file(start), start)
        if segment.size > self.segment_bytes:
            os.close(segment.fd)
            end = segment.start + segment.size
            segment = self._segment = _Segment(self._segment_file(end), end)
            if self.fsync:
                fsync_directory(self._segments)
        return segment

    def _close_segment(self) -> None:
        if self._segment is not None:
            os.close(self._segment.fd)
            self._segment = None

    def _starts(self) -> list[int]:
        return sorted(int(name[:-4]) for name in os.listdir(self._segments) if name.endswith(".log"))

    def _segment_file(self, start: int) -> Path:
        return self._segments / f"{start:020d}.log"


class _Segment:
    """One file of the journal, open for appending."""

    def __init__(self, path: Path, start: int) -> None:
        self.start = start
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = os.fstat(self.fd).st_size


def _read_from(path: Path, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read()
