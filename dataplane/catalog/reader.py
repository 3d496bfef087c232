"""What can be asked of a catalog, the same of the writer's own and of a follower's: plain data, no row values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dataplane.backends.storage import Storage, Trimmed
from dataplane.blocks.block import BlockReader
from dataplane.blocks.gather import Places, owned
from dataplane.catalog.blocktable import lineage_table
from dataplane.catalog.buffered import buffered_of
from dataplane.catalog.catalog import Catalog, Touched
from dataplane.catalog.checks import check_known
from dataplane.catalog.indexes import Indexes
from dataplane.catalog.journal import Journal
from dataplane.catalog.partition import CLEARED, Partition
from dataplane.catalog.rowstate import progress_of, row_state_table
from dataplane.catalog.snapshot import unpack
from dataplane.numbers import Ints, distinct, from_runs
from schemas import messages
from schemas.columns import SAMPLE_ID
from schemas.errors import CorruptData, InputError, MissingRows, did_you_mean
from schemas.messages import Cells, Located
from schemas.records import Plain

Clock = Callable[[], float]


class CatalogReader:
    """A catalog and its journal behind one lock."""

    def __init__(self, storage: Storage, blocks: BlockReader, clock: Clock = time.time) -> None:
        self.storage = storage
        self.clock = clock
        self._blocks = blocks
        self._journal = Journal(storage)
        self._catalog = Catalog()
        self._indexes: dict[str, Indexes] = {}
        self._guard = threading.RLock()

    def refresh(self) -> int:
        """Read what the journal has gained; the number of new records."""
        with self._guard:
            before = self._journal.seq
            if not self._journal.position:
                self._restore()
            try:
                self._fold()
            except Trimmed:  # the writer made a snapshot and dropped what this follower had not read yet
                self._restore()
                self._fold()
            self._drop_gone()
            return self._journal.seq - before

    def _fold(self) -> None:
        for record in self._journal.read():
            self._applied(self._catalog.apply(record))

    def _restore(self) -> None:
        """Begin at the snapshot, if there is one."""
        saved = self.storage.saved()
        if saved is None:
            return
        try:
            catalog, place = unpack(saved[1])
        except CorruptData:
            if self.storage.start():
                raise  # what it stands for is nowhere else
            return
        self._catalog = catalog
        self._journal.go_to(saved[0], place)
        self._indexes.clear()
        self._blocks.close()

    # -- partitions and cells -----------------------------------------------------------------------------------------

    def partitions(self) -> dict[str, bytes]:
        """Arrow IPC schema messages by partition name."""
        with self._guard:
            return {name: schema_bytes(p.schema) for name, p in self._catalog.partitions.items()}

    def ids(self, partition: str) -> list[str]:
        """Every row's id, in row order."""
        with self._guard:
            found = self._partition(partition)
            return found.ids_at(found.live_slots())

    def locate(self, partition: str, ids: Sequence[str], columns: Sequence[str], missing: str = "raise") -> Located:
        """Cells of *columns* for *ids* in the order asked. Raises MissingRows unless *missing* is "null"."""
        with self._guard:
            found = self._partition(partition)
            check_known(found, columns)
            slots = found.slots(found.find(ids))
            located = self._located(found, slots, columns)
            if missing == "raise" and ((slots < 0).any() or any(_some_missing(cells) for cells in located.cells)):
                raise _missing_rows(found, ids, slots, columns)
            return located

    def locate_all(self, partition: str, columns: Sequence[str]) -> Located:
        """Cells of *columns* (``sample_id`` too) for every row, in row order."""
        with self._guard:
            found = self._partition(partition)
            check_known(found, [name for name in columns if name != SAMPLE_ID])
            return self._located(found, found.live_slots(), columns)

    def _located(self, partition: Partition, slots: Ints, columns: Sequence[str]) -> Located:
        ids = partition.ids_at(slots) if SAMPLE_ID in columns else []
        lie: dict[tuple[bytes, bytes], int] = {}  # columns that were written together lie alike: they are told once
        each = [_cells(partition, name, slots) for name in columns]
        where = [lie.setdefault((blocks.tobytes(), rows.tobytes()), len(lie)) for blocks, rows in each]
        once = [(np.frombuffer(blocks, np.int32), rows) for blocks, rows in lie]
        named = {index for blocks, _ in once for index in distinct(blocks)}
        used = np.array(sorted(index for index in named if index >= 0), dtype=np.int32)
        cells = [Cells(_positions(used, blocks).tobytes(), rows) for blocks, rows in once]
        return Located([self._catalog.blocks[index] for index in used.tolist()], cells, where, len(slots), ids)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(
        self,
        partition: str,
        have: Sequence[str] = (),
        lack: Sequence[str] = (),
        sealed: bool | None = None,
        failed: bool | None = None,
        where: dict[str, list[Plain]] | None = None,
        step: int | None = None,
    ) -> list[str]:
        """Ids of the rows that meet every condition, in row order."""
        with self._guard:
            found = self._partition(partition)
            slots = self._narrowed(found, sealed, failed, step)
            check_known(found, [*have, *lack])
            keep = np.ones(len(slots), np.bool_)
            for name in have:
                keep &= found.present(name, slots)
            for name in lack:
                keep &= ~found.present(name, slots)
            slots = slots[keep]
            return found.ids_at(slots[self._index(found).matches(slots, where)])

    def _narrowed(self, partition: Partition, sealed: bool | None, failed: bool | None, step: int | None) -> Ints:
        """Live rows that meet these conditions, the ones that most rows of a long run do not meet first."""
        slots = partition.live_slots()
        if step is not None:
            slots = slots[partition.step.data[slots] == step]
        if sealed is not None:
            slots = slots[(partition.step.data[slots] > 0) == sealed]
        if failed is not None:
            slots = slots[partition.failed.data[slots] == failed]
        return slots

    def progress(self, partition: str) -> messages.Progress:
        """Counts of rows, failures by code, and rows by state in each task."""
        with self._guard:
            return progress_of(self._partition(partition))

    def buffered(self, partition: str) -> messages.Buffered:
        """Rows that belong to no step yet, and their bytes."""
        with self._guard:
            return buffered_of(self._partition(partition), self._catalog.blocks)

    def row_state(self, partition: str, columns: Sequence[str] = ()) -> pa.Table:
        """A row a row: error, step, trained, attempt, claimed, missing, complete."""
        with self._guard:
            return row_state_table(self._partition(partition), self._trained(), columns)

    def _trained(self) -> list[int]:
        return [step.step for step in self._catalog.steps.values() if step.trained_at is not None]

    # -- the run ------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often the run went back to a checkpoint."""
        return self._catalog.epoch

    def members(self, step: int, partition: str) -> list[str]:
        """Ids of a sealed step in order, as far as they are not cleared. Raises InputError if it is not sealed."""
        with self._guard:
            slots = self._partition(partition).slots(self._sealed(step, partition))
            return self._partition(partition).ids_at(slots[slots >= 0])

    def _sealed(self, step: int, partition: str) -> Ints:
        """Row numbers of a step, cleared ones too. Raises InputError if it is not sealed."""
        sealed = self._catalog.steps.get(step)
        if sealed is None or sealed.partition != partition:
            there = [known.step for known in self.steps() if known.partition == partition]
            which = f"steps {there[0]} to {there[-1]} are" if there else "none is"
            raise InputError(f"step {step} of partition {partition!r} is not sealed; {which}")
        return from_runs(self._catalog.members[step])

    def steps(self) -> list[messages.Step]:
        """Sealed steps, by number."""
        with self._guard:
            return [self._catalog.steps[step] for step in sorted(self._catalog.steps)]

    def published(self, last: int = 0) -> list[messages.Weights]:
        """Weight versions of the latest epoch, oldest first: the *last* ones, or all."""
        return self._catalog.published[-last:]

    def checkpoints(self) -> list[messages.Checkpoint]:
        """Checkpoints of the latest epoch, oldest first."""
        return list(self._catalog.checkpoints)

    def facts(self) -> dict[str, str]:
        """What was recorded about the store, the latest value of each."""
        with self._guard:
            return dict(self._catalog.facts)

    def blocks(self) -> pa.Table:
        """Lineage: a row a block."""
        with self._guard:
            return lineage_table(self._catalog.blocks)

    # -- for the subclasses -------------------------------------------------------------------------------------------

    def _partition(self, name: str) -> Partition:
        try:
            return self._catalog.partitions[name]
        except KeyError:
            known = self._catalog.partitions
            raise InputError(
                f"no partition {name!r}{did_you_mean(name, known)}; there are: {', '.join(known) or 'none'}"
            ) from None

    def _index(self, partition: Partition) -> Indexes:
        if partition.name not in self._indexes:
            self._indexes[partition.name] = Indexes(partition, self._values)
        return self._indexes[partition.name]

    def _values(self, partition: Partition, column: str, slots: Ints) -> pa.Array:
        """Values of a scalar column at these slots: what the host reads of blocks, to narrow claims."""
        field = partition.schema.field(column)
        blocks, rows = _cells(partition, column, slots)
        table = self._catalog.blocks
        return owned(field, Places(blocks, rows).gather(field, lambda index: self._blocks.column(table[index], field)))

    def _applied(self, touched: Touched | None) -> None:
        if touched is None or touched.partition.name not in self._indexes:
            return
        indexes = self._indexes[touched.partition.name]
        if touched.moved:
            indexes.moved(touched.slots)
        elif touched.values:
            indexes.touched(touched.slots)

    def _drop_gone(self) -> list[str]:
        """Blocks that no row needs any more are closed; their ids."""
        gone, self._catalog.blocks.gone = self._catalog.blocks.gone, []
        self._blocks.forget(gone)
        return gone


def schema_bytes(schema: pa.Schema) -> bytes:
    """An Arrow IPC schema message."""
    return schema.serialize().to_pybytes()


def schema_from(data: bytes) -> pa.Schema:
    """The schema of an Arrow IPC schema message."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def _cells(partition: Partition, name: str, slots: Ints) -> tuple[Ints, Ints]:
    """Block indexes and rows of a column's cells; −1 for slot −1 too."""
    cells = partition.cells.get(name)
    if cells is None:
        return np.full(len(slots), -1, np.int32), np.zeros(len(slots), np.int32)
    return np.where(slots >= 0, cells.block.data[slots], np.int32(-1)), cells.row.data[slots]


def _positions(used: Ints, blocks: Ints) -> Ints:
    """Where in *used*, which is sorted, each of *blocks* is; −1 for missing."""
    if len(used) == 1 and (blocks == used[0]).all():  # the usual case
        return np.zeros(len(blocks), np.int32)
    return np.where(blocks >= 0, np.searchsorted(used, blocks), -1).astype(np.int32)


def _some_missing(cells: Cells) -> bool:
    return bool((np.frombuffer(cells.block, np.int32) < 0).any())


def _missing_rows(partition: Partition, ids: Sequence[str], slots: Ints, columns: Sequence[str]) -> MissingRows:
    """What to tell who asks for rows or values that are not there."""
    absent = {name: ~((slots >= 0) & partition.present(name, slots)) for name in columns}
    missing = {
        ids[row]: [name for name in columns if absent[name][row]]
        for row in np.flatnonzero(np.logical_or.reduce([slots < 0, *absent.values()])).tolist()
    }
    first, lacks = next(iter(missing.items()))
    slot = slots[ids.index(first)]
    columns_of = f"columns {', '.join(map(repr, lacks))} of " if slot >= 0 else ""
    cleared = slot >= 0 and any(_cells(partition, name, np.array([slot]))[0][0] == CLEARED for name in lacks)
    why = "cleared, as retention asks" if cleared else "not written, or superseded and not written again"
    if slot < 0:
        why = "there is no such row: never put, or cleared whole"
    more = f", and {len(missing) - 1} more samples" if len(missing) > 1 else ""
    return MissingRows(
        f"partition {partition.name!r}: {columns_of}sample {first!r}{more}: {why}; "
        'pass missing="null" to get nulls',
        missing,
    )
