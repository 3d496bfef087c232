"""What happens to a step once a checkpoint covers it: old rows and heavy payloads go, the rest is merged.

    step       1      2      3      4      5      6           checkpoint at 5, steps=3, heavy_steps=1
    rows     cleared  ·    merged merged merged   as written
    heavy                 cleared cleared  kept   kept
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dataplane.blocks.fetch import fetch
from schemas.messages import Located, MergeRequest

if TYPE_CHECKING:
    from dataplane.plane import DataPlane


class Retained(NamedTuple):
    """What was done: rows cleared, rows whose heavy columns were cleared, steps merged."""

    cleared: int
    lightened: int
    merged: int


def retain(
    plane: DataPlane, steps: int | None, heavy_steps: int | None, heavy: Collection[str], partition: str
) -> Retained:
    """See :meth:`DataPlane.retain`. Each step is a record of its own, so that a crash leaves whole steps."""
    covered = max((checkpoint.step for checkpoint in plane.checkpoints()), default=0)
    trained = [s.step for s in plane.steps() if s.partition == partition and s.trained_at and s.step <= covered]
    held = set(plane.partitions()[partition].names) & set(heavy)
    cleared = lightened = merged = 0
    for step in trained:
        ids = plane.members(step, partition)
        if not ids:
            continue
        if steps is not None and step <= covered - steps:
            cleared += plane.clear(partition, ids)
            continue
        if held and heavy_steps is not None and step <= covered - heavy_steps:
            lightened += plane.clear(partition, ids, sorted(held))
        merged += merge_rows(plane, partition, ids, held)
    if cleared:
        plane._writer.snapshot(True)
    return Retained(cleared, lightened, merged)


def merge_rows(plane: DataPlane, partition: str, ids: Sequence[str], without: Collection[str] = ()) -> bool:
    """Put all columns of *ids* into one block, but for those *without*; False when they lie in one already.

    Readers find every value throughout; a value that changes meanwhile leaves everything as it was.
    """
    names = [name for name in plane._schema(partition).names if name not in without]
    ends = plane._host.locate(partition, [ids[0], ids[-1]], names, "null")
    if len(ends.blocks) < 2:
        return False  # rows are merged a step at a time: two of them tell
    names, found = _held(names, plane._host.locate(partition, list(ids), names, "null"))
    table = fetch(plane._reader, plane._fields(partition, names), found, lambda: found, "shared")
    columns = {name: _one(table.column(name)) for name in names}
    block = plane._write(partition, list(ids), columns)
    with plane._unless_refused(block):
        if plane._writer.merge(MergeRequest(partition, list(ids), block, found)):
            return True
        plane.storage.delete([block.id])
    return False


def _held(names: Sequence[str], found: Located) -> tuple[list[str], Located]:
    """Those of the located columns that some row has, and where they lie."""
    some = [at for at, cells in enumerate(found.cells) if (np.frombuffer(cells.block, np.int32) >= 0).any()]
    moved = {at: index for index, at in enumerate(some)}
    held = [(name, moved[at]) for name, at in zip(names, found.where, strict=True) if at in moved]
    where = [at for _, at in held]
    return [name for name, _ in held], Located(found.blocks, [found.cells[at] for at in some], where, found.num_rows)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

