"""How far each row is: the counts of ``progress`` and the table behind a sample's status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dataplane.catalog.partition import Partition, Task
from dataplane.numbers import Ints
from schemas.messages import Progress, TaskProgress

ROW_STATE_SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("error", pa.string()),
        ("step", pa.int32()),
        ("trained", pa.bool_()),
        ("attempt", pa.int32()),
        ("claimed", pa.bool_()),
        ("missing", pa.list_(pa.string())),
        ("complete", pa.bool_()),
    ]
)


def progress_of(partition: Partition) -> Progress:
    """Counts over every row of *partition*."""
    slots = partition.live_slots()
    codes = Counter(error.split(":", 1)[0] for error, _ in partition.errors.values())
    tasks = {task.name: _task_progress(partition, task, slots) for task in partition.tasks.values()}
    return Progress(len(slots), int((partition.step.data[slots] > 0).sum()), dict(sorted(codes.items())), tasks)


def _task_progress(partition: Partition, task: Task, slots: Ints) -> TaskProgress:
    done = task.done.data[slots]
    failed = partition.failed.data[slots] & ~done
    claimed = task.claimed.data[slots] & ~done & ~failed
    waiting = (task.missing.data[slots] > 0) & ~done & ~failed & ~claimed
    counts = [int(flags.sum()) for flags in (waiting, claimed, done, failed)]
    return TaskProgress(counts[0], len(slots) - sum(counts), *counts[1:])


def row_state_table(partition: Partition, trained_steps: Sequence[int], columns: Sequence[str] = ()) -> pa.Table:
    """A row a row, in row order, with *columns* of ``ROW_STATE_SCHEMA`` (all for none).

    ``attempt`` is how often the most-claimed task claimed the row (at least 1); ``missing`` is what the first task
    that is not done with the row still lacks; ``complete`` says that every declared task is done with it.
    """
    slots = partition.live_slots()
    tasks = list(partition.tasks.values())
    step, none = partition.step.data[slots], np.zeros(len(slots), np.bool_)
    made: dict[str, Callable[[], pa.Array]] = {
        "sample_id": lambda: pa.array(partition.ids_at(slots), pa.string()),
        "error": lambda: _errors(partition, slots),
        "step": lambda: pa.array(step, mask=step == 0),
        "trained": lambda: pa.array(np.isin(step, trained_steps)),
        "attempt": lambda: pa.array(np.maximum.reduce([none + 1, *(task.attempt.data[slots] for task in tasks)])),
        "claimed": lambda: pa.array(np.logical_or.reduce([none, *(task.claimed.data[slots] for task in tasks)])),
        "missing": lambda: _missing(partition, tasks, slots),
        "complete": lambda: pa.array(np.logical_and.reduce([none | bool(tasks), *(t.done.data[slots] for t in tasks)])),
    }
    fields = [ROW_STATE_SCHEMA.field(name) for name in columns or ROW_STATE_SCHEMA.names]
    return pa.table([made[field.name]().cast(field.type) for field in fields], schema=pa.schema(fields))


def _errors(partition: Partition, slots: Ints) -> pa.Array:
    errors = partition.errors
    if not errors:
        return pa.nulls(len(slots), pa.string())
    found = ((errors.get(number) or (None,))[0] for number in partition.numbers_at(slots).tolist())
    return pa.array(found, pa.string(), size=len(slots))


def _missing(partition: Partition, tasks: Sequence[Task], slots: Ints) -> pa.Array:
    """Each distinct pattern of missing columns once, then spread over the rows."""
    patterns: list[list[str]] = [[]]
    which = np.zeros(len(slots), dtype=np.int32)
    left = np.ones(len(slots), np.bool_)
    for task in tasks:
        here = np.flatnonzero(left & ~task.done.data[slots])
        left[here] = False
        lacks = here[task.missing.data[slots[here]] > 0]
        if not len(lacks):
            continue
        absent = np.stack([~partition.present(name, slots[lacks]) for name in task.reads])
        found, inverse = np.unique(absent, axis=1, return_inverse=True)
        which[lacks] = inverse.ravel() + len(patterns)
        patterns += [[name for name, flag in zip(task.reads, flags, strict=True) if flag] for flags in found.T.tolist()]
    return pa.array(patterns, pa.list_(pa.string())).take(pa.array(which))
