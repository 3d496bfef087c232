"""``CatalogHost``: the one writer. It checks a request, writes one journal record, folds it in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane.catalog.checks import (
    check_absent,
    check_columns,
    check_error,
    check_known,
    check_same_task,
    check_unique,
    refuse_uncovered,
    refuse_unfinished_readers,
)
from dataplane.catalog.claims import ClaimHost
from dataplane.catalog.partition import Partition
from dataplane.catalog.reader import schema_from
from dataplane.numbers import Ints, to_runs
from schemas import records
from schemas.errors import InputError
from schemas.messages import MergeRequest, PutRequest
from schemas.records import Lineage


class CatalogHost(ClaimHost):
    """The catalog's owner: partitions, rows and the run's steps, besides claims."""

    #: The last put that was found in order, with the journal's position then, and the numbers of its rows.
    _checked: tuple[tuple[object, ...], Ints] = ((), np.empty(0, np.int64))

    # -- declarations and rows ----------------------------------------------------------------------------------------

    def create_partition(self, partition: str, arrow_schema: bytes) -> None:
        """A new partition; the same again does nothing. Raises InputError if it exists with other columns."""
        with self._guard:
            schema = schema_from(arrow_schema)
            known = self._catalog.partitions.get(partition)
            if known is None:
                check_columns(schema, self._catalog.partitions.values())
                self._write(records.PartitionCreated(time=self.clock(), partition=partition, arrow_schema=arrow_schema))
            elif not known.schema.equals(schema, check_metadata=True):
                raise InputError(f"partition {partition!r} exists with other columns: {', '.join(known.schema.names)}")

    def declare_task(self, partition: str, task: str, reads: Sequence[str], writes: Sequence[str]) -> None:
        """A new task; the same again does nothing. Raises InputError for unknown columns or other reads or writes."""
        with self._guard:
            found = self._partition(partition)
            if not check_same_task(found, task, reads, writes):
                self._write(
                    records.TaskDeclared(
                        time=self.clock(), partition=partition, task=task, reads=list(reads), writes=list(writes)
                    )
                )

    def check_put(
        self, partition: str, ids: Sequence[str], columns: Sequence[str], put_id: str | None, replace: bool
    ) -> bool:
        """Whether the block may be written; False if this put was done before. Raises InputError."""
        with self._guard:
            return self._checked_put(partition, ids, columns, put_id, replace) is not None

    def _checked_put(
        self, partition: str, ids: Sequence[str], columns: Sequence[str], put_id: str | None, replace: bool
    ) -> Ints | None:
        """Row numbers of *ids*, −1 for new ones; None if this put was done before."""
        if put_id is not None and put_id in self._catalog.put_ids:
            return None
        asked = self._journal.seq, partition, tuple(ids), tuple(columns), replace
        if asked == self._checked[0]:  # as it was before the block was written
            return self._checked[1].copy()
        found = self._partition(partition)
        numbers = found.find(ids)
        check_known(found, columns)
        check_unique(ids)
        if not replace:
            check_absent(found, found.slots(numbers[numbers >= 0]), columns)
        self._checked = asked, numbers.copy()
        return numbers

    def put(self, request: PutRequest) -> bool:
        """Make a written block visible; False if this put was done before. Raises InputError."""
        with self._guard:
            columns = request.block.columns[:-1]
            numbers = self._checked_put(request.partition, request.ids, columns, request.put_id, request.replace)
            if numbers is None:
                return False
            new = np.flatnonzero(numbers < 0)
            numbers[new] = self._partition(request.partition).next_number + np.arange(len(new))
            self._write(
                records.Put(
                    time=self.clock(),
                    partition=request.partition,
                    runs=to_runs(numbers),
                    block=request.block,
                    ids=request.ids if len(new) == len(numbers) else [request.ids[row] for row in new.tolist()],
                    put_id=request.put_id,
                    replace=request.replace,
                    lineage=request.lineage,
                )
            )
            return True

    def fail(self, partition: str, errors: dict[str, str]) -> None:
        """Give rows up, whoever holds them. Rows that failed before keep their error. Raises InputError."""
        with self._guard:
            found = self._partition(partition)
            numbers = self._known(found, list(errors))
            for error in errors.values():
                check_error(error)
            if errors:
                by_number = dict(zip(numbers.tolist(), errors.values(), strict=True))
                self._write(records.Failed(time=self.clock(), partition=partition, errors=by_number))

    def requeue(self, partition: str, ids: Sequence[str], tasks: Sequence[str]) -> None:
        """Supersede what *tasks* wrote on these rows and let them wait again. Raises InputError."""
        with self._guard:
            found = self._partition(partition)
            numbers = self._known(found, ids)
            for task in tasks:
                self._queue(found, task)
            refuse_unfinished_readers(found, found.slots(numbers), tasks, self._catalog.blocks)
            if len(numbers):
                self._write(
                    records.Requeued(time=self.clock(), partition=partition, runs=to_runs(numbers), tasks=list(tasks))
                )

    def lose(self, block: str, error: str) -> int:
        """Give up the rows that need a block which is gone or damaged; how many had not failed yet."""
        check_error(error)
        with self._guard:
            lost = 0
            for found in self._catalog.partitions.values():
                slots = found.needing(self._catalog.blocks.indexes(block))
                numbers = found.numbers_at(slots[~found.failed.data[slots]])
                if len(numbers):
                    errors = dict.fromkeys(numbers.tolist(), error)
                    self._write(records.Failed(time=self.clock(), partition=found.name, errors=errors))
                    lost += len(numbers)
            return lost

    def clear(self, partition: str, ids: Sequence[str], columns: Sequence[str] = ()) -> int:
        """Forget rows, or *columns* of them; unknown ids are skipped. The number of rows that changed.

        Raises InputError for rows of a step that no checkpoint covers.
        """
        with self._guard:
            found = self._partition(partition)
            check_known(found, columns)
            numbers = found.find(dict.fromkeys(ids))
            numbers = np.sort(numbers[numbers >= 0])
            slots = found.slots(numbers)
            refuse_uncovered(found, slots, self._catalog.covered())
            if columns:
                numbers = numbers[np.logical_or.reduce([found.present(name, slots) for name in columns])]
            self._clear(found, numbers, columns)
            return len(numbers)

    def _clear(self, partition: Partition, numbers: Ints, columns: Sequence[str]) -> None:
        if len(numbers):
            self._write(
                records.Cleared(
                    time=self.clock(), partition=partition.name, runs=to_runs(numbers), columns=list(columns)
                )
            )

    def merge(self, request: MergeRequest) -> bool:
        """Let a written block take the place of those it was made of; False if one of the values changed meanwhile."""
        with self._guard:
            columns = list(request.block.columns[:-1])
            found = self._partition(request.partition)
            if self.locate(request.partition, request.ids, columns, "null") != request.found:
                return False
            numbers = self._known(found, request.ids)
            lineage = Lineage(task="merge")
            self._write(
                records.BlocksMerged(
                    time=self.clock(),
                    partition=request.partition,
                    runs=to_runs(numbers),
                    block=request.block,
                    lineage=lineage,
                )
            )
            return True

    def snapshot(self, trim: bool) -> None:
        """Let the store open from here; with *trim* what led here is forgotten: ``events`` begins here."""
        with self._guard:
            self._snapshot(trim)

    def forget(self, block: str, columns: Sequence[str]) -> dict[str, list[str]]:
        """Clear what rows have of *columns* in a block that is gone or damaged; those rows, by partition."""
        with self._guard:
            rows = {}
            for found in self._catalog.partitions.values():
                slots = found.needing(self._catalog.blocks.indexes(block))
                if len(slots):
                    rows[found.name] = found.ids_at(slots)
                    self._clear(found, found.numbers_at(slots), [name for name in columns if name in found.cells])
            return rows

    def acknowledge(self, partition: str, task: str, ids: Sequence[str]) -> None:
        """The task is done with these rows, whose values are there: no claim is known of it any more."""
        with self._guard:
            found = self._partition(partition)
            self._queue(found, task)
            self._write(
                records.Committed(
                    time=self.clock(),
                    partition=partition,
                    task=task,
                    claim="",
                    runs=to_runs(self._known(found, ids)),
                    block=None,
                    failed={},
                    lineage=Lineage(task=task),
                )
            )

    # -- the run ------------------------------------------------------------------------------------------------------

    def seal(self, step: int, ids: Sequence[str], partition: str) -> None:
        """The members of a step, once and for all; the same again does nothing. Raises InputError."""
        with self._guard:
            found = self._partition(partition)
            numbers = self._known(found, ids)
            runs = to_runs(numbers)
            if step in self._catalog.steps:
                if self._catalog.members[step] == runs and self._catalog.steps[step].partition == partition:
                    return
                raise InputError(f"step {step} is sealed already, with other members; a sealed step never changes")
            if step < 1 or len(set(ids)) != len(ids) or not ids:
                raise InputError(f"step {step}: steps count from 1 and hold each row once, and at least one")
            taken = np.flatnonzero(found.step.data[found.slots(numbers)])
            if len(taken):
                raise InputError(f"step {step}: sample {ids[taken[0]]!r} is in another step already")
            self._write(records.StepSealed(time=self.clock(), step=step, partition=partition, runs=runs))

    def record_trained(self, step: int, metrics: dict[str, float]) -> None:
        """The step's update was taken. Raises InputError if it is not sealed, or was trained in this epoch."""
        with self._guard:
            sealed = self._catalog.steps.get(step)
            if sealed is None:
                raise InputError(f"step {step} is not sealed; seal it before it is trained")
            if sealed.trained_at is not None:
                raise InputError(f"step {step} was trained already in this epoch; open a new epoch to train it again")
            self._write(records.StepTrained(time=self.clock(), step=step, metrics=dict(metrics)))

    def record_published(self, version: int, path: str) -> None:
        """Weights that generators may load."""
        with self._guard:
            self._write(records.Published(time=self.clock(), version=version, path=path))

    def record_checkpoint(self, step: int, path: str) -> None:
        """A complete checkpoint that covers every step up to *step*."""
        with self._guard:
            self._write(records.Checkpointed(time=self.clock(), step=step, path=path))

    def new_epoch(self, after_step: int, partition: str, tasks: Sequence[str]) -> int:
        """Go back to *after_step*; the number of the new epoch."""
        with self._guard:
            found = self._partition(partition)
            declared = [task for task in tasks if task in found.tasks]
            self._write(
                records.EpochOpened(
                    time=self.clock(),
                    epoch=self._catalog.epoch + 1,
                    after_step=after_step,
                    partition=partition,
                    tasks=declared,
                )
            )
            return self._catalog.epoch

    def record_fact(self, fact: str, value: str) -> None:
        """What stays known about the store; the same again does nothing."""
        with self._guard:
            if self._catalog.facts.get(fact) != value:
                self._write(records.FactRecorded(time=self.clock(), fact=fact, value=value))

    def note(self, name: str, fields: dict[str, records.Plain]) -> None:
        """A line in ``events``."""
        with self._guard:
            self._write(records.Noted(time=self.clock(), name=name, fields=fields))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _known(self, partition: Partition, ids: Sequence[str]) -> Ints:
        numbers = partition.find(ids)
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            raise InputError(f"partition {partition.name!r} has no sample {ids[unknown[0]]!r} (never put, or cleared)")
        return numbers
