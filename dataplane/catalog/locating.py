"""Where values lie: from rows and columns to the cells that hold them, as whoever reads blocks is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane.catalog.blocktable import BlockTable
from dataplane.catalog.partition import CLEARED, Partition
from dataplane.numbers import Ints, as_slice, distinct
from schemas.columns import SAMPLE_ID
from schemas.errors import MissingRows
from schemas.messages import Cells, Located


def located(partition: Partition, slots: Ints, columns: Sequence[str], table: BlockTable) -> Located:
    """Cells of *columns* for the rows at these slots; −1 for slot −1."""
    ids = partition.ids_at(slots) if SAMPLE_ID in columns else []
    lie: dict[tuple[bytes, bytes], int] = {}  # columns that were written together lie alike: they are told once
    at = as_slice(slots)
    each = [cells_of(partition, name, at, len(slots)) for name in columns]
    where = [lie.setdefault((blocks.tobytes(), rows.tobytes()), len(lie)) for blocks, rows in each]
    once = [(np.frombuffer(blocks, np.int32), rows) for blocks, rows in lie]
    named = {index for blocks, _ in once for index in distinct(blocks)}
    used = np.array(sorted(index for index in named if index >= 0), dtype=np.int32)
    cells = [Cells(_positions(used, blocks).tobytes(), rows) for blocks, rows in once]
    return Located([table[index] for index in used.tolist()], cells, where, len(slots), ids)


def cells_of(partition: Partition, name: str, slots: Ints | slice, count: int) -> tuple[Ints, Ints]:
    """Block indexes and rows of a column's cells at *count* slots; block −1 for slot −1 too."""
    cells = partition.cells.get(name)
    if cells is None:
        return np.full(count, -1, np.int32), np.zeros(count, np.int32)
    blocks = cells.block.data[slots]
    return blocks if isinstance(slots, slice) else np.where(slots >= 0, blocks, np.int32(-1)), cells.row.data[slots]


def _positions(used: Ints, blocks: Ints) -> Ints:
    """Where in *used*, which is sorted, each of *blocks* is; −1 for missing."""
    if len(used) == 1 and (blocks == used[0]).all():  # the usual case
        return np.zeros(len(blocks), np.int32)
    return np.where(blocks >= 0, np.searchsorted(used, blocks), -1).astype(np.int32)


def some_missing(cells: Located) -> bool:
    """Whether a row lacks one of the columns."""
    return any((np.frombuffer(each.block, np.int32) < 0).any() for each in cells.cells)


def missing_rows(partition: Partition, ids: Sequence[str], slots: Ints, columns: Sequence[str]) -> MissingRows:
    """What to tell who asks for rows or values that are not there."""
    absent = {name: ~((slots >= 0) & partition.present(name, slots)) for name in columns}
    missing = {
        ids[row]: [name for name in columns if absent[name][row]]
        for row in np.flatnonzero(np.logical_or.reduce([slots < 0, *absent.values()])).tolist()
    }
    first, lacks = next(iter(missing.items()))
    row = ids.index(first)
    slot = slots[row]
    columns_of = f"columns {', '.join(map(repr, lacks))} of " if slot >= 0 else ""
    cleared = slot >= 0 and any(cells_of(partition, name, slots[[row]], 1)[0][0] == CLEARED for name in lacks)
    why = "cleared, as retention asks" if cleared else "not written, or superseded and not written again"
    if slot < 0:
        why = "there is no such row: never put, or cleared whole"
    more = f", and {len(missing) - 1} more samples" if len(missing) > 1 else ""
    return MissingRows(
        f"partition {partition.name!r}: {columns_of}sample {first!r}{more}: {why}; "
        'pass missing="null" to get nulls',
        missing,
    )
