"""What a stage is: a pure function from columns to columns that says what it reads and writes.

A stage never touches storage. A worker claims rows, hands it a :class:`~schemas.batch.Batch` with the columns
in ``reads``, and commits the :class:`Output`. The same object runs in a job, in replay and in a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.arrays import ColumnData
from schemas.batch import Batch


@dataclass(frozen=True)
class Output:
    """What a stage made of a batch.

    ``columns`` holds a value per id in ``sample_ids``, in that order; ``failed`` maps every other id of the
    batch to "code: detail" (codes: :data:`schemas.columns.FAILURE_CODES`); ``metrics`` describe the whole batch.
    """

    sample_ids: Sequence[str]
    columns: Mapping[str, ColumnData]
    failed: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Stage(Protocol):
    """One step of the pipeline: ``output = stage(batch)``."""

    @property
    def task(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def writes(self) -> tuple[str, ...]: ...

    def __call__(self, batch: Batch) -> Output: ...
