"""From a URL to an open plane: the one place that knows the backends by name."""

from __future__ import annotations

import os
import time
from typing import Literal

from dataplane.backends.local import Durability, LocalStorage
from dataplane.backends.memory import MemoryStorage
from dataplane.backends.storage import Storage
from dataplane.catalog.reader import Clock
from dataplane.plane import DataPlane
from dataplane.serving.remote import RemoteHost
from schemas.errors import InputError


def open_plane(
    url: str | os.PathLike[str] | Storage,
    mode: Literal["w", "r"] = "w",
    clock: Clock = time.time,
    durability: Durability = "process",
) -> DataPlane:
    """Open a store for writing (making it if need be) or, beside its writer, for reading.

    *url* is a directory, ``redis://host:port/db?prefix=name`` (``rediss://`` with TLS, ``redis+unix:///socket``),
    ``memory://`` (new and empty) or a storage object. *durability* is "process" (a killed
    process loses nothing) or "power" (neither does a power cut). Raises StoreLocked naming the writer, InputError.
    """
    if mode not in ("w", "r"):
        raise InputError(f"mode: expected 'w' or 'r', got {mode!r}")
    return DataPlane(storage_at(url, durability, create=mode == "w"), mode, clock)


def connect(address: str) -> DataPlane:
    """The plane that another process hosts at *address* (its ``plane.address``): the same verbs.

    Blocks are read and written directly, so the store itself must be within reach. What this connection claimed
    goes back when it ends. Raises StoreError when nobody answers, InputError.
    """
    remote = RemoteHost(address)
    try:
        if remote.storage_url.startswith("memory://"):
            raise InputError(f"the plane at {address} keeps its blocks in its own memory; host a directory or redis://")
        return DataPlane(storage_at(remote.storage_url, create=False), remote=remote)
    except BaseException:
        remote.close()
        raise


def storage_at(
    url: str | os.PathLike[str] | Storage, durability: Durability = "process", create: bool = True
) -> Storage:
    """The backend that *url* names. Raises InputError."""
    if not isinstance(url, (str, os.PathLike)):
        return url
    scheme, separator, rest = os.fspath(url).partition("://")
    if not separator or scheme == "file":
        return LocalStorage(rest if separator else url, durability, create)
    if scheme == "memory":
        return MemoryStorage()
    if scheme.removeprefix("redis+") in ("redis", "rediss", "unix"):
        from dataplane.backends.redis import RedisStorage  # the client is loaded by those who use it

        return RedisStorage(os.fspath(url), durability, create)
    raise InputError(
        f"store {os.fspath(url)!r}: expected a directory, redis://, rediss://, redis+unix:// or memory://, "
        f"got scheme {scheme!r}"
    )
