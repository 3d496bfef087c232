"""Saving a store elsewhere: a directory to Redis, back, or to another directory; byte for byte, while in use."""

from __future__ import annotations

from dataplane.backends.storage import BlockGone, Storage, Trimmed
from dataplane.blocks.block import BlockReader
from dataplane.catalog.follower import Follower
from schemas.errors import InputError, StoreError

#: How often a copy starts again because the writer cleared or trimmed what was being copied.
_ATTEMPTS = 10


def copy_store(source: Storage, target: Storage) -> int:
    """Copy all that is visible in *source* into the empty *target*; the number of blocks.

    Raises InputError when there is something in *target*, StoreError when the source changes too fast.
    """
    target.lock()
    try:
        if target.journal(target.start()) or target.saved() is not None:
            raise InputError(f"{target.url}: there is a store already; copy into an empty place")
        for _ in range(_ATTEMPTS):
            copied = _copied(source, target)
            if copied is not None:
                return copied
        raise StoreError(f"{source.url}: it changes faster than it can be copied; copy it when the job has ended")
    finally:
        target.close()


def _copied(source: Storage, target: Storage) -> int | None:
    """The number of blocks, or None if the source lost something meanwhile. The journal comes last."""
    try:
        follower = Follower(source, BlockReader(source))
        needed = [block.id for block, _, _ in follower._catalog.blocks]
        start, end = source.start(), follower._journal.position
        saved = source.saved()
        journal = source.journal(start)[: end - start]
        there = target.blocks()
        for block in needed:
            if block not in there:
                target.write(block, [source.view(block)])
    except (BlockGone, Trimmed):
        return None
    if saved is not None and start <= saved[0] <= end:
        target.save(saved[0], [saved[1]])
    elif start:
        return None
    if start:
        target.trim(start)
    target.append(journal)
    target.delete(set(there) - set(needed))
    target.closed(end)
    return len(needed)
