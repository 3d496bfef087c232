"""The blocks that rows need, by index: what the journal says of each, who made it, and how many rows still need it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from schemas.records import Block, Lineage
from schemas.snapshot import SavedBlock

T = TypeVar("T")


class Made(NamedTuple):
    """Where a block belongs and who made it when."""

    partition: str
    time: float
    lineage: Lineage


class BlockTable:
    """Indexes are reused, so that cells stay small and the table as large as the store, not as its history."""

    def __init__(self) -> None:
        self._blocks: list[Block | None] = []
        self._made: list[Made | None] = []
        self._rows: list[int] = []
        self._free: list[int] = []
        self._shared: dict[object, object] = {}  # equal lineages and column tuples are kept once
        self.gone: list[str] = []  # ids that no row needs any more, until somebody deletes and empties

    def add(self, block: Block, partition: str, time: float, lineage: Lineage) -> int:
        """The index of a new block that each of its rows needs."""
        columns = self._once(block.columns)
        block = Block(block.id, block.size_bytes, block.rows, columns, block.checksums)
        made = Made(self._once(partition), time, self._once(lineage))
        if not self._free:
            self._blocks.append(block)
            self._made.append(made)
            self._rows.append(block.rows)
            return len(self._blocks) - 1
        index = self._free.pop()
        self._blocks[index], self._made[index], self._rows[index] = block, made, block.rows
        return index

    def release(self, unused: Iterable[tuple[int, int]]) -> None:
        """So many rows less need each block; at none it is gone."""
        for index, rows in unused:
            self._rows[index] -= rows
            if self._rows[index] == 0:
                self.gone.append(self[index].id)
                self._blocks[index] = self._made[index] = None
                self._free.append(index)

    def __getitem__(self, index: int) -> Block:
        block = self._blocks[index]
        assert block is not None, f"block index {index} is free"
        return block

    def indexes(self, block: str) -> list[int]:
        """The index of the block of this id, if rows need it."""
        return [index for index, held in enumerate(self._blocks) if held is not None and held.id == block]

    def saved(self) -> list[SavedBlock | None]:
        """Every index as a snapshot holds it."""
        table = zip(self._blocks, self._made, self._rows, strict=True)
        return [SavedBlock(b, *made, rows) if b is not None and made is not None else None for b, made, rows in table]

    def free(self) -> list[int]:
        """Indexes that hold no block, in the order in which they were freed."""
        return list(self._free)

    @classmethod
    def restored(cls, saved: Sequence[SavedBlock | None], free: Sequence[int]) -> BlockTable:
        """The table that gave *saved* and *free*. Raises ValueError if they disagree."""
        table = cls()
        if sorted(free) != [index for index, entry in enumerate(saved) if entry is None]:
            raise ValueError("free blocks are not those that are free")
        for entry in saved:
            table._blocks.append(None if entry is None else entry.block)
            table._made.append(None if entry is None else Made(entry.partition, entry.time, entry.lineage))
            table._rows.append(0 if entry is None else entry.rows)
        table._free = list(free)
        return table

    def task(self, index: int) -> str:
        """The task that made the block, or an empty text."""
        made = self._made[index]
        return made.lineage.task if made else ""

    def __iter__(self) -> Iterator[tuple[Block, Made, int]]:
        for block, made, rows in zip(self._blocks, self._made, self._rows, strict=True):
            if block is not None and made is not None:
                yield block, made, rows

    def __len__(self) -> int:
        return len(self._blocks) - len(self._free)

    def _once(self, value: T) -> T:
        return self._shared.setdefault(value, value)  # type: ignore[return-value]  # equal values are of equal type


LINEAGE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("partition", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("live_rows", pa.int64()),
        ("bytes", pa.int64()),
        ("task", pa.string()),
        ("worker", pa.string()),
        ("attempt", pa.int32()),
        ("time", pa.timestamp("us")),
        ("weight_version", pa.int32()),
        ("versions", pa.map_(pa.string(), pa.string())),
    ]
)


def lineage_table(blocks: BlockTable) -> pa.Table:
    """A row a block, oldest first: what it holds, and which task and worker made it, when, with which weights."""
    rows = [_lineage_row(*entry) for entry in sorted(blocks, key=lambda entry: entry[0].id)]
    return pa.Table.from_pylist(rows, schema=LINEAGE_SCHEMA)


def _lineage_row(block: Block, made: Made, live: int) -> dict[str, object]:
    lineage = made.lineage
    return {
        "id": block.id,
        "partition": made.partition,
        "columns": list(block.columns[:-1]),
        "rows": block.rows,
        "live_rows": live,
        "bytes": block.size_bytes,
        "task": lineage.task or None,
        "worker": lineage.worker or None,
        "attempt": lineage.attempt or None,
        "time": round(made.time * 1e6),
        "weight_version": lineage.weight_version,
        "versions": list(lineage.versions),
    }
