"""``check``: the journal against the catalog against the blocks; and ``repair``, which keeps all that is whole.

What a crash leaves (a torn tail, blocks of puts that were never acknowledged) is no problem: the next writer removes
it. The same in a store that was closed cleanly is one, as records must have gone missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from dataplane.backends.storage import BlockGone, Storage, Trimmed
from dataplane.blocks.block import decode, verify
from dataplane.catalog.catalog import Catalog
from dataplane.catalog.journal import Place, frames
from dataplane.catalog.snapshot import HEADER_BYTES, pack, unpack
from dataplane.numbers import distinct
from schemas.columns import SAMPLE_ID
from schemas.errors import CorruptData, StoreError
from schemas.records import Block

_SAMPLE_ID = pa.field(SAMPLE_ID, pa.string())


class Problem(NamedTuple):
    """What is wrong and where; a *harmless* one goes when the store is next opened for writing."""

    kind: str
    where: str
    detail: str
    harmless: bool = False


class Checked(NamedTuple):
    """What was looked at, and what is wrong with it. ``columns`` of blocks that cannot be read, by block id."""

    records: int
    blocks: int
    size_bytes: int
    live: bool
    problems: list[Problem]
    broken: dict[str, list[str]]
    orphans: list[str]
    whole_until: int
    damaged_at: int

    @property
    def clean(self) -> bool:
        return all(problem.harmless for problem in self.problems)


class _Fold:
    """The journal walked from its start, and the catalog as an opener would see it."""

    def __init__(self, storage: Storage) -> None:
        self.problems: list[Problem] = []
        self.catalog, self.from_snapshot = Catalog(), -1
        self.start = storage.start()
        data = storage.journal(self.start)
        self.records, self.end = 0, self.start
        self.size = self.start + len(data)
        self._saved, self._second = self._snapshot(storage), Catalog()
        self._walk(data, self.start)
        self.damaged_at = self.end
        if self.from_snapshot > self.end and self.problems and self.from_snapshot < self.size:
            self.end = self.from_snapshot
            self._walk(data[self.end - self.start :], self.end)

    def _walk(self, data: bytes, start: int) -> None:
        try:
            for end, record in frames(data, start):
                if self.start == start == 0:
                    self._second.apply(record)
                if end > self.from_snapshot:
                    self.catalog.apply(record)
                self.records, self.end = self.records + 1, end
                if end == self.from_snapshot and self.start == 0:
                    self._compare(self._second, self._saved)
        except StoreError as error:
            self.problems.append(Problem("journal_damaged", f"byte {self.end}", str(error)))

    def _snapshot(self, storage: Storage) -> bytes:
        saved = storage.saved()
        if saved is None:
            if self.start:
                self.problems.append(Problem("snapshot_missing", f"byte {self.start}", "the journal begins there"))
            return b""
        try:
            self.catalog, place = unpack(saved[1])
            self.from_snapshot = saved[0]
            return b"".join(pack(self.catalog, place))  # type: ignore[arg-type]  # bytes
        except StoreError as error:
            self.problems.append(Problem("snapshot_damaged", f"byte {saved[0]}", str(error)))
            return b""

    def _compare(self, folded: Catalog, saved: bytes) -> None:
        packed = b"".join(pack(folded, Place(self.records, 0)))  # type: ignore[arg-type]  # bytes
        if saved and packed[HEADER_BYTES:] != saved[HEADER_BYTES:]:
            self.problems.append(
                Problem("snapshot_differs", f"byte {self.end}", "it is not what the journal before it says")
            )


def check(storage: Storage) -> Checked:
    """Look at everything in a store; changes nothing, and may run beside its writer."""
    writer = storage.writer()
    fold = _folded(storage)
    fold.problems += _ends(fold, writer.alive, writer.closed_at)
    broken: dict[str, list[str]] = {}
    size = 0
    needed = {block.id: block for block, _, _ in fold.catalog.blocks}
    schemas = {block.id: fold.catalog.partitions[made.partition].schema for block, made, _ in fold.catalog.blocks}
    shown = _shown(fold.catalog)
    for block in needed.values():
        size += block.size_bytes
        for column, problem in _broken(storage, block, schemas[block.id], shown.get(block.id, set())):
            broken.setdefault(block.id, []).extend([column] if column else block.columns[:-1])
            fold.problems.append(problem)
    if writer.alive and broken:  # the writer may have cleared them meanwhile
        still = {block.id for block, _, _ in _folded(storage).catalog.blocks}
        broken = {block: columns for block, columns in broken.items() if block in still}
        fold.problems = [p for p in fold.problems if p.where.split()[0] in still or not p.kind.endswith("block")]
    orphans = [] if writer.alive else sorted(set(storage.blocks()) - set(needed))
    crashed = writer.closed_at is None
    for block_id in orphans:
        detail = "of a put that a crash cut off" if crashed else "no record names it: records must be missing"
        fold.problems.append(Problem("orphaned_block", block_id, detail, harmless=crashed))
    end = max(fold.end, fold.from_snapshot)
    return Checked(fold.records, len(needed), size, writer.alive, fold.problems, broken, orphans, end, fold.damaged_at)


def _folded(storage: Storage) -> _Fold:
    while True:
        try:
            return _Fold(storage)
        except Trimmed:
            continue  # a live writer trimmed between two looks


def _ends(fold: _Fold, alive: bool, closed_at: int | None) -> Iterator[Problem]:
    """Whether the journal ends where it should."""
    damaged = any(problem.kind == "journal_damaged" for problem in fold.problems)
    if fold.size > fold.end and not damaged and not alive:
        left = f"{fold.size - fold.end} bytes of a record"
        yield Problem("torn_tail", f"byte {fold.end}", f"{left} that was being written", harmless=closed_at is None)
    if fold.from_snapshot > fold.end and not damaged:
        yield Problem("journal_cut", f"byte {fold.end}", f"it ends before the snapshot's byte {fold.from_snapshot}")
    elif closed_at is not None and closed_at != fold.end and not damaged:
        yield Problem("journal_cut", f"byte {fold.end}", f"it was closed at byte {closed_at}")


def _shown(catalog: Catalog) -> dict[str, set[str]]:
    """Which columns of each block some row shows."""
    shown: dict[str, set[str]] = {}
    for partition in catalog.partitions.values():
        for name, cells in partition.cells.items():
            for index in distinct(cells.block.data[partition.live_slots()]):
                if index >= 0:
                    shown.setdefault(catalog.blocks[index].id, set()).add(name)
    return shown


def _broken(storage: Storage, block: Block, schema: pa.Schema, shown: set[str]) -> Iterator[tuple[str, Problem]]:
    """Columns of a block that do not read as they were written, of those *shown*; "" for all of them."""
    try:
        batch = decode(block, storage.view(block.id))
    except BlockGone:
        yield "", Problem("missing_block", block.id, "the journal names it and it is not there")
        return
    except StoreError as error:
        yield "", Problem("damaged_block", block.id, str(error))
        return
    for at, name in enumerate(block.columns):
        if name not in shown and name != SAMPLE_ID:
            continue
        field = _SAMPLE_ID if name == SAMPLE_ID else schema.field(name)
        try:
            verify(block, field, batch.column(at))
        except CorruptData as error:
            column = "" if name == SAMPLE_ID else name
            yield column, Problem("damaged_block", f"{block.id} {name}", str(error))
