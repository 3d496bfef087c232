"""Reading located cells: which memory the values come in, and what to do when a block went meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa

from dataplane.blocks import BlockReader
from dataplane.gather import gather, owned
from dataplane.storage import BlockGone
from schemas.columns import SAMPLE_ID
from schemas.records import Located

Memory = Literal["copy", "private", "shared"]

#: Smaller blocks are copied rather than mapped afresh: a map costs more than their bytes.
_MAP_FROM_BYTES = 128 << 10

#: A table over more blocks than this holds copies, as each block would hold a memory map (65,530 a process).
_MAX_SHARED = 16_384


def fetch(reader: BlockReader, locate: Callable[[], Located], memory: Memory) -> pa.Table:
    """The located cells as a table.

    A block that went between lookup and reading means that its rows were cleared, replaced or merged: look up once
    more, which finds them elsewhere or raises MissingRows.
    """
    try:
        return _read(reader, locate(), memory)
    except BlockGone:
        return _read(reader, locate(), memory)


def _read(reader: BlockReader, located: Located, memory: Memory) -> pa.Table:
    schema = pa.ipc.read_schema(pa.py_buffer(located.arrow_schema))
    if memory == "shared" and len(located.blocks) > _MAX_SHARED:
        memory = "copy"
    fresh = _fresh_maps(reader, located, schema) if memory == "private" else {}
    columns = []
    for at, (field, cells) in enumerate(zip(schema, located.cells, strict=True)):
        if field.name == SAMPLE_ID:
            columns.append(pa.chunked_array([pa.array(located.ids, pa.string())]))
            continue
        blocks, rows = np.frombuffer(cells.block, np.int32), np.frombuffer(cells.row, np.int32)

        def column(block: int, field: pa.Field = field, at: int = at) -> pa.Array:
            held = fresh.get((block, at))
            return held if held is not None else reader.column(located.blocks[block], field)

        chunks = gather(field, blocks, rows, column)
        if memory == "copy" or (memory == "private" and not _all_private(fresh, blocks, at)):
            columns.append(pa.chunked_array([owned(field, chunks)], field.type))
        else:
            columns.append(pa.chunked_array(chunks, field.type))
    if not columns:
        return pa.table({}).select([]) if not located.num_rows else _rows_only(located.num_rows)
    return pa.table(columns, schema=schema)


def _fresh_maps(reader: BlockReader, located: Located, schema: pa.Schema) -> dict[tuple[int, int], pa.Array]:
    """Columns of the larger blocks in new private maps, by (block, column position)."""
    wanted: dict[int, list[int]] = {}
    for at, cells in enumerate(located.cells):
        for block in np.unique(np.frombuffer(cells.block, np.int32)).tolist():
            if block >= 0 and located.blocks[block].size_bytes >= _MAP_FROM_BYTES:
                wanted.setdefault(block, []).append(at)
    maps = {}
    for block, positions in wanted.items():
        arrays = reader.private(located.blocks[block], [schema.field(at) for at in positions])
        maps.update({(block, at): array for at, array in zip(positions, arrays, strict=True)})
    return maps


def _all_private(fresh: dict[tuple[int, int], pa.Array], blocks: np.ndarray, at: int) -> bool:
    return all((block, at) in fresh for block in np.unique(blocks).tolist() if block >= 0)


def _rows_only(rows: int) -> pa.Table:
    """A table without columns that still counts its rows."""
    return pa.table({"_": pa.nulls(rows)}).select([])
