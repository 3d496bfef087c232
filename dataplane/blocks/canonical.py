"""Canonical Arrow arrays, and checksums over exactly their bytes.

An array is canonical when it starts at offset 0, its lists and texts start at value 0, and nothing lies behind
its last value. The checksum of a column covers, in depth-first order, each buffer cut to the length that its type
and row count imply, so that padding and sharing do not matter and any backend gives the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from

import pyarrow as pa
import xxhash

from schemas.errors import InputError

# Type ids, which are compared thousands of times in a query over many small blocks.
_SMALL_VARIABLE = {pa.string().id, pa.binary().id}
_VARIABLE = _SMALL_VARIABLE | {pa.large_string().id, pa.large_binary().id}
_LISTS = {pa.list_(pa.int8()).id, pa.large_list(pa.int8()).id}
_SMALL = _SMALL_VARIABLE | {pa.list_(pa.int8()).id}
_FIXED_LIST = pa.list_(pa.int8(), 1).id
_STRUCT = pa.struct([]).id
_NULL = pa.null().id


def check_type(name: str, kind: pa.DataType) -> None:
    """Refuse types that blocks do not hold. Raises InputError."""
    if kind.id in _LISTS or kind.id == _FIXED_LIST:
        return check_type(name, kind.value_type)
    if kind.id == _STRUCT:
        for child in kind:
            check_type(f"{name}.{child.name}", child.type)
    elif not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or kind.id in _VARIABLE | {_NULL}):
        raise InputError(
            f"column {name!r}: type {kind} cannot be stored; expected numbers, booleans, times, text, binary, "
            "or lists and structs of them"
        )


def canonical(array: pa.Array) -> pa.Array:
    """*array* itself if it is canonical, else a copy that is."""
    return array if _is_canonical(array) else pa.concat_arrays([array])


def checksum(array: pa.Array) -> int:
    """xxh3 (64 bits) over the bytes of a canonical array."""
    digest = xxhash.xxh3_64()
    for part in _parts(array):
        digest.update(part)
    return digest.intdigest()


def _is_canonical(array: pa.Array) -> bool:
    if array.offset:
        return False
    kind = array.type
    if kind.id in _VARIABLE:
        return len(array) == 0 or _first_and_last(array)[0] == 0
    if kind.id in _LISTS:
        first, last = _first_and_last(array)
        return first == 0 and len(array.values) == last and _is_canonical(array.values)
    if kind.id == _FIXED_LIST:
        return len(array.values) == len(array) * kind.list_size and _is_canonical(array.values)
    if kind.id == _STRUCT:
        return all(len(child) == len(array) and _is_canonical(child) for child in _children(array))
    return True


def _parts(array: pa.Array) -> Iterator[memoryview]:
    """The bytes that count, buffer by buffer."""
    kind, buffers = array.type, array.buffers()
    if array.null_count and buffers[0] is not None:
        yield _cut(buffers[0], -(-len(array) // 8))
    if kind.id in _VARIABLE:
        first, last = _first_and_last(array)
        yield _cut(buffers[1], _offset_width(kind) * (len(array) + 1) if len(array) else 0)
        yield _cut(buffers[2], last - first)
    elif kind.id in _LISTS:
        yield _cut(buffers[1], _offset_width(kind) * (len(array) + 1) if len(array) else 0)
        yield from _parts(array.values)
    elif kind.id == _FIXED_LIST:
        yield from _parts(array.values)
    elif kind.id == _STRUCT:
        for child in _children(array):
            yield from _parts(child)
    elif kind.id != _NULL:
        yield _cut(buffers[1], -(-len(array) * kind.bit_width // 8))


def _children(array: pa.StructArray) -> list[pa.Array]:
    return [array.field(i) for i in range(array.type.num_fields)]


def _cut(buffer: pa.Buffer | None, size: int) -> memoryview:
    return memoryview(buffer)[:size] if buffer is not None else memoryview(b"")


def _offset_width(kind: pa.DataType) -> int:
    return 4 if kind.id in _SMALL else 8


def _first_and_last(array: pa.Array) -> tuple[int, int]:
    """The first and last offset of a list or text array that starts at offset 0."""
    if len(array) == 0:
        return 0, 0
    width, offsets = _offset_width(array.type), array.buffers()[1]
    number = "<q" if width == 8 else "<i"
    return unpack_from(number, offsets)[0], unpack_from(number, offsets, width * len(array))[0]
