"""How another process talks to the host: msgpack frames over a stream socket, and which methods there are.

    request  [method, [argument, …]]        reply  ["ok", value] or ["error", [class, message, missing]]

A frame is a little-endian uint32 length and that many bytes. Arguments and values are decoded by the type
annotations of :class:`~dataplane.catalog.host.CatalogHost`, so a wrong type is refused before anything runs; tables
cross as Arrow IPC. Nothing is pickled.
"""

from __future__ import annotations

import inspect
import socket
import struct
import typing
from functools import cache
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec
import pyarrow as pa

from dataplane.catalog.host import CatalogHost
from schemas import errors
from schemas.errors import InputError, MissingRows, OpdError, StoreError

#: Methods of the host that a connection may call.
METHODS = (
    *("create_partition", "declare_task", "check_put", "put", "fail", "requeue", "clear"),
    *("claim", "renew", "release", "commit"),
    *("seal", "record_trained", "record_published", "record_checkpoint", "new_epoch", "record_fact", "note"),
    *("lose", "merge", "snapshot", "forget", "acknowledge", "tasks", "read_until"),
    *("partitions", "ids", "locate", "locate_all", "rows", "progress", "buffered", "row_state", "blocks"),
    *("members", "steps", "published", "checkpoints", "facts", "epoch", "position", "wait", "wait_ready"),
)

#: A frame larger than this is refused; blocks do not travel here.
MAX_FRAME = 1 << 30

#: Most frames come whole with so much.
_AT_ONCE = 1 << 16

_LENGTH = struct.Struct("<I")


class ConnectionEnded(StoreError):
    """The other side is gone."""


def send(stream: socket.socket, message: Any) -> None:
    """Write one frame."""
    data = msgspec.msgpack.encode(message, enc_hook=_encode_table)
    stream.sendall(_LENGTH.pack(len(data)) + data)


def receive(stream: socket.socket) -> bytes:
    """Read one frame; the other side sends no second one before it has an answer. Raises ConnectionEnded."""
    data = _some(stream, _AT_ONCE)
    while len(data) < _LENGTH.size:
        data += _some(stream, _AT_ONCE)
    [size] = _LENGTH.unpack_from(data)
    if size > MAX_FRAME:
        raise ConnectionEnded(f"frame of {size} bytes: more than the {MAX_FRAME} that a message may have")
    if len(data) - _LENGTH.size < size:
        data = _rest(stream, data, size + _LENGTH.size)
    return data[_LENGTH.size :]


def _rest(stream: socket.socket, begun: bytes, size: int) -> bytes:
    """The *size* bytes of which *begun* are there."""
    data = bytearray(size)
    data[: len(begun)] = begun
    view, filled = memoryview(data), len(begun)
    while filled < size:
        got = stream.recv_into(view[filled:])
        if not got:
            raise ConnectionEnded("the connection was closed")
        filled += got
    return bytes(data)


def _some(stream: socket.socket, most: int) -> bytes:
    data = stream.recv(most)
    if not data:
        raise ConnectionEnded("the connection was closed")
    return data


_decode_greeting = msgspec.msgpack.Decoder(str).decode
_decode_request = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw]]).decode
_decode_reply = msgspec.msgpack.Decoder(tuple[Literal["ok", "error"], msgspec.Raw]).decode
_decode_error = msgspec.msgpack.Decoder(tuple[str, str, dict[str, list[str]] | None]).decode


class _Signature(NamedTuple):
    """How to decode a method's arguments, and its value; None for a table."""

    arguments: tuple[msgspec.msgpack.Decoder[Any], ...]
    value: msgspec.msgpack.Decoder[Any] | None


@cache
def _signature(method: str) -> _Signature:
    found = getattr(CatalogHost, method)
    function: Any = found.fget if isinstance(found, property) else found
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    value = None if hints["return"] is pa.Table else msgspec.msgpack.Decoder(hints["return"])
    return _Signature(tuple(msgspec.msgpack.Decoder(hints[name]) for name in names), value)


def greeting_of(frame: bytes) -> str:
    """The token of who connects. Raises msgspec.DecodeError."""
    return _decode_greeting(frame)


def location_of(frame: bytes) -> str:
    """Where the blocks are: the reply to a greeting. Raises InputError for a token that is wrong."""
    return str(msgspec.msgpack.decode(_answered(frame), type=str))


def request_of(frame: bytes) -> tuple[str, list[Any]]:
    """The method asked for, one of ``METHODS``, and its arguments as its own types.

    Raises InputError, msgspec.DecodeError.
    """
    method, given = _decode_request(frame)
    if method not in METHODS:
        raise InputError(f"the plane has no method {method!r}")
    decoders = _signature(method).arguments
    return method, [decoder.decode(value) for decoder, value in zip(decoders, given, strict=False)]


def value_of(method: str, frame: bytes) -> Any:
    """What a reply answers, as the method's own type. Raises the error that it tells of."""
    given = _answered(frame)
    decoder = _signature(method).value
    if decoder is not None:
        return decoder.decode(given)
    return pa.ipc.open_stream(pa.py_buffer(msgspec.msgpack.decode(given, type=bytes))).read_all()


def _answered(frame: bytes) -> msgspec.Raw:
    said, given = _decode_reply(frame)
    if said == "error":
        _raise_again(*_decode_error(given))
    return given


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
    return ["error", [type(error).__name__, str(error), missing]]


def _raise_again(name: str, message: str, missing: dict[str, list[str]] | None) -> NoReturn:
    """Raise what ``error_frame`` described; an error of no class of ours is a StoreError."""
    kind = getattr(errors, name, None)
    if kind is MissingRows:
        raise MissingRows(message, missing)
    if isinstance(kind, type) and issubclass(kind, OpdError):
        raise kind(message)
    raise StoreError(f"{name}: {message}")
