"""What the host refuses, before anything is written: each check raises InputError naming row and column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from dataplane.blocks.canonical import check_type
from dataplane.catalog.blocktable import BlockTable
from dataplane.catalog.partition import Partition, Task
from dataplane.numbers import Ints
from schemas.columns import FAILURE_CODES, refuse_unknown
from schemas.errors import InputError, did_you_mean


def check_columns(schema: pa.Schema, partitions: Iterable[Partition]) -> None:
    """Types that blocks can hold, and one type for one name in the whole plane."""
    for field in schema:
        check_type(field.name, field.type)
        for other in partitions:
            at = other.schema.get_field_index(field.name)
            if at >= 0 and other.schema.field(at).type != field.type:
                raise InputError(
                    f"column {field.name!r}: expected {other.schema.field(at).type} as in partition {other.name!r}, "
                    f"got {field.type}; one name has one type in a plane"
                )


def check_known(partition: Partition, columns: Iterable[str]) -> None:
    """Columns that the partition declares."""
    refuse_unknown(columns, partition.schema, partition.name)


def check_same_task(partition: Partition, task: str, reads: Sequence[str], writes: Sequence[str]) -> bool:
    """Whether the task is declared exactly so already."""
    check_known(partition, [*reads, *writes])
    known = partition.tasks.get(task)
    if known is None:
        return False
    if (known.reads, known.writes) != (tuple(reads), tuple(writes)):
        raise InputError(
            f"task {task!r} of partition {partition.name!r} is declared with reads {list(known.reads)} and writes "
            f"{list(known.writes)}; got reads {list(reads)} and writes {list(writes)}"
        )
    return True


def check_unique(ids: Sequence[str]) -> None:
    """No id twice."""
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(sample_id for sample_id in ids if sample_id in seen or seen.add(sample_id))  # type: ignore[func-returns-value]
        raise InputError(f"sample {twice!r} comes twice in one put; give each id once")


def check_absent(partition: Partition, slots: Ints, columns: Sequence[str]) -> None:
    """Columns that these rows do not have yet."""
    for column in columns if len(slots) else ():
        present = partition.present(column, slots)
        if present.any():
            sample_id = partition.ids[slots[np.argmax(present)]]
            raise InputError(f"column {column!r} of sample {sample_id!r} is there already; use replace to change it")


def check_own(task: Task, columns: Sequence[str]) -> None:
    """Columns that the task declares to write: others belong to somebody else, and its own would be missing."""
    for column in columns:
        if column not in task.writes:
            raise InputError(
                f"task {task.name!r} does not write column {column!r}{did_you_mean(column, task.writes)}; it declares "
                f"{', '.join(task.writes)}"
            )


def check_error(error: str) -> None:
    """``"code: detail"`` with a code of the one list."""
    code = error.split(":", 1)[0]
    if code not in FAILURE_CODES:
        raise InputError(
            f"error {error!r}: expected 'code: detail' with a code of {', '.join(FAILURE_CODES)}"
            f"{did_you_mean(code, FAILURE_CODES)}"
        )


def refuse_uncovered(partition: Partition, slots: Ints, covered: int) -> None:
    """Rows of a step stay until a checkpoint covers the step."""
    steps = partition.step.data[slots]
    late = np.flatnonzero(steps > covered)
    if len(late):
        slot = slots[late[0]]
        raise InputError(
            f"sample {partition.ids[slot]!r} belongs to step {partition.step.data[slot]}, which no checkpoint covers "
            f"(the last is of step {covered}); clear it after record_checkpoint"
        )


def refuse_unfinished_readers(partition: Partition, slots: Ints, tasks: Sequence[str], blocks: BlockTable) -> None:
    """What is superseded must not stay the ground of a finished task that is not repeated."""
    gone = {
        name
        for name, cells in partition.cells.items()
        if any(index >= 0 and blocks.task(index) in tasks for index in np.unique(cells.block.data[slots]).tolist())
    }
    gone |= {column for task in tasks for column in partition.tasks[task].writes}
    for task in partition.tasks.values():
        read = gone & set(task.reads)
        done = task.done.data[slots]
        if task.name not in tasks and read and done.any():
            raise InputError(
                f"task {task.name!r} is done with sample {partition.ids[slots[np.argmax(done)]]!r} and read "
                f"{sorted(read)[0]!r} of it: requeue {task.name!r} too"
            )
