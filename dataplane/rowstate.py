"""How far each row is: the counts of ``progress`` and the table behind a sample's status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dataplane.numbers import Ints
from dataplane.partition import Partition, Task
from schemas.records import Progress, TaskProgress

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


def row_state_table(partition: Partition, trained_steps: Sequence[int]) -> pa.Table:
    """A row a row, in row order; see ``ROW_STATE_SCHEMA``.

    ``attempt`` is how often the most-claimed task claimed the row (at least 1); ``missing`` is what the first task
    that is not done with the row still lacks; ``complete`` says that every declared task is done with it.
    """
    slots = partition.live_slots()
    tasks = list(partition.tasks.values())
    done = [task.done.data[slots] for task in tasks]
    claimed = [task.claimed.data[slots] for task in tasks]
    attempts = [np.ones(len(slots), np.int32), *(task.attempt.data[slots] for task in tasks)]
    step = partition.step.data[slots]
    arrays = [
        pa.array(partition.ids_at(slots), pa.string()),
        _errors(partition, slots),
        pa.array(step, mask=step == 0),
        pa.array(np.isin(step, trained_steps)),
        pa.array(np.maximum.reduce(attempts)),
        pa.array(np.logical_or.reduce([np.zeros(len(slots), np.bool_), *claimed])),
        _missing(partition, tasks, slots),
        pa.array(np.logical_and.reduce([np.full(len(slots), bool(tasks)), *done])),
    ]
    return pa.table(arrays, schema=ROW_STATE_SCHEMA)


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
