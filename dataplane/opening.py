"""From a URL to an open plane: the one place that knows the backends by name."""

from __future__ import annotations

import os
import time
from typing import Literal

from dataplane.local import Durability, LocalStorage
from dataplane.memory import MemoryStorage
from dataplane.plane import DataPlane
from dataplane.reader import Clock
from dataplane.storage import Storage
from schemas.errors import InputError


def open_plane(
    url: str | os.PathLike[str] | Storage,
    mode: Literal["w", "r"] = "w",
    clock: Clock = time.time,
    durability: Durability = "process",
) -> DataPlane:
    """Open a store for writing (making it if need be) or, beside its writer, for reading.

    *url* is a directory, ``memory://`` (new and empty) or a storage object. *durability* is "process" (a killed
    process loses nothing) or "power" (neither does a power cut). Raises StoreLocked naming the writer, InputError.
    """
    if mode not in ("w", "r"):
        raise InputError(f"mode: expected 'w' or 'r', got {mode!r}")
    return DataPlane(_storage(url, mode, durability), mode, clock)


def _storage(url: str | os.PathLike[str] | Storage, mode: str, durability: Durability) -> Storage:
    if not isinstance(url, (str, os.PathLike)):
        return url
    scheme, separator, rest = os.fspath(url).partition("://")
    if not separator:
        return LocalStorage(url, durability, create=mode == "w")
    if scheme == "file":
        return LocalStorage(rest, durability, create=mode == "w")
    if scheme == "memory":
        return MemoryStorage()
    raise InputError(f"store {os.fspath(url)!r}: expected a directory or memory://, got scheme {scheme!r}")
