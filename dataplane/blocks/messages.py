"""The record batch of an Arrow file that nobody vouches for, read without giving it memory.

Arrow unpacks a compressed batch while it reads it, and a few kilobytes may unpack to gigabytes. Blocks are never
compressed, so that a file whose batch says it is gets refused before that. Arrow does not tell whether it says so: it
stands in the batch's metadata, which the footer points to, and both are flatbuffers (format/File.fbs, Message.fbs).
"""

from __future__ import annotations

import struct

import pyarrow as pa

#: What a file ends with, behind its footer: the footer's length and "ARROW1".
_TAIL = struct.Struct("<i6s")

#: What a message begins with, before the length of its metadata; very old files lack it.
_MARK = b"\xff\xff\xff\xff"

#: Places in the tables Footer, Message and RecordBatch.
_BATCHES, _HEADER, _COMPRESSION = 3, 2, 3


def read_batch(data: pa.Buffer) -> pa.RecordBatch:
    """The first batch, whose buffers are slices of *data*. Raises ValueError, struct.error or Arrow's own errors."""
    file = pa.ipc.open_file(pa.BufferReader(data))
    if _compressed(memoryview(data)):
        raise ValueError("it is compressed")
    return file.get_batch(0)


def _compressed(data: memoryview) -> bool:
    end = len(data) - _TAIL.size
    footer = data[end - _TAIL.unpack_from(data, end)[0] : end]
    batches = _pointed(footer, _member(footer, _pointed(footer, 0), _BATCHES))
    (start,) = struct.unpack_from("<q", footer, batches + 4)  # behind the vector's length: the first Block.offset
    if bytes(data[start : start + 4]) != _MARK:
        raise ValueError("its messages are not marked as such")
    message = data[start + 8 :]
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
