"""Blocks without a record, put back as they came: the work of their tasks is done again in the catalog, not repeated.

A block that a task's commit wrote is told by its columns, as each belongs to one task. Blocks are taken oldest first:
a later attempt hides the earlier one, and what was made from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from dataplane.blocks.block import PARTITION
from dataplane.plane import DataPlane
from schemas.columns import SAMPLE_ID
from schemas.errors import StoreError
from schemas.messages import TaskColumns


def adopt(plane: DataPlane, block: str) -> int:
    """Put what a block holds; the number of rows, 0 for one that cannot be read.

    A block that belongs to no partition becomes one of its own.
    """
    table = _readable(plane, block)
    if table is None:
        return 0
    names = [name for name in table.schema.names if name != SAMPLE_ID]
    ids = table.column(SAMPLE_ID).to_pylist()
    partition = _home(plane, table.select(names).schema, set(ids))
    if partition is None:
        partition = f"recovered_{block}"
        plane.create_partition(partition, pa.schema([table.schema.field(name) for name in names]))
    tasks = plane._writer.tasks(partition)
    made_by = [task for task, of in tasks.items() if set(of.writes) & set(names)]
    there = {sample_id for name in names for sample_id in plane.rows(partition, have=[name])}
    if made_by:
        plane.requeue(partition, [i for i in ids if i in there], _and_later(made_by, tasks))
    keep = range(len(ids)) if made_by else [row for row, sample_id in enumerate(ids) if sample_id not in there]
    if len(keep):
        part = table.take(pa.array(keep, pa.int64())).combine_chunks()
        rows = [ids[row] for row in keep]
        plane.replace(partition, rows, {name: part.column(name).combine_chunks() for name in names})
        for task in made_by:
            plane._writer.acknowledge(partition, task, rows)
    return len(keep)


def _readable(plane: DataPlane, block: str) -> pa.Table | None:
    try:
        table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(plane.storage.view(block)))).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, StoreError):
        return None
    named = SAMPLE_ID in table.schema.names and not table.column(SAMPLE_ID).null_count
    return table if named else None


def _home(plane: DataPlane, found: pa.Schema, ids: set[str]) -> str | None:
    """The partition that a block says it is of; else the only one that it fits, or the one that has its rows."""
    fitting = [
        partition
        for partition, schema in plane.partitions().items()
        if all(field.name in schema.names and schema.field(field.name).type == field.type for field in found)
    ]
    said = (found.metadata or {}).get(PARTITION.encode())
    if said is not None:
        return said.decode() if said.decode() in fitting else None
    known = [partition for partition in fitting if len(fitting) == 1 or ids & set(plane.ids(partition))]
    return known[0] if len(known) == 1 else None


def _and_later(tasks: Collection[str], all_tasks: Mapping[str, TaskColumns]) -> list[str]:
    """*tasks* and those that read what one of them writes, or read what those write, and so on."""
    found = set(tasks)
    while True:
        written = {column for task in found for column in all_tasks[task].writes}
        more = {task for task, of in all_tasks.items() if written & set(of.reads)} - found
        if not more:
            return [task for task in all_tasks if task in found]
        found |= more
