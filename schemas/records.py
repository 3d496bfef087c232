"""The records of the journal, and what the plane and its host say to each other.

A journal record is one msgspec Struct; its ``kind`` is the name that ``events`` shows. After the record that
creates a row, rows are named by number, as ``runs``: a flat list ``[start, count, start, count, …]`` in the
order that matters for the record. Everything here is plain data: it crosses processes as msgpack bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.errors import InputError

#: Version of the journal's records; a store written by a newer one is refused.
FORMAT = 1

Plain = str | int | float | bool | None


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One immutable Arrow IPC file: its id, bytes, rows, columns, and an xxh3 checksum per column."""

    id: str
    size_bytes: int
    rows: int
    columns: tuple[str, ...]
    checksums: tuple[int, ...]


class Lineage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who made a block: task, worker, the weights used, and package versions as sorted (name, version) pairs."""

    task: str = ""
    worker: str = ""
    attempt: int = 0
    weight_version: int | None = None
    versions: tuple[tuple[str, str], ...] = ()


def _kind(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=_kind):
    """What happened, and when (seconds since 1970)."""

    time: float


class Opened(Record, frozen=True):
    """A process opened the store for writing: every lease of an earlier one is over."""

    format: int
    pid: int


class PartitionCreated(Record, frozen=True):
    """A named table; ``arrow_schema`` is an Arrow IPC schema message."""

    partition: str
    arrow_schema: bytes


class TaskDeclared(Record, frozen=True):
    """Rows are ready for ``task`` when all of ``reads`` are present."""

    partition: str
    task: str
    reads: list[str]
    writes: list[str]


class Put(Record, frozen=True):
    """``block`` holds columns of the rows ``runs`` in that order; ``ids`` name the new rows among them, in order."""

    partition: str
    runs: list[int]
    block: Block
    ids: list[str] = []
    put_id: str | None = None
    replace: bool = False
    lineage: Lineage = Lineage()


class Claimed(Record, frozen=True):
    """Rows leased to a worker (informational: no lease outlives the writer)."""

    partition: str
    task: str
    claim: str
    attempt: int
    runs: list[int]
    lease_s: float
    worker: str = ""


class Renewed(Record, frozen=True):
    """The lease of a claim starts again (informational)."""

    claim: str
    partition: str
    task: str
    lease_s: float


class Released(Record, frozen=True):
    """What was left of a claim went back; ``reason`` is "released" or "expired" (informational)."""

    claim: str
    partition: str
    task: str
    runs: list[int]
    reason: str = "released"


class Committed(Record, frozen=True):
    """A task is done with ``runs`` (their columns in ``block``, in that order), and failed on others.

    ``failed`` maps row numbers to "code: detail".
    """

    partition: str
    task: str
    claim: str
    runs: list[int]
    block: Block | None = None
    failed: dict[int, str] = {}
    lineage: Lineage = Lineage()


class Failed(Record, frozen=True):
    """Rows given up outside a claim; leases on them are over."""

    partition: str
    errors: dict[int, str]


class Requeued(Record, frozen=True):
    """What ``tasks`` wrote on these rows is superseded; the rows wait for them again, failures forgotten."""

    partition: str
    runs: list[int]
    tasks: list[str]


class StepSealed(Record, frozen=True):
    """The members of a step, in order; immutable."""

    step: int
    partition: str
    runs: list[int]


class StepTrained(Record, frozen=True):
    """The step's update was taken."""

    step: int
    metrics: dict[str, float]


class Published(Record, frozen=True):
    """Weights that generators may load."""

    version: int
    path: str


class Checkpointed(Record, frozen=True):
    """A complete checkpoint that covers every step up to ``step``."""

    step: int
    path: str


class Cleared(Record, frozen=True):
    """Rows gone for good; their ids may be put again as new rows. With ``columns``: only these values of the rows."""

    partition: str
    runs: list[int]
    columns: list[str] = []


class BlocksMerged(Record, frozen=True):
    """What ``runs`` have in the columns of ``block`` lies there now, in that order; what they lacked they lack."""

    partition: str
    runs: list[int]
    block: Block
    lineage: Lineage = Lineage()


class EpochOpened(Record, frozen=True):
    """The run went back to ``after_step``: what ``tasks`` wrote for later steps is superseded."""

    epoch: int
    after_step: int
    partition: str
    tasks: list[str]


class Noted(Record, frozen=True):
    """Something worth a line in ``events`` that changes no state; ``name`` is its kind there."""

    name: str
    fields: dict[str, Plain] = {}


AnyRecord = (
    Opened | PartitionCreated | TaskDeclared | Put | Claimed | Renewed | Released | Committed | Failed | Requeued
    | StepSealed | StepTrained | Published | Checkpointed | Cleared | BlocksMerged | EpochOpened | Noted
)  # fmt: skip


# -- between the plane and its host ---------------------------------------------------------------------------------


class PutRequest(msgspec.Struct):
    """A block already written, to become columns of ``ids``."""

    partition: str
    ids: list[str]
    block: Block
    put_id: str | None = None
    replace: bool = False
    lineage: Lineage = Lineage()


class MergeRequest(msgspec.Struct):
    """A block already written, with what ``ids`` have in its columns; ``found`` is where that lay when it was read."""

    partition: str
    ids: list[str]
    block: Block
    found: Located


class ClaimRequest(msgspec.Struct):
    """Lease ready rows of a task; ``where`` maps scalar columns to the values wanted."""

    partition: str
    task: str
    limit: int | None = None
    lease_s: float = 60.0
    where: dict[str, list[Plain]] | None = None
    step: int | None = None
    by_group: bool = False
    worker: str = ""


class Granted(msgspec.Struct):
    """A lease: the claim's id, its rows in order, and how often they were claimed (at most), this time included."""

    claim: str
    sample_ids: list[str]
    attempt: int
    reads: list[str]


class CommitRequest(msgspec.Struct):
    """Acknowledge ``ids`` of a claim with the columns in ``block``; ``failed`` maps other ids to "code: detail"."""

    claim: str
    ids: list[str]
    failed: dict[str, str] = {}
    block: Block | None = None
    lineage: Lineage = Lineage()


class Cells(msgspec.Struct):
    """Where a column's values lie: int32 little-endian arrays, an entry a row; block −1 is missing.

    ``block`` indexes the reply's list of blocks, ``row`` counts inside that block.
    """

    block: bytes
    row: bytes


class Located(msgspec.Struct):
    """Where the columns of some rows lie; ``arrow_schema`` has the fields asked for, in order.

    The column ``sample_id`` lies nowhere: its values are ``ids``, which is empty when nobody asked for it.
    """

    arrow_schema: bytes
    blocks: list[Block]
    cells: list[Cells]
    num_rows: int
    ids: list[str] = []


class Step(msgspec.Struct, omit_defaults=True):
    """A sealed step; ``metrics`` is None until it is trained."""

    step: int
    partition: str
    num_samples: int
    sealed_at: float
    trained_at: float | None = None
    metrics: dict[str, float] | None = None


class Weights(msgspec.Struct):
    """A published weight version."""

    version: int
    path: str
    time: float


class Checkpoint(msgspec.Struct):
    """A complete checkpoint."""

    step: int
    path: str
    time: float


class TaskProgress(msgspec.Struct):
    """Rows of a partition by their state in one task; the five add up to its rows."""

    waiting: int
    ready: int
    claimed: int
    done: int
    failed: int


class Progress(msgspec.Struct):
    """Counts of a partition; ``failed`` by error code."""

    rows: int
    sealed: int
    failed: dict[str, int]
    tasks: dict[str, TaskProgress]


def lineage(fields: Mapping[str, Any] | None, **known: Any) -> Lineage:
    """A Lineage from a caller's mapping (worker, weight_version, versions) and what the plane knows itself.

    Raises InputError for other fields or types.
    """
    given = {**(fields or {}), **{key: value for key, value in known.items() if value}}
    try:
        versions = sorted(dict(given.pop("versions", None) or {}).items())
        return msgspec.convert({**given, "versions": versions}, Lineage)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InputError(f"lineage: {error}; expected worker, weight_version and versions") from None
