"""How much waits in rows that belong to no step yet: what back-pressure goes by."""

from __future__ import annotations

import numpy as np

from dataplane.catalog.blocktable import BlockTable
from dataplane.catalog.partition import Partition
from schemas.messages import Buffered


def buffered_of(partition: Partition, blocks: BlockTable) -> Buffered:
    """Unsealed rows of *partition* that have not failed, and their share of the bytes of the blocks they lie in."""
    slots = partition.live_slots()
    slots = slots[(partition.step.data[slots] == 0) & ~partition.failed.data[slots]]
    rows: dict[int, int] = {}
    for cells in partition.cells.values():
        found, counts = np.unique(cells.block.data[slots], return_counts=True)
        for block, count in zip(found.tolist(), counts.tolist(), strict=True):
            rows[block] = max(rows.get(block, 0), count)
    share = sum(blocks[b].size_bytes * count // blocks[b].rows for b, count in rows.items() if b >= 0)
    return Buffered(len(slots), share)
