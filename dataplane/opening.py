"""From a URL to an open plane: the one place that knows the backends by name."""

from __future__ import annotations

import os
import time
from typing import Literal

from dataplane.local import Durability, LocalStorage
from dataplane.memory import MemoryStorage
from dataplane.plane import DataPlane
from dataplane.reader import Clock
from dataplane.remote import RemoteHost
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


def connect(address: str) -> DataPlane:
    """The plane that another process hosts at *address* (its ``plane.address``): the same verbs.

    Blocks are read and written directly, so the store itself must be within reach. What this connection claimed
    goes back when it ends. Raises StoreError when nobody answers, InputError.
    """
    remote = RemoteHost(address)
    try:
        if remote.storage_url.startswith("memory://"):
            raise InputError(f"the plane at {address} keeps its blocks in memory of its own process; host a directory instead")
        return DataPlane(_storage(remote.storage_url, "r", "process"), remote=remote)
    except BaseException:
        remote.close()
        raise


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
