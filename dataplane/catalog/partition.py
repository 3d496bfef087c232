"""One partition of the catalog: where each cell of each row lies, and how far each task is with the row.

Rows have **numbers**, given once in order of creation and never again; the journal, leases and steps speak of
numbers. In memory a row has a **slot**, its place in the arrays. Slots equal numbers until enough rows were
cleared; then the arrays are packed and the numbers of the slots kept beside them.

    slot      0     1     2          put(a, b, c) · put reward of a, b · claim b for 'train'
    ids       a     b     c
    input_ids 0:0   0:1   0:2        block : row in the block
    reward    1:0   1:1   −
    train     ready claimed waiting  (missing 0, 0, 1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np
import pyarrow as pa

from dataplane.numbers import Bools, Grown, Ints, as_slice

#: Packing starts when more rows are dead than alive, and at least this many.
_PACK_AT = 4096

#: Block index of a value that was there and was cleared.
CLEARED = -2


class Cells:
    """Where one column's values lie: block index (−1: missing, −2: cleared) and row in that block, an entry a slot."""

    __slots__ = ("block", "row")

    def __init__(self, size: int) -> None:
        self.block = Grown(np.int32, -1, size)
        self.row = Grown(np.int32, 0, size)


class Task:
    """A declared task's state: per slot, how many of its reads are missing, and whether it is done or claimed."""

    __slots__ = ("attempt", "claimed", "done", "missing", "name", "reads", "writes")

    def __init__(self, name: str, reads: Sequence[str], writes: Sequence[str], size: int) -> None:
        self.name, self.reads, self.writes = name, tuple(reads), tuple(writes)
        self.missing = Grown(np.int16, len(self.reads), size)
        self.done = Grown(np.bool_, False, size)
        self.claimed = Grown(np.bool_, False, size)
        self.attempt = Grown(np.int32, 0, size)

    def read_of(self, columns: Iterable[str]) -> list[str]:
        """Those of *columns* that it reads."""
        return [name for name in columns if name in self.reads]


class Partition:
    """Rows, cells and tasks of one partition. Changed only by the catalog, as the journal says."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.size = 0
        self.next_number = 0
        self.packed = 0  # how often slots moved: who remembers slots compares this
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self.errors: dict[int, tuple[str, str]] = {}  # number → ("code: detail", the task that failed or "")
        self.superseded: dict[int, list[int]] = {}  # number → blocks that only its history needs
        self.numbers = Grown(np.int64, 0, 0)
        self.live = Grown(np.bool_, True, 0)
        self.failed = Grown(np.bool_, False, 0)
        self.step = Grown(np.int32, 0, 0)
        self.cells: dict[str, Cells] = {}
        self.tasks: dict[str, Task] = {}
        self.attached: list[Grown] = []  # arrays of indexes, which grow and move with the slots

    # -- names --------------------------------------------------------------------------------------------------------

    def find(self, ids: Collection[str]) -> Ints:
        """Row numbers of *ids*, −1 where there is none."""
        return np.fromiter(map(self.index.get, ids, repeat(-1)), dtype=np.int64, count=len(ids))

    def slots(self, numbers: Ints) -> Ints:
        """Slots of row numbers; −1 for rows that are gone."""
        if len(self.index) == self.next_number:  # none is
            return numbers
        if not self.packed:
            slots = numbers
        else:
            held = self.numbers.data[: self.size]
            slots = np.minimum(np.searchsorted(held, numbers), max(self.size - 1, 0))
            slots = np.where(held[slots] == numbers, slots, -1) if self.size else np.full(len(numbers), -1)
        return np.where((slots >= 0) & self.live.data[slots], slots, -1) if self.size else np.full(len(numbers), -1)

    def numbers_at(self, slots: Ints) -> Ints:
        """Row numbers of slots."""
        return self.numbers.data[slots]

    def live_slots(self) -> Ints:
        """Every row's slot, in row order."""
        return np.flatnonzero(self.live.data[: self.size])

    def failed_slots(self) -> Ints:
        """The slots of rows that failed, in row order; of all rows they are few."""
        slots = self.slots(np.array(sorted(self.errors), dtype=np.int64))
        return slots[slots >= 0]

    def ids_at(self, slots: Ints) -> list[str]:
        """Sample ids of slots."""
        return [self.ids[slot] for slot in slots.tolist()]

    def names(self, numbers: Ints) -> list[str]:
        """Sample ids of row numbers, for messages; empty for rows that are gone."""
        return [self.ids[slot] if slot >= 0 else "" for slot in self.slots(numbers).tolist()]

    # -- what the journal says ----------------------------------------------------------------------------------------

    def declare(self, name: str, reads: Sequence[str], writes: Sequence[str]) -> None:
        """A new task; rows that have its reads already are ready at once."""
        task = Task(name, reads, writes, self.size)
        for column in task.reads:
            if column in self.cells:
                task.missing.data[: self.size] -= self.cells[column].block.data[: self.size] >= 0
        self.tasks[name] = task

    def add(self, ids: Sequence[str]) -> None:
        """New rows at the end."""
        count = len(ids)
        if not count:
            return
        for array in self._arrays():
            array.reach(self.size + count)
        numbers = range(self.next_number, self.next_number + count)
        self.numbers.data[self.size : self.size + count] = numbers
        self.index.update(zip(ids, numbers, strict=True))
        self.ids.extend(ids)
        self.size += count
        self.next_number += count

    def write(self, slots: Ints, columns: Iterable[str], block: int) -> list[tuple[int, int]]:
        """Row i of *block* holds *columns* of ``slots[i]``. Gives ``(block, rows)`` pairs that nothing shows now."""
        names = list(columns)
        before = self._blocks(slots, names)
        where, rows, held = as_slice(slots), np.arange(len(slots), dtype=np.int32), before >= 0
        for name in names:
            cells = self.cells[name]
            cells.block.data[where] = block
            cells.row.data[where] = rows
        if not held.any():  # the usual case
            for task in self.tasks.values():
                if come := len(task.read_of(names)):
                    task.missing.data[where] -= come
            return []
        for name, there in zip(names, held, strict=True):
            self._count_missing(name, slots, ~there, -1)
        return self._unused(slots, before)

    def move(self, slots: Ints, columns: Iterable[str], block: int) -> list[tuple[int, int]]:
        """What ``slots[i]`` has in *columns* lies in row i of *block*. Gives ``(block, rows)`` pairs as ``write``."""
        names = list(columns)
        before = self._blocks(slots, names)
        rows, needs = np.arange(len(slots), dtype=np.int32), np.zeros(len(slots), np.bool_)
        for name, old in zip(names, before, strict=True):
            there = old >= 0
            needs |= there
            self.cells[name].block.data[slots[there]] = block
            self.cells[name].row.data[slots[there]] = rows[there]
        return [*self._unused(slots, before), (block, int((~needs).sum()))]

    def clear_columns(self, slots: Ints, columns: Iterable[str]) -> list[tuple[int, int]]:
        """These values are gone. Gives ``(block, rows)`` pairs that nothing needs any more."""
        names = [name for name in columns if name in self.cells]
        before = self._blocks(slots, names)
        for name, old in zip(names, before, strict=True):
            there = old >= 0
            self.cells[name].block.data[slots[there]] = CLEARED
            self._count_missing(name, slots, there, 1)
        return self._unused(slots, before)

    def supersede(self, slots: Ints, tasks: Sequence[str], blocks_of: Sequence[int]) -> list[str]:
        """Hide what *tasks* wrote: cells in *blocks_of*, or of columns the tasks declare. Names of hidden columns."""
        if not len(slots):
            return []
        declared = {column for task in tasks for column in self.tasks[task].writes}
        hidden, before = [], []
        for name, cells in self.cells.items():
            blocks = cells.block.data[slots]
            gone = (blocks >= 0) & (np.isin(blocks, blocks_of) if name not in declared else True)
            if gone.any():
                hidden.append(name)
                before.append(np.where(gone, blocks, -1))
                cells.block.data[slots[gone]] = -1
                self._count_missing(name, slots, gone, 1)
        places, blocks = self._gone(slots, np.array(before, dtype=np.int32).reshape(-1, len(slots)))
        for number, block in zip(self.numbers.data[slots[places]].tolist(), blocks.tolist(), strict=True):
            self.superseded.setdefault(number, []).append(block)
        for task in tasks:
            self.tasks[task].done.data[slots] = False
        return hidden

    def fail(self, slots: Ints, errors: Sequence[str], task: str) -> None:
        """These rows failed; the first failure of a row stays."""
        for number, error in zip(self.numbers.data[slots].tolist(), errors, strict=True):
            self.errors.setdefault(number, (error, task))
        self.failed.data[slots] = True

    def revive(self, slots: Ints, by: Iterable[str] | None = None) -> None:
        """Forget failures (of the tasks *by*; all for None)."""
        for slot in slots[self.failed.data[slots]].tolist():
            number = int(self.numbers.data[slot])
            if by is None or self.errors[number][1] in by:
                del self.errors[number]
                self.failed.data[slot] = False

    def clear(self, slots: Ints) -> list[tuple[int, int]]:
        """These rows are gone. Gives ``(block, rows)`` pairs that nothing needs any more."""
        blocks = self._blocks(slots, self.cells)
        width = int(blocks.max(initial=-1)) + 1
        unused = _count(_pairs(blocks, width) % max(width, 1))
        for slot in slots.tolist():
            number = int(self.numbers.data[slot])
            unused.extend((block, 1) for block in self.superseded.pop(number, ()))
            self.errors.pop(number, None)
            del self.index[self.ids[slot]]
            self.ids[slot] = ""
        self.live.data[slots] = False
        for cells in self.cells.values():
            cells.block.data[slots] = -1
        self._pack_if_sparse()
        return unused

    def open_column(self, name: str) -> None:
        """Make room for a column's cells when its first value comes."""
        if name not in self.cells:
            self.cells[name] = Cells(self.size)

    # -- questions ----------------------------------------------------------------------------------------------------

    def present(self, name: str, slots: Ints) -> Bools:
        """Whether each of these rows has a value in column *name*."""
        cells = self.cells.get(name)
        return np.zeros(len(slots), np.bool_) if cells is None else cells.block.data[slots] >= 0

    def waiting_for(self, columns: Collection[str]) -> list[str]:
        """Tasks whose rows may become ready when *columns* come."""
        return [task.name for task in self.tasks.values() if not task.reads or task.read_of(columns)]

    def needing(self, blocks: Sequence[int]) -> Ints:
        """Slots of rows with a visible value in one of *blocks*."""
        needs = np.zeros(self.size, np.bool_)
        for cells in self.cells.values():
            needs |= np.isin(cells.block.data[: self.size], blocks)
        return np.flatnonzero(needs)

    def ready(self, task: Task, slots: Ints) -> Bools:
        """Which of these rows a claim for *task* may take."""
        at = as_slice(slots)
        waits = self.live.data[at] & ~self.failed.data[at] & (task.missing.data[at] == 0)
        return waits & ~task.done.data[at] & ~task.claimed.data[at]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _arrays(self) -> Iterator[Grown]:
        yield from (self.numbers, self.live, self.failed, self.step)
        for cells in self.cells.values():
            yield from (cells.block, cells.row)
        for task in self.tasks.values():
            yield from (task.missing, task.done, task.claimed, task.attempt)
        yield from self.attached

    def _count_missing(self, column: str, slots: Ints, changed: Bools, by: int) -> None:
        where = as_slice(slots) if changed.all() else slots[changed]
        for task in self.tasks.values():
            if column in task.reads:
                task.missing.data[where] += by

    def _blocks(self, slots: Ints, columns: Iterable[str]) -> Ints:
        """[columns, slots] block indexes of cells, −1 for missing."""
        at = as_slice(slots)
        rows = [self.cells[name].block.data[at] for name in columns]
        return np.array(rows, dtype=np.int32).reshape(len(rows), len(slots))

    def _gone(self, slots: Ints, before: Ints) -> tuple[Ints, Ints]:
        """Places in *slots* and blocks of *before* ([columns, slots]) that no cell of the row shows now, each once."""
        width = int(before.max(initial=-1)) + 1
        if not width:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        gone = np.setdiff1d(_pairs(before, width), _pairs(self._blocks(slots, self.cells), width), assume_unique=True)
        return gone // width, gone % width

    def _unused(self, slots: Ints, before: Ints) -> list[tuple[int, int]]:
        return _count(self._gone(slots, before)[1])

    def _pack_if_sparse(self) -> None:
        live = self.live_slots()
        if self.size - len(live) < max(_PACK_AT, len(live)):
            return
        for array in self._arrays():
            array.keep(live)
        self.ids = self.ids_at(live)
        self.size = len(live)
        self.packed += 1


def _pairs(blocks: Ints, width: int) -> Ints:
    """*blocks* ([columns, rows]) below *width* with their row, as row × width + block: each once, rising."""
    columns, rows = np.nonzero((blocks >= 0) & (blocks < width))
    return np.unique(rows * width + blocks[columns, rows])


def _count(blocks: Ints) -> list[tuple[int, int]]:
    values, counts = np.unique(blocks, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))
