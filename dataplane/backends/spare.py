"""A spare file in memory, made ready while nobody waits, that the next large block is written into.

Half of the time that a new file in /dev/shm takes goes into finding its pages. The spare has no name (O_TMPFILE), so
that a crash leaves nothing behind, and gets one when its block is whole. Only memory file systems gain by it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

#: Blocks from this size on are worth a spare; it is never larger than the other.
LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20

#: A spare takes at most this share of what is free.
_SHARE = 8

#: How long no block must have come before a spare is made, so that it is in nobody's way.
_QUIET_S = 0.01


class Spare:
    """At most one file of the size of the last large block, held by one process; ``fill`` uses it up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._useful = _in_memory(folder)
        self._owner = 0  # the process that has the thread and the file: not its forks
        self._held: int | None = None
        self._sizes: SimpleQueue[int] = SimpleQueue()
        self._guard = threading.Lock()

    def fill(self, target: str, size: int, write: Callable[[int], None]) -> bool:
        """Make file *target* of *size* bytes with ``write(descriptor)``, whole or not at all; False without a spare.

        A new spare is made ready afterwards.
        """
        if not self._useful or size < LEAST_BYTES:
            return False
        fd = self._take()
        try:
            if fd is not None:
                write(fd)
                os.ftruncate(fd, size)
                # only linkat follows /proc's link, and Python calls that when it is given a directory
                os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd)
        finally:
            if fd is not None:
                os.close(fd)
            self._ask(min(size, MOST_BYTES))
        return fd is not None

    def close(self) -> None:
        """Let go of the file; none is made any more."""
        self._useful = False
        self._sizes.put(0)
        fd = self._take()
        if fd is not None:
            os.close(fd)

    def _take(self) -> int | None:
        with self._guard:
            held, self._held = self._held, None
        if held is not None and self._owner != os.getpid():
            os.close(held)
            return None
        return held

    def _ask(self, size: int) -> None:
        with self._guard:
            if not self._owner:
                self._owner = os.getpid()
                threading.Thread(target=self._keep_ready, name="plane-spare", daemon=True).start()
        self._sizes.put(size)

    def _keep_ready(self) -> None:
        while size := self._newest():
            with suppress(OSError):  # no such thing here, or no room: blocks are written as everywhere else
                self._make(size)

    def _newest(self) -> int:
        """The size asked for last, when no other has been for a while."""
        size = self._sizes.get()
        with suppress(Empty):
            while size:
                size = self._sizes.get(timeout=_QUIET_S)
        return size

    def _make(self, size: int) -> None:
        fd = os.open(self._folder, os.O_TMPFILE | os.O_WRONLY, 0o644)
        try:
            room = os.fstatvfs(fd)
            if room.f_bavail * room.f_frsize < _SHARE * size:
                return
            os.posix_fallocate(fd, 0, size)
            with self._guard:
                if self._held is None and self._useful:
                    self._held, fd = fd, -1
        finally:
            if fd >= 0:
                os.close(fd)


def _in_memory(folder: Path) -> bool:
    """Whether *folder* lies in a tmpfs."""
    with suppress(OSError), open("/proc/self/mountinfo") as mounts:
        device = os.stat(folder).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        return any(" - tmpfs " in line and line.split()[2] == number for line in mounts)
    return False
