"""How another process talks to the host: msgpack frames over a stream socket, and which methods there are.

    request  [method, [argument, …]]        reply  ["ok", value] or ["error", class, message, missing]

A frame is a little-endian uint32 length and that many bytes. Arguments and values are converted by the type
annotations of :class:`~dataplane.host.CatalogHost`, so a wrong type is refused before anything runs; tables cross
as Arrow IPC. Nothing is pickled.
"""

from __future__ import annotations

import inspect
import socket
import struct
import typing
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from dataplane.host import CatalogHost
from schemas import errors
from schemas.errors import MissingRows, OpdError, StoreError

#: Methods of the host that a connection may call.
METHODS = (
    *("create_partition", "declare_task", "check_put", "put", "fail", "requeue", "clear"),
    *("claim", "renew", "release", "commit"),
    *("seal", "record_trained", "record_published", "record_checkpoint", "new_epoch", "record_fact", "note"),
    *("lose", "merge", "snapshot", "forget"),
    *("partitions", "ids", "locate", "locate_all", "rows", "progress", "buffered", "row_state", "blocks"),
    *("members", "steps", "published", "checkpoints", "facts", "epoch", "position", "wait", "wait_ready"),
)

#: A frame larger than this is refused; blocks do not travel here.
MAX_FRAME = 1 << 30

_LENGTH = struct.Struct("<I")


class ConnectionEnded(StoreError):
    """The other side is gone."""


def send(stream: socket.socket, message: Any) -> None:
    """Write one frame."""
    data = msgspec.msgpack.encode(message, enc_hook=_encode_table)
    stream.sendall(_LENGTH.pack(len(data)) + data)


def receive(stream: socket.socket) -> Any:
    """Read one frame. Raises ConnectionEnded."""
    [size] = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if size > MAX_FRAME:
        raise ConnectionEnded(f"frame of {size} bytes: more than the {MAX_FRAME} that a message may have")
    return msgspec.msgpack.decode(_exactly(stream, size))


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = stream.recv_into(view[filled:])
        if not got:
            raise ConnectionEnded("the connection was closed")
        filled += got
    return bytes(data)


@cache
def signature(method: str) -> tuple[tuple[Any, ...], Any]:
    """Types of a method's arguments, and of its value."""
    found = getattr(CatalogHost, method)
    function: Any = found.fget if isinstance(found, property) else found
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return tuple(hints[name] for name in names), hints["return"]


def arguments_of(method: str, given: list[Any]) -> list[Any]:
    """*given* as the method's own types. Raises msgspec.ValidationError."""
    kinds, _ = signature(method)
    return [msgspec.convert(value, kind) for value, kind in zip(given, kinds, strict=False)]


def value_of(method: str, given: Any) -> Any:
    """A reply's value as the method's own type."""
    _, kind = signature(method)
    if kind is pa.Table:
        return pa.ipc.open_stream(pa.py_buffer(given)).read_all()
    return None if kind is type(None) else msgspec.convert(given, kind)


def _encode_table(value: Any) -> bytes:
    if not isinstance(value, pa.Table):
        raise TypeError(f"a {type(value).__name__} cannot cross to another process")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    return sink.getvalue().to_pybytes()


def error_frame(error: Exception) -> list[Any]:
    """What the other side raises again."""
    missing = error.missing if isinstance(error, MissingRows) else None
    return ["error", type(error).__name__, str(error), missing]


def raise_error(name: str, message: str, missing: dict[str, list[str]] | None) -> None:
    """Raise what ``error_frame`` described; an error of no class of ours is a StoreError."""
    kind = getattr(errors, name, None)
    if kind is MissingRows:
        raise MissingRows(message, missing)
    if isinstance(kind, type) and issubclass(kind, OpdError):
        raise kind(message)
    raise StoreError(f"{name}: {message}")
