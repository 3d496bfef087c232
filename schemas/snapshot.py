"""What a snapshot of the catalog holds: plain data, so that reading one runs nothing.

Arrays are little-endian bytes with an entry a slot (a row's place in the catalog); slots of rows that are gone have an
empty id.
"""

from __future__ import annotations

import msgspec

from schemas.messages import Checkpoint, Step, Weights
from schemas.records import Block, Lineage


class SavedTask(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A declared task: int16 missing reads, booleans done and claimed, int32 attempts."""

    name: str
    reads: list[str]
    writes: list[str]
    missing: bytes
    done: bytes
    claimed: bytes
    attempt: bytes


class SavedPartition(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A partition: int64 numbers, booleans live and failed, int32 steps; per column int32 blocks and rows in them."""

    name: str
    arrow_schema: bytes
    next_number: int
    packed: int
    ids: list[str]
    numbers: bytes
    live: bytes
    failed: bytes
    step: bytes
    cells: dict[str, tuple[bytes, bytes]]
    tasks: list[SavedTask]
    errors: dict[int, tuple[str, str]]
    superseded: dict[int, list[int]]


class SavedBlock(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A block, who made it when, and how many rows need it."""

    block: Block
    partition: str
    time: float
    lineage: Lineage
    rows: int


class SavedLease(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A claim that was not over: ``runs`` of row numbers in claim order."""

    claim: str
    partition: str
    task: str
    runs: list[int]
    attempt: int
    worker: str
    deadline: float


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """The catalog at one place of the journal. ``blocks`` has None at indexes that are free."""

    partitions: list[SavedPartition]
    blocks: list[SavedBlock | None]
    free: list[int]
    steps: list[Step]
    members: dict[int, list[int]]
    published: list[Weights]
    checkpoints: list[Checkpoint]
    put_ids: list[str]
    epoch: int
    leases: list[SavedLease]
    facts: dict[str, str] = {}
