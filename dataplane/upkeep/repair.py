"""``repair``: what ``check`` found is put right; whatever is whole stays readable.

A journal is cut where it stops being whole, unless a snapshot stands behind that place: then it goes on from there.
Blocks whose records were lost with it are read again and put as they are. What a damaged or missing block held is
cleared, and its rows fail as lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dataplane.backends.storage import Storage
from dataplane.plane import DataPlane
from dataplane.upkeep.check import Checked, check
from schemas.columns import SAMPLE_ID
from schemas.errors import StoreError

_JOURNAL = ("journal_damaged", "journal_cut", "torn_tail")
_SNAPSHOT = ("snapshot_damaged", "snapshot_differs", "snapshot_missing")


def repair(opened: Callable[[], Storage]) -> list[str]:
    """Repair the store that *opened* gives; a line for each thing done.

    Raises StoreLocked while it is open for writing, StoreError for what cannot be repaired.
    """
    storage = opened()
    found = check(storage)
    records_lost = any(problem.kind in _JOURNAL and not problem.harmless for problem in found.problems)
    done: list[str] = []
    storage.lock()
    try:
        done += _mend_journal(storage, found)
        if records_lost:
            storage.closed(1)  # where no record ends: the next writer then keeps blocks that lost their records
    finally:
        storage.close()
    with DataPlane(opened()) as plane:
        done += _drop_broken(plane, found)
        done += _orphans(plane, found, adopt=records_lost)
        if any(p.kind in _SNAPSHOT for p in found.problems):
            plane._writer.snapshot(False)
            done.append("made the snapshot again from the journal")
    return done


def _mend_journal(storage: Storage, found: Checked) -> list[str]:
    kinds = {problem.kind for problem in found.problems}
    if kinds & set(_SNAPSHOT) and storage.start():
        raise StoreError(f"{storage.url}: the snapshot that the journal builds on is damaged; nothing can be rebuilt")
    if not kinds & set(_JOURNAL):
        return []
    saved = None if kinds & set(_SNAPSHOT) else storage.saved()
    if saved is not None and (found.damaged_at < saved[0]):
        tail = _whole_tail(storage, saved[0], found.whole_until)
        storage.trim(saved[0])
        storage.cut(saved[0])
        if tail:
            storage.append(tail)
        return [f"dropped the damaged journal before byte {saved[0]}, where a whole snapshot stands"]
    storage.cut(found.whole_until)
    return [f"cut the journal at byte {found.whole_until}, behind its last whole record"]


def _whole_tail(storage: Storage, position: int, until: int) -> bytes:
    """The journal from a snapshot's position to the last whole record; empty when it ends before the snapshot."""
    return storage.journal(position)[: until - position] if until > position else b""


def _drop_broken(plane: DataPlane, found: Checked) -> list[str]:
    done = []
    for block, columns in found.broken.items():
        names = sorted(set(columns))
        code = "corrupt" if block in plane.storage.blocks() else "lost"
        plane._writer.lose(block, f"{code}: block {block} ({', '.join(names)})")
        rows = plane._writer.forget(block, names)
        done.append(f"{rows} rows: cleared {', '.join(names)} of block {block}; they fail as {code}")
    return done


def _orphans(plane: DataPlane, found: Checked, adopt: bool) -> list[str]:
    done = []
    for block in found.orphans:
        kept = _adopt(plane, block) if adopt and block in plane.storage.blocks() else 0
        plane.storage.delete([block])
        done.append(f"put {kept} rows of block {block} again" if kept else f"deleted block {block}, which nobody needs")
    return done


def _adopt(plane: DataPlane, block: str) -> int:
    """Put what a block without a record holds and its rows lack; the number of rows.

    A block that fits no partition becomes one of its own.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(plane.storage.view(block)))).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, StoreError):
        return 0  # it cannot be read: nothing in it is whole
    names = [name for name in table.schema.names if name != SAMPLE_ID]
    if SAMPLE_ID not in table.schema.names or table.column(SAMPLE_ID).null_count:
        return 0
    ids = table.column(SAMPLE_ID).to_pylist()
    fitting = [
        partition
        for partition, schema in plane.partitions().items()
        if all(name in schema.names and schema.field(name).type == table.schema.field(name).type for name in names)
    ]
    if not fitting:
        fitting = [f"recovered_{block}"]
        plane.create_partition(fitting[0], pa.schema([table.schema.field(name) for name in names]))
    partition = max(fitting, key=lambda name: len(set(ids) & set(plane.ids(name))))
    lacks = set(ids) - {i for name in names for i in plane.rows(partition, have=[name])}
    rows = [row for row, sample_id in enumerate(ids) if sample_id in lacks]
    if rows:
        part = table.take(rows).combine_chunks()
        plane.put(partition, [ids[row] for row in rows], {name: part.column(name).combine_chunks() for name in names})
    return len(rows)
