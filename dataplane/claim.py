"""``Claim``: rows leased to one worker for one task.

    claim = plane.claim("train", task="teacher", limit=64)
    scores = score(claim.batch)                       # the columns the task reads
    claim.commit({"teacher_logprobs": scores})        # write and acknowledge, in one step

A claim that is not committed, failed or released comes back by itself when its lease ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dataplane.backends.storage import BlockGone
from schemas.arrays import ColumnData, clean_text
from schemas.batch import Batch
from schemas.errors import CorruptData, LeaseLost
from schemas.messages import Granted

if TYPE_CHECKING:
    from dataplane.plane import DataPlane


class Claim:
    """A lease on ``sample_ids``; ``attempt`` counts how often they were claimed for this task, this time included."""

    def __init__(self, plane: DataPlane, partition: str, task: str, granted: Granted, lease_s: float) -> None:
        self._plane = plane
        self._granted = granted
        self._lease_s = lease_s
        self._open = dict.fromkeys(granted.sample_ids)
        self._batch: Batch | None = None
        self.id = granted.claim
        self.partition = partition
        self.task = task
        self.sample_ids = granted.sample_ids
        self.attempt = granted.attempt

    @property
    def batch(self) -> Batch:
        """The task's reads of these rows, read when first asked for; writing into it changes nothing stored.

        Raises CorruptData for a damaged or lost block: what becomes of the claim's rows is for its holder to say.
        """
        if self._batch is None:
            try:
                self._batch = self._plane._read(
                    self.partition, self.sample_ids, self._granted.reads, self._granted.located, "private"
                )
            except BlockGone as error:
                raise CorruptData(str(error)) from error
        return self._batch

    def commit(
        self,
        columns: Mapping[str, ColumnData] | None = None,
        sample_ids: Sequence[str] | None = None,
        failed: Mapping[str, str] | None = None,
        lineage: Mapping[str, Any] | None = None,
    ) -> None:
        """Write *columns* (a value per id) and acknowledge the rows; record *failed* (id to "code: detail").

        Without *sample_ids*: every row still leased and not in *failed*. Other rows stay leased. All of it is one
        journal record: a crash leaves all or nothing. Raises LeaseLost, InputError.
        """
        if columns and sample_ids is None and not self._open:
            raise LeaseLost(f"claim {self.id} is over: its rows were all committed or failed; claim again")
        failures = clean_text(dict(failed or {}))
        ids = list(sample_ids if sample_ids is not None else self._open)
        if failures and sample_ids is None:
            ids = [sample_id for sample_id in ids if sample_id not in failures]
        self._plane._commit(self, ids, columns or {}, failures, lineage)
        if len(ids) + len(failures) == len(self._open):  # the host refuses rows that are not open, and repeats
            self._open.clear()
        for sample_id in (*ids, *failures) if self._open else ():
            self._open.pop(sample_id, None)

    def is_all(self, ids: list[str], failed: Mapping[str, str]) -> bool:
        """Whether *ids* are all rows granted, in their order, but for the *failed*; none being acknowledged yet."""
        if len(self._open) < len(self.sample_ids):
            return False
        return ids == ([i for i in self.sample_ids if i not in failed] if failed else self.sample_ids)

    def fail(self, errors: Mapping[str, str]) -> None:
        """These rows failed; the rest stays leased. Raises LeaseLost, InputError."""
        self.commit(sample_ids=[], failed=errors)

    def renew(self, lease_s: float | None = None) -> None:
        """Start the lease again. Raises LeaseLost."""
        self._plane._writer.renew(self.id, self._lease_s if lease_s is None else lease_s)

    def release(self) -> None:
        """Give back the rows still leased; does nothing when the claim is over."""
        self._plane._writer.release(self.id)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __repr__(self) -> str:
        return f"Claim({self.id}, task {self.task!r}, {len(self)} samples, attempt {self.attempt})"
