"""Small things one does with files: write all of some buffers, make it durable, take a lock, say why it failed."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dataplane.backends.storage import BytesLike
from schemas.errors import StoreError

#: os.writev takes at most this many buffers (IOV_MAX on Linux).
_MAX_PARTS = 1024

#: How long a new writer waits for a lock that a check may hold for a moment.
_PATIENCE_S = 0.1


def locked(fd: int, how: int) -> bool:
    """Whether the lock could be had, within the moment that a check may hold it."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(_PATIENCE_S / 10)


def set_text(fd: int, text: str) -> None:
    """Let the file hold *text* and nothing else."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)


def write_all(fd: int, parts: Sequence[BytesLike]) -> None:
    """Every byte of *parts*, in as few system calls as the kernel allows."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]  # type: ignore[arg-type]
    while views:
        written = os.writev(fd, views[:_MAX_PARTS])
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """An OSError while writing *what* as a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; free some space, or clear rows of old steps" if full else ""
        raise StoreError(f"writing {what} failed: {error.strerror}{advice}") from error
