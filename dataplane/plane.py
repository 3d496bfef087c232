"""``DataPlane``: the verbs. It encodes and writes blocks itself; who has which row is asked of the host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dataplane.blocks.block import PARTITION, write
from dataplane.catalog.host import CatalogHost
from dataplane.catalog.reader import schema_bytes
from dataplane.claim import Claim
from dataplane.plane_reader import PlaneReader, Where, wanted
from dataplane.serving.remote import RemoteHost
from dataplane.upkeep.retention import Retained, retain
from schemas import records
from schemas.arrays import ColumnData, clean_text, to_arrow
from schemas.columns import HEAVY, SAMPLE_ID, TRAIN, refuse_unknown, schema_of
from schemas.errors import InputError, LeaseLost, StoreError
from schemas.messages import ClaimRequest, CommitRequest, PutRequest
from schemas.records import Block

#: Tasks that a run repeats when it goes back to a checkpoint.
RETRAINED = ("student", "baseline", "train")


class DataPlane(PlaneReader):
    """Typed columns of samples, in partitions; tasks claim rows whose columns are there. A context manager."""

    # -- declarations -------------------------------------------------------------------------------------------------

    def create_partition(
        self, name: str, columns: Mapping[str, pa.DataType | pa.Field] | Iterable[str] | pa.Schema
    ) -> None:
        """A partition with *columns*: names of the registry, or names with Arrow types. The same again does nothing."""
        self._writer.create_partition(name, schema_bytes(schema_of(columns)))

    def declare_task(self, partition: str, task: str, reads: Sequence[str], writes: Sequence[str] = ()) -> None:
        """Rows are ready for *task* when *reads* are present. The same again does nothing."""
        self._writer.declare_task(partition, task, list(reads), list(writes))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def put(
        self,
        partition: str,
        ids: Sequence[str],
        columns: Mapping[str, ColumnData],
        put_id: str | None = None,
        lineage: Mapping[str, Any] | None = None,
    ) -> None:
        """Add *columns* to rows, making those that are new. A *put_id* seen before does nothing.

        Everything is checked before anything is written: raises InputError naming row and column, also for a
        column that a row has already.
        """
        self._put(partition, list(ids), columns, put_id, lineage, replace=False)

    def replace(
        self,
        partition: str,
        ids: Sequence[str],
        columns: Mapping[str, ColumnData],
        put_id: str | None = None,
        lineage: Mapping[str, Any] | None = None,
    ) -> None:
        """Like ``put``, for columns that may be there: readers see the old values or the new, never a mix."""
        self._put(partition, list(ids), columns, put_id, lineage, replace=True)

    def clear(self, partition: str, ids: Sequence[str], columns: Sequence[str] = ()) -> int:
        """Forget rows (or only *columns* of them), and blocks that no row needs any more; the number of rows changed.

        Raises InputError for rows of a step that no checkpoint covers.
        """
        return self._writer.clear(partition, list(ids), list(columns))

    def retain(
        self,
        steps: int | None = None,
        heavy_steps: int | None = 0,
        heavy: Collection[str] = HEAVY,
        partition: str = TRAIN,
    ) -> Retained:
        """What a checkpoint allows: clear the rows of steps that it covers, but for the last *steps*, and the *heavy*
        columns of steps but for the last *heavy_steps* (None keeps all); merge the blocks of each covered step."""
        return retain(self, steps, heavy_steps, heavy, partition)

    def fail(self, partition: str, errors: Mapping[str, str]) -> None:
        """Give rows up (id to "code: detail"), whoever holds them."""
        self._writer.fail(partition, clean_text(dict(errors)))

    def position(self) -> int:
        """How many records the journal has; it grows with every change."""
        return self._writer.position()

    def wait(self, position: int, timeout_s: float) -> int:
        """The journal's position as soon as it is past *position*, at the latest after *timeout_s*."""
        return self._writer.wait(position, timeout_s)

    def wait_ready(self, tasks: Sequence[tuple[str, str]], timeout_s: float) -> list[int]:
        """Which of *tasks* (partition, task) have rows ready, by index: as soon as one has, none after *timeout_s*.

        Anybody may claim them first. Ends of leases do not count, a claim sees to them.
        """
        return self._writer.wait_ready(list(tasks), timeout_s)

    def requeue(self, partition: str, ids: Sequence[str], tasks: Sequence[str]) -> None:
        """Supersede what *tasks* wrote on these rows; the rows, failed ones too, wait for them under a new attempt."""
        self._writer.requeue(partition, list(ids), list(tasks))

    # -- claims -------------------------------------------------------------------------------------------------------

    def claim(
        self,
        partition: str,
        task: str,
        limit: int | None = None,
        lease_s: float = 60.0,
        where: Where | None = None,
        step: int | None = None,
        by_group: bool = False,
        worker: str = "",
    ) -> Claim | None:
        """Lease up to *limit* ready rows in row order (of a *step*, in its sealed order); None when there are none.

        *where* maps scalar columns to a value or the values wanted. *by_group* takes whole groups (rows of one
        ``group_id`` that are neither failed nor done must all be ready), one at least, even past *limit*.
        """
        if limit is not None and limit < 1:
            raise InputError(f"limit: expected at least 1, got {limit}")
        request = ClaimRequest(partition, task, limit, lease_s, wanted(where), step, by_group, worker)
        granted = self._writer.claim(request)
        return None if granted is None else Claim(self, partition, task, granted, lease_s)

    # -- the run ------------------------------------------------------------------------------------------------------

    def seal(self, step: int, ids: Sequence[str], partition: str = TRAIN) -> None:
        """The members of a step, in order; immutable."""
        self._writer.seal(step, list(ids), partition)

    def record_trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """The step's update was taken, with these metrics."""
        self._writer.record_trained(step, {name: float(value) for name, value in metrics.items()})

    def record_published(self, version: int, path: str) -> None:
        """Weights that generators may load."""
        self._writer.record_published(version, str(path))

    def record_checkpoint(self, step: int, path: str) -> None:
        """A complete checkpoint that covers every step up to *step*."""
        self._writer.record_checkpoint(step, str(path))

    def new_epoch(self, after_step: int, partition: str = TRAIN, tasks: Sequence[str] = RETRAINED) -> int:
        """Go back to *after_step*: what *tasks* wrote for later steps is superseded, their metrics, weights and
        checkpoints are no longer current; seals stay. The number of the new epoch (the first life is 0)."""
        return self._writer.new_epoch(after_step, partition, list(tasks))

    def record_fact(self, fact: str, value: str) -> None:
        """A text about the store as a whole, which stays however far the journal is trimmed; the latest one counts."""
        self._writer.record_fact(clean_text(fact), clean_text(value))

    def event(self, kind: str, **fields: records.Plain) -> None:
        """A line in ``events``."""
        wrong = [name for name, value in fields.items() if not isinstance(value, (str, int, float, bool, type(None)))]
        if wrong:
            raise InputError(f"event {kind!r}: field {wrong[0]!r} must be a text, a number, a boolean or None")
        self._writer.note(clean_text(kind), clean_text(fields))

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _writer(self) -> CatalogHost | RemoteHost:
        if isinstance(self._host, (CatalogHost, RemoteHost)):
            return self._host
        raise StoreError(f"{self.url} is open read-only; open it with mode='w' to change it")

    def _put(
        self,
        partition: str,
        ids: list[str],
        columns: Mapping[str, ColumnData],
        put_id: str | None,
        lineage: Mapping[str, Any] | None,
        replace: bool,
    ) -> None:
        writer, made = self._writer, records.lineage(lineage)
        arrays = _typed(self._schema(partition), partition, ids, columns)
        if not writer.check_put(partition, ids, list(arrays), put_id, replace) or not ids:
            return
        block = self._write(partition, ids, arrays)
        with self._unless_refused(block):
            if not writer.put(PutRequest(partition, ids, block, put_id, replace, made)):
                self.storage.delete([block.id])

    def _commit(
        self,
        claim: Claim,
        ids: list[str],
        columns: Mapping[str, ColumnData],
        failed: dict[str, str],
        lineage: Mapping[str, Any] | None,
    ) -> None:
        writer, made = self._writer, records.lineage(lineage)
        arrays = _typed(self._schema(claim.partition), claim.partition, ids, columns)
        block = self._write(claim.partition, ids, arrays) if arrays and ids else None
        with self._unless_refused(block):
            told = None if claim.is_all(ids, failed) else ids
            writer.commit(CommitRequest(claim.id, told, failed, block, made))

    @contextmanager
    def _unless_refused(self, block: Block | None) -> Iterator[None]:
        """Delete a written block that the host refused. After any other interruption it may be in the journal, and
        stays: the next writer sweeps it if it is not."""
        try:
            yield
        except (InputError, LeaseLost):
            if block is not None:
                self.storage.delete([block.id])
            raise

    def _write(self, partition: str, ids: list[str], arrays: dict[str, pa.Array]) -> Block:
        schema = self._fields(partition, [*arrays, SAMPLE_ID]).with_metadata({PARTITION: partition})
        return write(self.storage, schema, arrays, ids)


def _check_ids(ids: Sequence[str]) -> None:
    """Texts that UTF-8 can hold. Raises InputError."""
    try:
        "".join(ids).encode()
        good = all(ids)
    except (TypeError, UnicodeEncodeError):
        good = False
    if not good:
        wrong = next(i for i in ids if not isinstance(i, str) or not i or clean_text(i) != i)
        raise InputError(f"sample ids are texts of at least one character, valid in UTF-8; got {wrong!r}")


def _typed(
    schema: pa.Schema, partition: str, ids: Sequence[str], columns: Mapping[str, ColumnData]
) -> dict[str, pa.Array]:
    """*columns* as arrays of their declared types. Raises InputError."""
    _check_ids(ids)
    refuse_unknown(columns, schema, partition)
    return {name: to_arrow(data, schema.field(name), ids) for name, data in columns.items()}
