"""``repair``: what ``check`` found is put right; whatever is whole stays readable.

A journal is cut where it stops being whole, unless a snapshot stands behind that place: then it goes on from there.
Blocks whose records were lost with it are put back (``adopt.py``). What a damaged or missing block held is cleared,
and its rows fail as lost unless it lies in one of those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dataplane.backends.storage import Storage
from dataplane.plane import DataPlane
from dataplane.upkeep.adopt import adopt
from dataplane.upkeep.check import Checked, check
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
        losses = _clear_broken(plane, found)
        done += _orphans(plane, found, keep=records_lost)
        done += [_fail(plane, loss) for loss in losses]
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


class _Loss(NamedTuple):
    """Columns of a block that cannot be read, and the rows that had them, by partition."""

    block: str
    columns: list[str]
    rows: dict[str, list[str]]


def _clear_broken(plane: DataPlane, found: Checked) -> list[_Loss]:
    broken = {block: sorted(set(columns)) for block, columns in found.broken.items()}
    return [_Loss(block, columns, plane._writer.forget(block, columns)) for block, columns in broken.items()]


def _fail(plane: DataPlane, loss: _Loss) -> str:
    """Give up the rows that nothing brought back; a line about it."""
    code = "corrupt" if loss.block in plane.storage.blocks() else "lost"
    named, failed = ", ".join(loss.columns), 0
    for partition, ids in loss.rows.items():
        lacking = set(ids) - set(plane.rows(partition, have=loss.columns))
        plane.fail(partition, dict.fromkeys(sorted(lacking), f"{code}: block {loss.block} ({named})"))
        failed += len(lacking)
    rows = sum(map(len, loss.rows.values()))
    back = f"; {rows - failed} of them lie in another block" if failed < rows else ""
    return f"{rows} rows: cleared {named} of block {loss.block}; {failed} fail as {code}{back}"


def _orphans(plane: DataPlane, found: Checked, keep: bool) -> list[str]:
    done = []
    for block in found.orphans:
        kept = adopt(plane, block) if keep and block in plane.storage.blocks() else 0
        plane.storage.delete([block])
        done.append(f"put {kept} rows of block {block} again" if kept else f"deleted block {block}, which nobody needs")
    return done
