"""From cells to Arrow: the values of columns for some rows, in their order, with as few copies as can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dataplane.numbers import Ints, as_slice, distinct

#: A slice of a column costs about 2 µs, taking a list about 3 ns a value: with more values a slice than this, slice.
_SLICE_VALUES = 600

#: So few slices cost less than working out what to take.
_FEW_SLICES = 16

#: Columns of so few bytes are joined before rows are taken: one taking instead of one a block.
_JOIN_BYTES = 1 << 20

_NONE = np.empty(0, np.int64)


class Picks(NamedTuple):
    """Rows to take, block by block, and how to bring them back into the order asked; None when they are in it."""

    parts: list[tuple[int, pa.Array]]
    back: pa.Array | None


class Places:
    """Value i lies in row ``rows[i]`` of block ``blocks[i]``; block −1 is null.

    Columns that were written together lie alike: what is worked out here, once, serves them all.
    """

    def __init__(self, blocks: Ints, rows: Ints) -> None:
        self.blocks, self.rows = blocks, rows
        named = distinct(blocks)
        self._of_one = len(named) == 1
        #: Each block once.
        self.used = [block for block in named if block >= 0]
        self._positions: dict[tuple[int, ...], pa.Array] = {}

    @cached_property
    def breaks(self) -> Ints:
        """Where a row is not the next one of the block before it."""
        blocks, rows = self.blocks, self.rows
        if self._of_one and isinstance(as_slice(rows), slice):  # the usual case
            return _NONE
        return np.flatnonzero((blocks[1:] != blocks[:-1]) | (rows[1:] - rows[:-1] != 1) & (blocks[1:] >= 0)) + 1

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Neighbouring rows of one block: (block, first row, how many)."""
        blocks, rows = self.blocks, self.rows
        if len(blocks) == 0:
            return []
        if not len(self.breaks):  # the usual case
            return [(int(blocks[0]), int(rows[0]), len(blocks))]
        starts = np.concatenate(([0], self.breaks))
        counts = np.diff(np.concatenate((starts, [len(blocks)])))
        return list(zip(blocks[starts].tolist(), rows[starts].tolist(), counts.tolist(), strict=True))

    def positions(self, sizes: tuple[int, ...]) -> pa.Array:
        """Where each value lies when the used blocks, of so many rows, are laid one behind the other."""
        if sizes not in self._positions:
            lie, missing = self.rows, self.blocks < 0
            if len(sizes) > 1:
                lie = lie + np.cumsum((0, *sizes[:-1]))[np.searchsorted(self.used, self.blocks)]
            self._positions[sizes] = pa.array(lie, mask=missing if missing.any() else None)
        return self._positions[sizes]

    @cached_property
    def picks(self) -> Picks:
        """The same as rows to take of each block."""
        order = np.argsort(self.blocks, kind="stable")
        ordered = self.blocks[order]
        starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist()]
        ends = [*starts[1:], len(ordered)]
        parts = [(int(ordered[a]), pa.array(self.rows[order[a:b]])) for a, b in zip(starts, ends, strict=True)]
        if (order[1:] > order[:-1]).all():
            return Picks(parts, None)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return Picks(parts, pa.array(back))

    def gather(self, field: pa.Field, column: Callable[[int], pa.Array], own: bool = False) -> list[pa.Array]:
        """Chunks that together hold the values; ``column(block)`` gives the block's whole column.

        Chunks of neighbouring rows share its memory, unless they are to be *own*: then it is one array, of a copy.
        """
        runs = len(self.breaks) + 1
        if runs > _FEW_SLICES and runs * _SLICE_VALUES > self._values(field, column):
            return [self._picked(field, column)]
        chunks = [_slice(column(b), row, n) if b >= 0 else pa.nulls(n, field.type) for b, row, n in self.runs]
        if not own:
            return chunks
        return [pa.concat_arrays(chunks) if chunks else pa.array([], field.type)]

    def _values(self, field: pa.Field, column: Callable[[int], pa.Array]) -> float:
        """About how many values the rows hold, going by the first block."""
        if not self.used or not pa.types.is_large_list(field.type):
            return len(self.blocks)
        array = column(self.used[0])
        return len(self.blocks) * len(array.values) / max(1, len(array))

    def _picked(self, field: pa.Field, column: Callable[[int], pa.Array]) -> pa.Array:
        whole = [column(block) for block in self.used]
        if whole and (len(whole) == 1 or sum(array.nbytes for array in whole) <= _JOIN_BYTES):
            together = whole[0] if len(whole) == 1 else pa.concat_arrays(whole)
            return together.take(self.positions(tuple(map(len, whole))))
        taken = [
            column(block).take(rows) if block >= 0 else pa.nulls(len(rows), field.type)
            for block, rows in self.picks.parts
        ]
        together = taken[0] if len(taken) == 1 else pa.concat_arrays(taken)
        return together if self.picks.back is None else together.take(self.picks.back)


def _slice(array: pa.Array, row: int, count: int) -> pa.Array:
    return array if row == 0 and count == len(array) else array.slice(row, count)
