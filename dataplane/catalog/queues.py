"""Who is ready for a task, found in time that does not grow with the rows: the host's side of claims.

A ``TaskQueue`` holds a :class:`~dataplane.numbers.ReadySet` of slots. Claims narrowed by ``where`` take from heaps
of row numbers, one per combination of values; claims of whole groups from a heap of groups. Both are made on
first use and may hold rows that are no longer ready: those are dropped when they come up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from dataplane.catalog.indexes import GroupIndex, Indexes
from dataplane.catalog.partition import Partition, Task
from dataplane.numbers import Bools, Ints, ReadySet
from schemas.messages import ClaimRequest
from schemas.records import Plain

_NONE = np.empty(0, dtype=np.int64)

#: Touched rows are looked at when a claim asks, or when so many batches wait.
_BACKLOG = 256


class TaskQueue:
    """The rows a task may claim now."""

    def __init__(self, partition: Partition, task: Task, indexes: Indexes) -> None:
        self.partition, self.task, self.indexes = partition, task, indexes
        self._where: dict[tuple[str, ...], WhereQueue] = {}
        self._groups: GroupQueue | None = None
        self._rebuild()

    def touched(self, slots: Ints) -> None:
        """Rows whose readiness may have changed."""
        if self.partition.packed != self._packed:
            self._rebuild()
            return
        ready = self.partition.ready(self.task, slots)
        self._ready.set(slots, ready)
        for columns, queue in list(self._where.items()):
            queue.add(self.partition.numbers_at(slots[ready]))
            if len(queue) > 2 * len(self._ready) + 65_536:
                del self._where[columns]  # nobody takes from it any more
        if self._groups is not None:
            self._groups.touched(self.partition.numbers_at(slots))

    def narrows_by(self, columns: Sequence[str]) -> bool:
        """Whether claims were narrowed by one of *columns*."""
        return any(name in columns for names in self._where for name in names)

    def select(self, request: ClaimRequest, members: Ints | None) -> Ints:
        """Row numbers to claim: in row order, or in the order of *members*, a step's."""
        if members is not None:
            return self._of_step(request, members)
        if request.by_group:
            return self._whole_groups(request)
        if request.where:
            return self._narrowed(request.where, request.limit)
        return self.partition.numbers_at(self._ready.first(request.limit))

    def is_ready(self, numbers: Ints) -> Bools:
        """Which of these rows may be claimed."""
        slots = self.partition.slots(numbers)
        return self._ready.has(slots)

    def __len__(self) -> int:
        return len(self._ready)

    def _rebuild(self) -> None:
        partition = self.partition
        self._packed = partition.packed
        self._ready = ReadySet(partition.ready(self.task, np.arange(partition.size)))
        self._where.clear()
        self._groups = None

    def _of_step(self, request: ClaimRequest, members: Ints) -> Ints:
        ready = members[self.is_ready(members)]
        slots = self.partition.slots(ready)
        if request.where:
            keep = self.indexes.matches(slots, request.where)
            ready, slots = ready[keep], slots[keep]
        if not request.by_group:
            return ready[: request.limit]
        index = self.indexes.groups()
        chosen = _NONE
        for group in index.groups(slots):
            rows = self._complete(index, group)
            if len(chosen) and request.limit is not None and len(chosen) + len(rows) > request.limit:
                break
            chosen = np.concatenate((chosen, rows))
        return members[np.isin(members, chosen)]

    def _narrowed(self, where: dict[str, list[Plain]], limit: int | None) -> Ints:
        columns = tuple(sorted(where))
        queue = self._where.get(columns)
        if queue is None:
            queue = self._where[columns] = WhereQueue(columns, self.partition, self.indexes)
            queue.add(self.partition.numbers_at(self._ready.first(None)))
        return queue.take([where[column] for column in columns], limit, self.is_ready)

    def _whole_groups(self, request: ClaimRequest) -> Ints:
        index = self.indexes.groups()
        if self._groups is None:
            self._groups = GroupQueue(index, self.partition)
            self._groups.touched(self.partition.numbers_at(self._ready.first(None)))
        chosen: list[Ints] = []
        back: list[tuple[int, int]] = []
        for group in self._groups.pop():
            rows = self._complete(index, group)
            if not len(rows):
                continue
            fits = not chosen or request.limit is None or sum(map(len, chosen)) + len(rows) <= request.limit
            if fits and self.indexes.matches(self.partition.slots(rows), request.where).all():
                chosen.append(rows)
            else:
                back.append((int(rows[0]), group))
            if not fits:
                break
        self._groups.push(back)
        return np.sort(np.concatenate(chosen)) if chosen else _NONE

    def _complete(self, index: GroupIndex, group: int) -> Ints:
        """Row numbers to claim of a group of which every row that is neither failed nor done is ready; else none."""
        slots = index.rows(group)
        open_rows = slots[~self.partition.failed.data[slots] & ~self.task.done.data[slots]]
        numbers = self.partition.numbers_at(open_rows)
        return numbers if self.is_ready(numbers).all() else _NONE


class WhereQueue:
    """Ready rows by their values in some scalar columns: a heap of row numbers for each combination."""

    def __init__(self, columns: tuple[str, ...], partition: Partition, indexes: Indexes) -> None:
        self._partition = partition
        self._indexes = [indexes.column(column) for column in columns]
        self._heaps: dict[tuple[int, ...], list[int]] = {}
        self._fresh: list[Ints] = []
        self._size = 0

    def add(self, numbers: Ints) -> None:
        """Rows that are ready, maybe with new values."""
        if len(numbers):
            self._fresh.append(numbers)
            self._size += len(numbers)

    def take(self, values: Sequence[Sequence[Plain]], limit: int | None, is_ready: Callable[[Ints], Bools]) -> Ints:
        """The smallest *limit* ready rows that have one of *values* in each column."""
        self._sort_in()
        wanted = list(product(*(index.wanted(some) for index, some in zip(self._indexes, values, strict=True))))
        heaps = [self._heaps[key] for key in wanted if key in self._heaps]
        taken = _NONE
        while any(heaps) and (limit is None or len(taken) < limit):
            popped = np.unique(_pop(heaps, None if limit is None else limit - len(taken)))
            self._size -= len(popped)
            fresh = popped[is_ready(popped) & ~np.isin(popped, taken)]
            taken = np.concatenate((taken, fresh[self._match(fresh, wanted)]))
        return taken

    def __len__(self) -> int:
        return self._size

    def _sort_in(self) -> None:
        if not self._fresh:
            return
        numbers = np.unique(np.concatenate(self._fresh))
        self._fresh.clear()
        slots = self._partition.slots(numbers)
        numbers, slots = numbers[slots >= 0], slots[slots >= 0]
        if not len(numbers):
            return
        codes = np.stack([index.codes(slots) for index in self._indexes])
        order = np.lexsort(codes)  # stable: the numbers of a combination stay rising
        codes, numbers = codes[:, order], numbers[order]
        starts = np.flatnonzero(np.append(True, (codes[:, 1:] != codes[:, :-1]).any(axis=0)))
        for key, rising in zip(codes[:, starts].T.tolist(), np.split(numbers, starts[1:]), strict=True):
            _merge(self._heaps.setdefault(tuple(key), []), rising.tolist())

    def _match(self, numbers: Ints, wanted: list[tuple[int, ...]]) -> Bools:
        """Values may have been replaced since the row was queued; it is queued under the new ones too."""
        slots = self._partition.slots(numbers)
        codes = [index.codes(slots).tolist() for index in self._indexes]
        keys = set(wanted)
        return np.array([key in keys for key in zip(*codes, strict=True)], dtype=np.bool_)


class GroupQueue:
    """Groups that may be complete, smallest first row first."""

    def __init__(self, index: GroupIndex, partition: Partition) -> None:
        self._index, self._partition = index, partition
        self._heap: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._fresh: list[Ints] = []

    def touched(self, numbers: Ints) -> None:
        """Rows whose state in the task may have changed."""
        self._fresh.append(numbers)
        if len(self._fresh) > _BACKLOG:
            self._sort_in()

    def push(self, groups: Sequence[tuple[int, int]]) -> None:
        """Groups as (first row, group)."""
        for entry in groups:
            if entry[1] not in self._queued:
                self._queued.add(entry[1])
                heapq.heappush(self._heap, entry)

    def pop(self) -> Iterator[int]:
        """Groups, smallest first; one that is not complete is not seen again until it is touched."""
        self._sort_in()
        while self._heap:
            group = heapq.heappop(self._heap)[1]
            self._queued.discard(group)
            yield group

    def _sort_in(self) -> None:
        if not self._fresh:
            return
        slots = self._partition.slots(np.unique(np.concatenate(self._fresh)))
        self._fresh.clear()
        groups = self._index.groups(slots[slots >= 0])
        rows = ((self._index.rows(group), group) for group in groups)
        self.push([(int(self._partition.numbers_at(held[:1])[0]), group) for held, group in rows if len(held)])


def _pop(heaps: list[list[int]], limit: int | None) -> list[int]:
    """The smallest numbers over all heaps."""
    if limit is None or limit >= sum(map(len, heaps)):
        everything = [number for heap in heaps for number in heap]
        for heap in heaps:
            heap.clear()
        return everything
    popped: list[int] = []
    while len(popped) < limit:
        filled = [heap for heap in heaps if heap]
        if not filled:
            break
        popped.append(heapq.heappop(filled[0] if len(filled) == 1 else min(filled, key=lambda heap: heap[0])))
    return popped


def _merge(heap: list[int], rising: list[int]) -> None:
    """Add *rising* numbers to *heap*."""
    if len(rising) > len(heap) // 8:
        heap.extend(rising)
        heap.sort()
    else:
        for number in rising:
            heapq.heappush(heap, number)
