"""The backends under test: a new one is one more line in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa

from dataplane import DataPlane, connect, open_plane
from dataplane.backends.local import LocalStorage
from dataplane.backends.memory import MemoryStorage
from dataplane.backends.redis import RedisStorage
from dataplane.backends.storage import Storage
from tests.dataplane.servers import shared_server


def _redis(path: Path) -> Callable[[], Storage]:
    url = f"{shared_server().url}?prefix={path.name}"
    return lambda: RedisStorage(url)


def _memory(_: Path) -> Callable[[], Storage]:
    storage = MemoryStorage()
    return lambda: storage


#: From an empty directory to a function that gives the same storage, opened afresh, each time it is called.
BACKENDS: dict[str, Callable[[Path], Callable[[], Storage]]] = {
    "local": lambda path: lambda: LocalStorage(path / "plane"),
    "memory": _memory,
    "redis": _redis,
}

TOKENS = pa.large_list(pa.int32())
LOGPROBS = pa.large_list(pa.float32())

COLUMNS = {
    "prompt": pa.string(),
    "group_id": pa.string(),
    "teacher": pa.string(),
    "input_ids": TOKENS,
    "generation_logprobs": LOGPROBS,
    "teacher_logprobs": LOGPROBS,
    "reward": pa.float32(),
}


class FakeClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Store:
    """One place that planes open, close, crash on and open again."""

    def __init__(self, storage: Callable[[], Storage], clock: FakeClock) -> None:
        self._storage, self.clock = storage, clock
        self.opened: list[DataPlane] = []

    def open(self, mode: Literal["w", "r"] = "w", clock: Callable[[], float] | None = None) -> DataPlane:
        self.opened.append(open_plane(self._storage(), mode, clock or self.clock))
        return self.opened[-1]

    def end(self) -> None:
        """Close what a test left open."""
        for plane in self.opened:
            plane.close()

    def crash(self, plane: DataPlane) -> DataPlane:
        """What the kernel does for a dead process: its lock goes, nothing else is done. The plane opened after it."""
        plane.storage.close()
        return self.open()

    def blocks(self) -> set[str]:
        return set(self._storage().blocks())


class ConnectedStore(Store):
    """The same, but whoever opens it for writing is a guest of the plane that hosts it, in another thread."""

    host: DataPlane
    guest: DataPlane

    def open(self, mode: Literal["w", "r"] = "w", clock: Callable[[], float] | None = None) -> DataPlane:
        opened = super().open(mode, clock)
        if mode == "r":
            return opened
        self.host = opened
        guest = self.guest = connect(opened.address)
        self.opened.append(guest)
        leave = guest.close

        def close() -> None:
            leave()
            opened.close()

        guest.close = close  # type: ignore[method-assign]  # a test closes host and guest together
        guest.hosted_by = opened  # type: ignore[attr-defined]  # for tests that look inside
        return guest

    def crash(self, plane: DataPlane) -> DataPlane:
        self.host.storage.close()
        assert self.host._server is not None
        self.host._server.close()
        self.guest._host.close()  # type: ignore[union-attr]  # a guest's host is the remote one
        return self.open()


#: Kinds of store: each backend opened by its writer, and one of them used through a connection.
KINDS: dict[str, tuple[type[Store], str]] = {
    **{name: (Store, name) for name in BACKENDS},
    "connected": (ConnectedStore, "local"),
}


def pipeline(plane: DataPlane) -> DataPlane:
    """Partition ``train`` with the tasks generate → teacher → train."""
    plane.create_partition("train", COLUMNS)
    plane.declare_task("train", "generate", ["prompt"], ["input_ids", "generation_logprobs"])
    plane.declare_task("train", "teacher", ["input_ids"], ["teacher_logprobs"])
    plane.declare_task("train", "train", ["input_ids", "generation_logprobs", "teacher_logprobs"])
    return plane
