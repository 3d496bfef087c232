"""The in-memory backend: for tests and scratch work. The object is the store; open it again to see the same data."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence

from dataplane.backends.storage import BlockGone, BytesLike, Trimmed, Writer
from schemas.errors import StoreLocked


class MemoryStorage:
    """Blocks in a dict, the journal in a bytearray. Closing gives up the lock and keeps the data."""

    url = location = "memory://"
    maps_from: int | None = 0
    max_block_bytes: int | None = None

    def __init__(self) -> None:
        self._blocks: dict[str, bytes] = {}
        self._journal = bytearray()
        self._start = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._locked = False
        self._closed_at: int | None = None
        self._guard = threading.Lock()

    def lock(self) -> None:
        with self._guard:
            if self._locked:
                raise StoreLocked(f"{self.url} is open for writing by process {os.getpid()} already; close that first")
            self._locked = True
            self._closed_at = None

    def writer(self) -> Writer:
        return Writer(self._locked, None if self._locked else self._closed_at)

    def closed(self, position: int) -> None:
        self._closed_at = position

    def close(self) -> None:
        self._locked = False

    def write(self, block: str, parts: Sequence[BytesLike]) -> None:
        self._blocks[block] = b"".join(parts)  # type: ignore[arg-type]  # every part has the buffer protocol

    def view(self, block: str) -> bytes:
        try:
            return self._blocks[block]
        except KeyError:
            raise BlockGone(block, self.url) from None

    def private(self, block: str) -> bytearray:
        return bytearray(self.view(block))

    def delete(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            self._blocks.pop(block, None)

    def blocks(self) -> dict[str, int]:
        return {block: len(data) for block, data in self._blocks.copy().items()}

    def append(self, data: bytes, durable: bool = True) -> None:
        with self._guard:
            self._journal += data

    def journal(self, start: int = 0) -> bytes:
        with self._guard:
            if start < self._start:
                raise Trimmed(f"{self.url}: the journal begins at byte {self._start}, not {start}")
            return bytes(self._journal[start - self._start :])

    def start(self) -> int:
        return self._start

    def trim(self, position: int) -> None:
        with self._guard:
            del self._journal[: position - self._start]
            self._start = position

    def save(self, position: int, parts: Sequence[BytesLike]) -> None:
        self._snapshot = position, b"".join(parts)  # type: ignore[arg-type]

    def saved(self) -> tuple[int, BytesLike] | None:
        return self._snapshot

    def cut(self, size: int) -> None:
        with self._guard:
            del self._journal[size - self._start :]
