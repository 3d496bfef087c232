"""Reading located cells: which memory the values come in, and what to do when a block went meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa

from dataplane.backends.storage import BlockGone
from dataplane.blocks.block import BlockReader
from dataplane.blocks.gather import Places
from schemas.columns import SAMPLE_ID
from schemas.errors import CorruptData
from schemas.messages import Located

Memory = Literal["copy", "private", "shared"]

#: Smaller blocks are copied rather than mapped afresh: what a map costs, 0.05 ms, copies them. Larger ones are not
#: held twice, and whoever looks at a part pays for that part.
_MAP_FROM_BYTES = 1 << 20

#: A table over more blocks than this holds copies, as each block would hold a memory map (65,530 a process).
_MAX_MAPPED = 16_384


def fetch(
    reader: BlockReader, schema: pa.Schema, located: Located, again: Callable[[], Located], memory: Memory
) -> pa.Table:
    """The located cells as a table of *schema*.

    A block that went between lookup and reading means that its rows were cleared, replaced or merged meanwhile:
    *again* looks them up afresh, which finds them elsewhere or raises MissingRows. Raises BlockGone when the block
    is still the one to read: it is lost.
    """
    gone: set[str] = set()
    while True:
        try:
            return _read(reader, schema, located, memory)
        except BlockGone as error:
            if error.block in gone:
                raise
            gone.add(error.block)
            located = again()


def _read(reader: BlockReader, schema: pa.Schema, located: Located, memory: Memory) -> pa.Table:
    if len(located.blocks) > _MAX_MAPPED:
        memory = "copy"
    places = [Places(np.frombuffer(c.block, np.int32), np.frombuffer(c.row, np.int32)) for c in located.cells]
    lie = [places[at] for at in located.where]
    mapped = {i for i, b in enumerate(located.blocks) if memory == "private" and b.size_bytes >= _MAP_FROM_BYTES}
    loaded = _load(reader, located, schema, lie, mapped)
    columns = []
    for at, (field, place) in enumerate(zip(schema, lie, strict=True)):
        if field.name == SAMPLE_ID:
            columns.append(pa.chunked_array([pa.array(located.ids, pa.string())]))
            continue
        must_own = memory == "copy" or (memory == "private" and not mapped.issuperset(place.used))
        chunks = place.gather(field, partial(_loaded, loaded, at), own=must_own)
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=schema) if columns else _rows_only(located.num_rows)


def _load(
    reader: BlockReader, located: Located, schema: pa.Schema, lie: list[Places], mapped: set[int]
) -> dict[tuple[int, int], pa.Array]:
    """Whole columns by (column position, block), each block opened once; those in *mapped* as private maps."""
    wanted: dict[int, list[int]] = {}
    for at, place in enumerate(lie):
        for block in place.used:
            wanted.setdefault(block, []).append(at)
    loaded = {}
    for block, positions in wanted.items():
        read = reader.private if block in mapped else reader.shared
        try:
            arrays = read(located.blocks[block], [schema.field(at) for at in positions])
        except CorruptData as error:
            error.block = located.blocks[block].id
            raise
        loaded.update({(at, block): array for at, array in zip(positions, arrays, strict=True)})
    return loaded


def _loaded(loaded: dict[tuple[int, int], pa.Array], at: int, block: int) -> pa.Array:
    return loaded[at, block]


def _rows_only(rows: int) -> pa.Table:
    """A table without columns that still counts its rows."""
    return pa.table({"_": pa.nulls(rows)}).select([])
