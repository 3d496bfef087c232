"""``ClaimHost``: the writer's own part of a catalog, and everything about claims.

Nothing is changed before the record is in the journal, and a request that fails a check changes nothing. Methods take
and give plain data, so that they can be called from another process. One lock guards all of it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import msgspec
import numpy as np

from dataplane.backends.storage import Storage, Writer
from dataplane.blocks.block import BlockReader
from dataplane.catalog.catalog import Touched
from dataplane.catalog.checks import check_absent, check_error, check_known, check_own, check_unique
from dataplane.catalog.journal import Place
from dataplane.catalog.leases import Lease
from dataplane.catalog.locating import located
from dataplane.catalog.partition import Partition
from dataplane.catalog.queues import TaskQueue
from dataplane.catalog.reader import CatalogReader, Clock
from dataplane.catalog.snapshot import pack
from dataplane.numbers import Ints, not_in, to_runs
from schemas import messages, records
from schemas.errors import InputError, LeaseLost, StoreError, did_you_mean
from schemas.messages import ClaimRequest, CommitRequest, Granted
from schemas.records import AnyRecord

#: A snapshot is made when the journal has grown by so much (or by as much as the last snapshot took).
SNAPSHOT_BYTES = 16 << 20

#: The same when the store is closed.
CLOSE_BYTES = 1 << 20


class ClaimHost(CatalogReader):
    """A catalog and the right to change it, for as long as it holds the storage's lock."""

    def __init__(self, storage: Storage, blocks: BlockReader, clock: Clock = time.time) -> None:
        super().__init__(storage, blocks, clock)
        before = storage.writer()
        storage.lock()
        self._queues: dict[tuple[str, str], TaskQueue] = {}
        self._life = secrets.token_hex(3)  # claims of another life of the host are unknown to this one
        self._claims = count(1)
        self._waiting: dict[threading.Condition, Callable[[], bool]] = {}
        self._snapshot_bytes = 0
        self._folded = True  # false for good when an interrupt fell between journal and catalog
        try:
            self.refresh()
            self._journal.cut_tail()
            self._delete_leftovers(before)
            with self._guard:
                self._write(records.Opened(time=clock(), format=records.FORMAT, pid=os.getpid()))
        except BaseException:
            storage.close()
            raise

    def close(self) -> None:
        """End well: what the journal says is all there is. Where that cannot be noted, the next opening looks."""
        with self._guard, suppress(StoreError):  # a full disk, say: nothing is lost, and what led here is told
            if self._folded and self._journal.position - self._journal.snapshot_at > CLOSE_BYTES:
                self._snapshot()
            self.storage.closed(self._journal.position)

    def _delete_leftovers(self, before: Writer) -> None:
        """Blocks of puts that a crash kept from being acknowledged; none while records may be missing."""
        if before.closed_at is None or before.closed_at == self._journal.position:
            needed = {block.id for block, _, _ in self._catalog.blocks}
            self.storage.delete(set(self.storage.blocks()) - needed)

    def _snapshot(self, trim: bool = False) -> None:
        """Keep the catalog as it is; with *trim* forget the journal that led to it."""
        position = self._journal.position
        parts = pack(self._catalog, Place(self._journal.seq, self._journal.seq if trim else self._journal.first_seq))
        self.storage.save(position, parts)
        self._snapshot_bytes = sum(map(len, parts))  # type: ignore[arg-type]  # bytes
        self._journal.snapshot_at = position
        if trim:
            self.storage.trim(position)
            self._journal.first_seq = self._journal.seq

    def claim(self, request: ClaimRequest) -> Granted | None:
        """Lease ready rows; None when there are none. Raises InputError."""
        with self._guard:
            self._expire()
            found = self._partition(request.partition)
            queue = self._queue(found, request.task)
            members = None if request.step is None else self._sealed(request.step, request.partition)
            numbers = queue.select(request, members)
            if not len(numbers):
                return None
            slots = found.slots(numbers)
            attempt = int(queue.task.attempt.data[slots].max()) + 1
            claim = f"{self._life}-{next(self._claims)}"
            self._write(
                records.Claimed(
                    time=self.clock(),
                    partition=request.partition,
                    task=request.task,
                    claim=claim,
                    attempt=attempt,
                    runs=to_runs(numbers),
                    lease_s=request.lease_s,
                    worker=request.worker,
                )
            )
            reads = list(queue.task.reads)
            cells = located(found, slots, reads, self._catalog.blocks)
            return Granted(claim, found.ids_at(slots), attempt, reads, cells)

    def renew(self, claim: str, lease_s: float) -> None:
        """Start the lease again. Raises LeaseLost."""
        with self._guard:
            lease = self._lease(claim)
            self._write(
                records.Renewed(
                    time=self.clock(), claim=claim, partition=lease.partition, task=lease.task, lease_s=lease_s
                )
            )

    def release(self, claim: str) -> None:
        """Give back what is left of a claim; nothing happens when it is over."""
        with self._guard:
            self._expire()
            lease = self._catalog.leases.get(claim)
            if lease is not None:
                self._release(lease, "released")

    def commit(self, request: CommitRequest) -> None:
        """Acknowledge rows of a claim, with a written block, and record failures: one record. Raises LeaseLost."""
        with self._guard:
            lease, numbers, failed = self._checked_commit(request)
            self._write(
                records.Committed(
                    time=self.clock(),
                    partition=lease.partition,
                    task=lease.task,
                    claim=request.claim,
                    runs=to_runs(numbers),
                    block=request.block,
                    failed=dict(zip(failed.tolist(), request.failed.values(), strict=True)),
                    lineage=msgspec.structs.replace(
                        request.lineage,
                        task=lease.task,
                        worker=request.lineage.worker or lease.worker,
                        attempt=lease.attempt,
                    ),
                )
            )

    def _checked_commit(self, request: CommitRequest) -> tuple[Lease, Ints, Ints]:
        """The claim's lease, and the numbers of the rows that are done and of those that failed."""
        lease = self._lease(request.claim)
        found = self._partition(lease.partition)
        if request.ids is None and not request.failed and lease.whole:  # the usual commit
            done, failed = lease.granted, lease.granted[:0]
        else:
            done, failed = self._leaving(request, lease, found)
        if request.block is not None:
            columns = request.block.columns[:-1]
            check_known(found, columns)
            if found.tasks[lease.task].writes:  # an attempt that died may have left some: they are replaced
                check_own(found.tasks[lease.task], columns)
            else:
                check_absent(found, found.slots(done), columns)
        return lease, done, failed

    def _leaving(self, request: CommitRequest, lease: Lease, partition: Partition) -> tuple[Ints, Ints]:
        """The numbers of rows that are done and of those that failed; all must be in the lease."""
        failed = partition.find(request.failed)
        if request.ids is None:
            done = lease.granted[not_in(lease.granted, failed)]
        else:
            check_unique([*request.ids, *request.failed])
            done = partition.find(request.ids)
        lost = np.flatnonzero(not_in(np.concatenate((done, failed)), lease.numbers))
        if len(lost):
            sample_id = [*(request.ids or partition.names(done)), *request.failed][lost[0]]
            raise LeaseLost(
                f"sample {sample_id!r} is not (or no longer) in claim {lease.claim} of task {lease.task!r}; "
                "what was computed for it is thrown away"
            )
        for error in request.failed.values():
            check_error(error)
        return done, failed

    def progress(self, partition: str) -> messages.Progress:
        with self._guard:
            self._expire()
            return super().progress(partition)

    def position(self) -> int:
        """How many records the journal has."""
        return self._journal.seq

    def wait(self, position: int, timeout_s: float) -> int:
        """The journal's position once it is past *position*, or after *timeout_s*."""
        with self._guard:
            self._wait_until(lambda: self._journal.seq > position, timeout_s)
            return self._journal.seq

    def wait_ready(self, tasks: list[tuple[str, str]], timeout_s: float) -> list[int]:
        """Which of *tasks* (partition, task) have rows ready, by index, as soon as one has or after *timeout_s*."""
        with self._guard:
            queues = [self._queue(self._partition(partition), task) for partition, task in tasks]
            self._wait_until(lambda: any(map(len, queues)), timeout_s)
            return [index for index, queue in enumerate(queues) if len(queue)]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Give up the lock until it *holds* or *timeout_s* passed. Whoever writes asks, and wakes whom it concerns."""
        if holds() or timeout_s <= 0:
            return
        changed = threading.Condition(self._guard)
        self._waiting[changed] = holds
        try:
            changed.wait_for(holds, timeout_s)
        finally:
            del self._waiting[changed]

    def _write(self, record: AnyRecord) -> None:
        """Journal first, then the catalog, then the files that nothing needs any more."""
        whole, self._folded = self._folded, False
        self._journal.append(record)
        self._applied(self._catalog.apply(record))
        self._folded = whole
        for changed, holds in self._waiting.items():
            if holds():
                changed.notify()
        self._drop_gone()
        if self._journal.position - self._journal.snapshot_at > max(SNAPSHOT_BYTES, self._snapshot_bytes):
            self._snapshot()

    def _drop_gone(self) -> list[str]:
        gone = super()._drop_gone()
        if gone:
            self.storage.delete(gone)
        return gone

    def _applied(self, touched: Touched | None) -> None:
        super()._applied(touched)
        if touched is None:
            return
        for (partition, task), queue in self._queues.items():
            concerned = touched.tasks is None or task in touched.tasks or queue.narrows_by(touched.columns)
            if concerned and partition == touched.partition.name:
                queue.touched(touched.slots)

    def _queue(self, partition: Partition, task: str) -> TaskQueue:
        key = partition.name, task
        if key not in self._queues:
            declared = partition.tasks.get(task)
            if declared is None:
                known = partition.tasks
                raise InputError(
                    f"partition {partition.name!r} has no task {task!r}{did_you_mean(task, known)}; "
                    "declare_task comes first"
                )
            self._queues[key] = TaskQueue(partition, declared, self._index(partition))
        return self._queues[key]

    def _lease(self, claim: str) -> Lease:
        self._expire()
        lease = self._catalog.leases.get(claim)
        if lease is None:
            raise LeaseLost(f"claim {claim} is over: committed, released, or its lease ended; claim again")
        return lease

    def _expire(self) -> None:
        for lease in self._catalog.leases.expired(self.clock()):
            self._release(lease, "expired")

    def _release(self, lease: Lease, reason: str) -> None:
        self._write(
            records.Released(
                time=self.clock(),
                claim=lease.claim,
                partition=lease.partition,
                task=lease.task,
                runs=to_runs(lease.numbers),
                reason=reason,
            )
        )

