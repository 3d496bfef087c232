"""From cells to Arrow: the values of one column for some rows, in their order, with as few copies as can be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dataplane.numbers import Ints

#: A slice of a column costs about 2 µs, taking a list about 3 ns a value: above this many values a row, slice.
_LONG_ROW = 600


def gather(field: pa.Field, blocks: Ints, rows: Ints, column: Callable[[int], pa.Array]) -> list[pa.Array]:
    """Chunks that together hold the value of each cell ``(blocks[i], rows[i])``; block −1 is null.

    ``column(block)`` gives the block's whole column. Chunks of neighbouring rows share its memory.
    """
    if len(blocks) == 0:
        return []
    breaks = np.flatnonzero((np.diff(blocks) != 0) | (np.diff(rows) != 1) & (blocks[1:] >= 0)) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [len(blocks)])))
    if len(starts) > 64 and len(starts) > len(blocks) // 4 and not _long_rows(field, int(blocks.max()), column):
        return [_scattered(field, blocks, rows, column)]
    runs = zip(blocks[starts].tolist(), rows[starts].tolist(), counts.tolist(), strict=True)
    return [_slice(field, column(b), row, count) if b >= 0 else pa.nulls(count, field.type) for b, row, count in runs]


def owned(field: pa.Field, chunks: list[pa.Array]) -> pa.Array:
    """One array with a copy of *chunks*, sharing memory with nobody."""
    return pa.concat_arrays(chunks) if chunks else pa.array([], field.type)


def _slice(field: pa.Field, array: pa.Array, row: int, count: int) -> pa.Array:
    return array if row == 0 and count == len(array) else array.slice(row, count)


def _long_rows(field: pa.Field, block: int, column: Callable[[int], pa.Array]) -> bool:
    if block < 0 or not pa.types.is_large_list(field.type):
        return False
    array = column(block)
    return len(array.values) > _LONG_ROW * len(array)


def _scattered(field: pa.Field, blocks: Ints, rows: Ints, column: Callable[[int], pa.Array]) -> pa.Array:
    """Block by block, then back into the order asked."""
    order = np.argsort(blocks, kind="stable")
    ordered = blocks[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(ordered))
    parts, start = [], 0
    for end in ends.tolist():
        block, picked = int(ordered[start]), rows[order[start:end]]
        parts.append(column(block).take(pa.array(picked)) if block >= 0 else pa.nulls(end - start, field.type))
        start = end
    if len(parts) == 1 and (order[1:] > order[:-1]).all():
        return parts[0]
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))
