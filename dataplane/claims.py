"""``ClaimHost``: the writer's own part of a catalog, and everything about claims.

Nothing is changed before the record is in the journal, and a request that fails a check changes nothing. Methods take
and give plain data, so that they can be called from another process. One lock guards all of it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Sequence
from itertools import count

import msgspec
import numpy as np

from dataplane.blocks import BlockReader
from dataplane.catalog import Touched
from dataplane.checks import check_error, check_put
from dataplane.journal import Place
from dataplane.leases import Lease
from dataplane.numbers import Ints, from_runs, to_runs
from dataplane.partition import Partition
from dataplane.queues import TaskQueue
from dataplane.reader import CatalogReader, Clock
from dataplane.snapshot import pack
from dataplane.storage import Storage, Writer
from schemas import messages, records
from schemas.errors import InputError, LeaseLost, did_you_mean
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
        self._changed = threading.Condition(self._guard)
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
        """End well: what the journal says is all there is."""
        with self._guard:
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
            numbers = queue.select(request, self._step_members(request))
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
            return Granted(claim, found.ids_at(slots), attempt, list(queue.task.reads))

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
            columns = request.block.columns[:-1] if request.block is not None else ()
            lease, numbers, failed = self._checked_commit(request.claim, request.ids, request.failed, columns)
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

    def _checked_commit(
        self, claim: str, ids: Sequence[str], failed: dict[str, str], columns: Sequence[str]
    ) -> tuple[Lease, Ints, Ints]:
        lease = self._lease(claim)
        found = self._partition(lease.partition)
        every = [*ids, *failed]
        numbers = found.find(every)
        lost = np.flatnonzero(~np.isin(numbers, lease.numbers))
        if len(lost):
            raise LeaseLost(
                f"sample {every[lost[0]]!r} is not (or no longer) in claim {claim} of task {lease.task!r}; "
                "what was computed for it is thrown away"
            )
        for error in failed.values():
            check_error(error)
        check_put(found, every, found.slots(numbers), (), replace=True)
        own = set(found.tasks[lease.task].writes)  # an attempt that died may have left some: they are replaced
        check_put(found, ids, found.slots(numbers[: len(ids)]), [c for c in columns if c not in own], replace=False)
        return lease, numbers[: len(ids)], numbers[len(ids) :]

    def progress(self, partition: str) -> messages.Progress:
        with self._guard:
            self._expire()
            return super().progress(partition)

    def position(self) -> int:
        """How many records the journal has."""
        with self._guard:
            return self._journal.seq

    def wait(self, position: int, timeout_s: float) -> int:
        """The journal's position once it is past *position*, or after *timeout_s*."""
        with self._guard:
            self._changed.wait_for(lambda: self._journal.seq > position, timeout_s)
            return self._journal.seq

    def wait_ready(self, tasks: list[tuple[str, str]], timeout_s: float) -> list[int]:
        """Which of *tasks* (partition, task) have rows ready, by index, as soon as one has or after *timeout_s*."""
        with self._guard:
            queues = [self._queue(self._partition(partition), task) for partition, task in tasks]
            self._changed.wait_for(lambda: any(map(len, queues)), timeout_s)
            return [index for index, queue in enumerate(queues) if len(queue)]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _write(self, record: AnyRecord) -> None:
        """Journal first, then the catalog, then the files that nothing needs any more."""
        whole, self._folded = self._folded, False
        self._journal.append(record)
        self._changed.notify_all()
        self._applied(self._catalog.apply(record))
        self._folded = whole
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
            if partition == touched.partition.name and (touched.tasks is None or task in touched.tasks):
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

    def _step_members(self, request: ClaimRequest) -> Ints | None:
        if request.step is None:
            return None
        self.members(request.step, request.partition)
        return from_runs(self._catalog.members[request.step])

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
