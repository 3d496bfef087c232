"""What can be asked of a catalog, the same of the writer's own and of a follower's: plain data, no row values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dataplane.backends.storage import Storage, Trimmed
from dataplane.blocks.block import BlockReader
from dataplane.blocks.gather import Places
from dataplane.catalog.blocktable import lineage_table
from dataplane.catalog.buffered import buffered_of
from dataplane.catalog.catalog import Catalog, Touched
from dataplane.catalog.checks import check_known
from dataplane.catalog.indexes import Indexes
from dataplane.catalog.journal import Journal
from dataplane.catalog.locating import cells_of, located, missing_rows, some_missing
from dataplane.catalog.partition import Partition
from dataplane.catalog.rowstate import progress_of, row_state_table
from dataplane.catalog.snapshot import unpack
from dataplane.numbers import Ints, from_runs
from schemas import messages
from schemas.columns import SAMPLE_ID
from schemas.errors import CorruptData, InputError, did_you_mean
from schemas.messages import Located
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

    def read_until(self) -> int:
        """The byte of the journal up to which the catalog knows it."""
        return self._journal.position

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
            cells = located(found, slots, columns, self._catalog.blocks)
            if missing == "raise" and ((slots < 0).any() or some_missing(cells)):
                raise missing_rows(found, ids, slots, columns)
            return cells

    def locate_all(self, partition: str, columns: Sequence[str]) -> Located:
        """Cells of *columns* (``sample_id`` too) for every row, in row order."""
        with self._guard:
            found = self._partition(partition)
            check_known(found, [name for name in columns if name != SAMPLE_ID])
            return located(found, found.live_slots(), columns, self._catalog.blocks)

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
        slots = partition.failed_slots() if failed else partition.live_slots()
        if step is not None:
            slots = slots[partition.step.data[slots] == step]
        if sealed is not None:
            slots = slots[(partition.step.data[slots] > 0) == sealed]
        if failed is False:
            slots = slots[~partition.failed.data[slots]]
        return slots

    def progress(self, partition: str) -> messages.Progress:
        """Counts of rows, failures by code, and rows by state in each task."""
        with self._guard:
            return progress_of(self._partition(partition))

    def buffered(self, partition: str) -> messages.Buffered:
        """Rows that belong to no step yet, and their bytes."""
        with self._guard:
            return buffered_of(self._partition(partition), self._catalog.blocks)

    def tasks(self, partition: str) -> dict[str, messages.TaskColumns]:
        """What the declared tasks read and write."""
        with self._guard:
            tasks = self._partition(partition).tasks.values()
            return {task.name: messages.TaskColumns(task.reads, task.writes) for task in tasks}

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
        blocks, rows = cells_of(partition, column, slots, len(slots))
        table = self._catalog.blocks
        lie = Places(blocks, rows)
        return lie.gather(field, lambda index: self._blocks.column(table[index], field), own=True)[0]

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
