"""What the plane and its host say to each other: requests, and answers about rows, steps, weights and progress.

Everything here is plain data: it crosses processes as msgpack bytes.
"""

from __future__ import annotations

import msgspec

from schemas.records import Block, Lineage, Plain


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


class CommitRequest(msgspec.Struct):
    """Acknowledge ``ids`` of a claim with the columns in ``block``; ``failed`` maps other ids to "code: detail".

    ``ids`` None stands for every row granted that did not fail, in that order: the usual commit need not name them.
    """

    claim: str
    ids: list[str] | None
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
    """Where columns of some rows lie: column i, in the order asked, at ``cells[where[i]]``.

    The column ``sample_id`` lies nowhere: its values are ``ids``, which is empty when nobody asked for it.
    """

    blocks: list[Block]
    cells: list[Cells]
    where: list[int]
    num_rows: int
    ids: list[str] = []


class Granted(msgspec.Struct):
    """A lease: the claim's id, its rows in order, how often they were claimed (at most), this time included, and where
    the columns lie that the task reads.
    """

    claim: str
    sample_ids: list[str]
    attempt: int
    reads: list[str]
    located: Located


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


class TaskColumns(msgspec.Struct, frozen=True):
    """What a task declares."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Buffered(msgspec.Struct, frozen=True):
    """Rows that belong to no step and have not failed, and the bytes that they take."""

    rows: int
    size_bytes: int


class Progress(msgspec.Struct):
    """Counts of a partition; ``failed`` by error code."""

    rows: int
    sealed: int
    failed: dict[str, int]
    tasks: dict[str, TaskProgress]
