"""The record batch of an Arrow file that nobody vouches for, read without giving it memory.

Arrow unpacks a compressed batch while it reads it, and a few kilobytes may unpack to gigabytes. Blocks are never
compressed, so that a file whose batch says it is gets refused before that. Arrow does not tell whether it says so: it
stands in the batch's metadata, which the footer points to, and both are flatbuffers (format/File.fbs, Message.fbs).

    ARROW1 | schema | batch | footer | footer's length | ARROW1

The schema of blocks of one kind is the same to the byte, and is parsed once.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

#: What a file begins with, in eight bytes, and ends with: behind its footer, the footer's length and "ARROW1".
_MAGIC = b"ARROW1"
_TAIL = struct.Struct("<i6s")

#: What a message begins with, before the length of its metadata; very old files lack it.
_MARK = b"\xff\xff\xff\xff"

#: Places in the tables Footer, Message and RecordBatch.
_BATCHES, _HEADER, _COMPRESSION = 3, 2, 3


class Head(NamedTuple):
    """The columns that a file declares."""

    schema: pa.Schema
    names: tuple[str, ...]


def read_batch(data: pa.Buffer) -> tuple[Head, pa.RecordBatch]:
    """The first batch, whose buffers are slices of *data*, and its columns.

    Raises ValueError, struct.error or Arrow's own errors.
    """
    view = memoryview(data)
    start = _first_batch(view)
    if _compressed(view[start + 8 :]):
        raise ValueError("it is compressed")
    head = _head(bytes(view[:start]))
    return head, pa.ipc.read_record_batch(data.slice(start), head.schema)


@lru_cache(maxsize=1024)
def _head(begin: bytes) -> Head:
    """What stands before the first batch."""
    if not begin.startswith(_MAGIC):
        raise ValueError("it does not begin as an Arrow file does")
    schema = pa.ipc.read_schema(pa.py_buffer(begin).slice(8))
    return Head(schema, tuple(schema.names))


def _first_batch(data: memoryview) -> int:
    """Where the message of the first batch begins, as the footer says."""
    end = len(data) - _TAIL.size
    size, magic = _TAIL.unpack_from(data, end)
    if magic != _MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    footer = data[end - size : end]
    batches = _pointed(footer, _member(footer, _pointed(footer, 0), _BATCHES))
    (start,) = struct.unpack_from("<q", footer, batches + 4)  # behind the vector's length: the first Block.offset
    if start < 8 or bytes(data[start : start + 4]) != _MARK:
        raise ValueError("its messages are not marked as such")
    return int(start)


def _compressed(message: memoryview) -> bool:
    batch = _pointed(message, _member(message, _pointed(message, 0), _HEADER))
    return _member(message, batch, _COMPRESSION) > 0


def _pointed(buffer: memoryview, at: int) -> int:
    """Where the reference at *at* leads."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _member(buffer: memoryview, table: int, index: int) -> int:
    """Where member *index* of the table at *table* lies; 0 when it is left out."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    place = 4 + 2 * index
    if place >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + place)
    return table + int(offset) if offset else 0
