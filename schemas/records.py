"""The records of the journal.

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


class FactRecorded(Record, frozen=True):
    """Something about the store that stays however far the journal is trimmed; a later value replaces it."""

    fact: str
    value: str


AnyRecord = (
    Opened | PartitionCreated | TaskDeclared | Put | Claimed | Renewed | Released | Committed | Failed | Requeued
    | StepSealed | StepTrained | Published | Checkpointed | Cleared | BlocksMerged | EpochOpened | Noted | FactRecorded
)  # fmt: skip


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
