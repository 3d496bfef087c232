"""The catalog: the journal folded, record by record. The writer and every follower run this same fold.

Folding the same records twice gives the same catalog. Leases, claims and attempts are folded too, for what one
sees, but are no part of the durable state: the record ``Opened`` ends every lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dataplane.catalog.blocktable import BlockTable
from dataplane.catalog.leases import Lease, Leases
from dataplane.catalog.partition import Partition
from dataplane.numbers import Ints, from_runs, run_length
from schemas import messages, records
from schemas.errors import StoreError

#: How many put ids are remembered; a put repeated after so many others is refused as a duplicate instead.
_PUT_IDS = 65_536


class Touched(NamedTuple):
    """Rows whose readiness (and *values*) a record may have changed; ``tasks`` None means for every task.

    *columns*: those that it wrote, if it is known for which tasks that matters. *moved*: only where the values lie.
    """

    partition: Partition
    slots: Ints
    tasks: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    values: bool = True
    moved: bool = False


class Catalog:
    """Partitions, blocks, steps, weights, checkpoints and leases, as the journal says."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.blocks = BlockTable()
        self.leases = Leases()
        self.steps: dict[int, messages.Step] = {}
        self.members: dict[int, list[int]] = {}
        self.published: list[messages.Weights] = []
        self.checkpoints: list[messages.Checkpoint] = []
        self.put_ids: OrderedDict[str, None] = OrderedDict()
        self.epoch = 0
        self.facts: dict[str, str] = {}
        self._folds: dict[type, Callable[[Any], Touched | None]] = {
            records.Opened: self._opened,
            records.PartitionCreated: self._partition_created,
            records.TaskDeclared: self._task_declared,
            records.Put: self._put,
            records.Claimed: self._claimed,
            records.Renewed: self._renewed,
            records.Released: self._released,
            records.Committed: self._committed,
            records.Failed: self._failed,
            records.Requeued: self._requeued,
            records.StepSealed: self._step_sealed,
            records.StepTrained: self._step_trained,
            records.Published: self._published,
            records.Checkpointed: self._checkpointed,
            records.Cleared: self._cleared,
            records.BlocksMerged: self._blocks_merged,
            records.EpochOpened: self._epoch_opened,
            records.Noted: lambda record: None,
            records.FactRecorded: self._fact_recorded,
        }

    def apply(self, record: records.AnyRecord) -> Touched | None:
        """Fold one record in."""
        return self._folds[type(record)](record)

    def end_leases(self, now: float) -> None:
        """Leases whose time has passed are over, for what a follower shows."""
        for lease in self.leases.expired(now):
            partition = self.partitions[lease.partition]
            self._leave_lease(lease.claim, partition, lease.task, lease.numbers, partition.slots(lease.numbers))

    def covered(self) -> int:
        """The last step that a checkpoint covers, or 0."""
        return max((checkpoint.step for checkpoint in self.checkpoints), default=0)

    # -- the folds ----------------------------------------------------------------------------------------------------

    def _opened(self, record: records.Opened) -> None:
        if record.format > records.FORMAT:
            raise StoreError(f"store format {record.format}: this version reads up to {records.FORMAT}; upgrade it")
        self.leases.clear()
        for partition in self.partitions.values():
            for task in partition.tasks.values():
                task.claimed.data[:] = False

    def _partition_created(self, record: records.PartitionCreated) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(record.arrow_schema))
        self.partitions[record.partition] = Partition(record.partition, schema)

    def _task_declared(self, record: records.TaskDeclared) -> Touched:
        partition = self.partitions[record.partition]
        partition.declare(record.task, record.reads, record.writes)
        return Touched(partition, partition.live_slots(), (record.task,), values=False)

    def _put(self, record: records.Put) -> Touched:
        partition = self.partitions[record.partition]
        partition.add(record.ids)
        slots = partition.slots(from_runs(record.runs))
        self._write(partition, slots, record.block, record)
        if record.put_id is not None:
            self.put_ids[record.put_id] = None
            if len(self.put_ids) > _PUT_IDS:
                self.put_ids.popitem(last=False)
        columns = record.block.columns
        return Touched(partition, slots, tuple(partition.waiting_for(columns)), columns)

    def _claimed(self, record: records.Claimed) -> Touched:
        partition = self.partitions[record.partition]
        task, numbers = partition.tasks[record.task], from_runs(record.runs)
        slots = partition.slots(numbers)
        task.claimed.data[slots] = True
        task.attempt.data[slots] += 1
        deadline = record.time + record.lease_s
        self.leases.grant(
            Lease(record.claim, record.partition, record.task, numbers, record.attempt, record.worker, deadline)
        )
        return Touched(partition, slots, (record.task,), values=False)

    def _renewed(self, record: records.Renewed) -> None:
        self.leases.renew(record.claim, record.time + record.lease_s)

    def _released(self, record: records.Released) -> Touched:
        partition, numbers = self.partitions[record.partition], from_runs(record.runs)
        slots = partition.slots(numbers)
        self._leave_lease(record.claim, partition, record.task, numbers, slots)
        return Touched(partition, slots, (record.task,), values=False)

    def _committed(self, record: records.Committed) -> Touched:
        partition = self.partitions[record.partition]
        numbers = from_runs(record.runs)
        slots = partition.slots(numbers)
        if record.block is not None:
            self._write(partition, slots, record.block, record)
        partition.tasks[record.task].done.data[slots] = True
        self._leave_lease(record.claim, partition, record.task, numbers, slots)
        if record.failed:
            failed = np.fromiter(record.failed, dtype=np.int64, count=len(record.failed))
            failed_slots = partition.slots(failed)
            partition.fail(failed_slots, list(record.failed.values()), record.task)
            self._leave_lease(record.claim, partition, record.task, failed, failed_slots)
            return Touched(partition, np.concatenate((slots, failed_slots)))
        written = record.block.columns if record.block is not None else ()
        return Touched(partition, slots, (record.task, *partition.waiting_for(written)), written)

    def _failed(self, record: records.Failed) -> Touched:
        partition = self.partitions[record.partition]
        numbers = np.fromiter(record.errors, dtype=np.int64, count=len(record.errors))
        slots = partition.slots(numbers)
        partition.fail(slots, list(record.errors.values()), "")
        self._end_leases(partition, list(partition.tasks), slots)
        return Touched(partition, slots)

    def _requeued(self, record: records.Requeued) -> Touched:
        partition = self.partitions[record.partition]
        slots = partition.slots(from_runs(record.runs))
        partition.revive(slots)
        return self._supersede(partition, slots, record.tasks)

    def _step_sealed(self, record: records.StepSealed) -> None:
        partition = self.partitions[record.partition]
        partition.step.data[partition.slots(from_runs(record.runs))] = record.step
        self.members[record.step] = record.runs
        self.steps[record.step] = messages.Step(record.step, record.partition, run_length(record.runs), record.time)

    def _step_trained(self, record: records.StepTrained) -> None:
        step = self.steps[record.step]
        step.trained_at, step.metrics = record.time, record.metrics

    def _published(self, record: records.Published) -> None:
        self.published.append(messages.Weights(record.version, record.path, record.time))

    def _checkpointed(self, record: records.Checkpointed) -> None:
        self.checkpoints.append(messages.Checkpoint(record.step, record.path, record.time))

    def _fact_recorded(self, record: records.FactRecorded) -> None:
        self.facts[record.fact] = record.value

    def _cleared(self, record: records.Cleared) -> Touched:
        partition = self.partitions[record.partition]
        slots = partition.slots(from_runs(record.runs))
        if record.columns:
            self.blocks.release(partition.clear_columns(slots, record.columns))
            return Touched(partition, slots)
        self._end_leases(partition, list(partition.tasks), slots)
        packed = partition.packed
        self.blocks.release(partition.clear(slots))
        return Touched(partition, slots if partition.packed == packed else np.empty(0, np.int64))

    def _blocks_merged(self, record: records.BlocksMerged) -> Touched:
        partition = self.partitions[record.partition]
        slots = partition.slots(from_runs(record.runs))
        index = self.blocks.add(record.block, partition.name, record.time, record.lineage)
        self.blocks.release(partition.move(slots, record.block.columns[:-1], index))
        return Touched(partition, slots, tasks=(), moved=True)

    def _epoch_opened(self, record: records.EpochOpened) -> Touched:
        self.epoch = record.epoch
        self.published = [weights for weights in self.published if weights.version <= record.after_step]
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.step <= record.after_step]
        for step in self.steps.values():
            if step.step > record.after_step:
                step.trained_at = step.metrics = None
        partition = self.partitions[record.partition]
        live = partition.live_slots()
        slots = live[partition.step.data[live] > record.after_step]
        partition.revive(slots, by=record.tasks)
        return self._supersede(partition, slots, record.tasks)

    # -- shared -------------------------------------------------------------------------------------------------------

    def _write(self, partition: Partition, slots: Ints, block: records.Block, record: Any) -> None:
        columns = block.columns[:-1]
        for name in columns:
            partition.open_column(name)
        index = self.blocks.add(block, partition.name, record.time, record.lineage)
        self.blocks.release(partition.write(slots, columns, index))

    def _leave_lease(self, claim: str, partition: Partition, task: str, numbers: Ints, slots: Ints) -> None:
        """These rows, at their *slots*, are held no longer."""
        partition.tasks[task].claimed.data[slots] = False
        lease = self.leases.get(claim)
        if lease is not None:
            self.leases.drop(lease, numbers)

    def _end_leases(self, partition: Partition, tasks: Sequence[str], slots: Ints) -> None:
        """Rows that somebody else decided about leave the leases they are in."""
        for task in map(partition.tasks.__getitem__, tasks):
            held = slots[task.claimed.data[slots]]
            if len(held):
                numbers = partition.numbers_at(held)
                task.claimed.data[held] = False
                for lease in self.leases.on(partition.name, task.name):
                    self.leases.drop(lease, numbers)

    def _supersede(self, partition: Partition, slots: Ints, tasks: Sequence[str]) -> Touched:
        blocks = [index for index in self._blocks_of(partition, slots) if self.blocks.task(index) in tasks]
        hidden = set(partition.supersede(slots, tasks, blocks))
        readers = [task.name for task in partition.tasks.values() if task.name in tasks or hidden & set(task.reads)]
        self._end_leases(partition, readers, slots)
        return Touched(partition, slots)

    def _blocks_of(self, partition: Partition, slots: Ints) -> list[int]:
        found = [np.unique(cells.block.data[slots]) for cells in partition.cells.values()]
        return [index for index in np.unique(np.concatenate(found)).tolist() if index >= 0] if found else []
