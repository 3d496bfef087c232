"""The one loop of every worker: claim, get, run the stage, commit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from dataplane import Claim, DataPlane
from schemas.arrays import ColumnData, to_arrow
from schemas.batch import Batch
from schemas.columns import HEAVY, REGISTRY
from schemas.config.resolved import versions
from schemas.errors import CorruptData, LeaseLost
from stages.base import Output, Stage
from workers.leases import Keeper
from workers.ranks import ALONE, Ranks

_versions = cache(versions)


#: Rows that are run together when they are claimed a second time.
SECOND_TRY = 16


class Busy(NamedTuple):
    """The rows that a worker's stage has in hand, and since when (monotonic seconds)."""

    task: str
    partition: str
    sample_ids: list[str]
    since: float


class Work(NamedTuple):
    """Processor seconds in the store, seconds in the stage, runs of the stage, their rows and response tokens."""

    plane_s: float = 0.0
    stage_s: float = 0.0
    batches: int = 0
    samples: int = 0
    tokens: int = 0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]  # of two works, not of two tuples
        """Of both together."""
        return Work._make(mine + its for mine, its in zip(self, other, strict=True))


@dataclass
class Worker:
    """Runs *stage* on the rows of *partition* that are ready for its task.

    ``limit`` rows at once at most, narrowed by ``where``. With ``rows_may_fail``, what the stage raises is
    recorded on the rows it was given and the worker goes on; else it is the job's failure. With ``isolate``, rows
    that were claimed before are run a few at a time, then alone, so that a row that kills or hangs its process
    is found out and takes no other with it. Of several *ranks* the leader claims and commits; the others run the
    stage on the same rows.
    """

    plane: DataPlane
    partition: str
    stage: Stage
    limit: int | None = None
    where: Mapping[str, Sequence[str | int]] | None = None
    lease_s: float = math.inf
    rows_may_fail: bool = True
    isolate: bool = False
    name: str = ""
    ranks: Ranks = ALONE
    #: Weights the stage runs with, if it runs a model that changes.
    weight_version: int | None = None
    #: Since they were last taken: processor seconds in the store; seconds in the stage, its runs, and their rows.
    plane_s: float = 0.0
    stage_s: float = 0.0
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    keeper: Keeper = field(default_factory=Keeper)
    busy: Busy | None = None
    #: When it had rows in hand last, or was made (monotonic seconds).
    ended: float = field(default_factory=time.monotonic)
    #: Called when rows are claimed, before the stage sees them.
    prepare: Callable[[], None] = lambda: None

    def run_once(self, step: int | None = None) -> Output | None:
        """One turn; None when nothing is ready."""
        if not self.ranks.leader:
            return self._follow()
        try:
            return self._lead(step)
        finally:
            self._share([])

    def _follow(self) -> Output | None:
        """Run the stage on whatever rows the leader runs it on; the last of its outputs."""
        output = None
        while rows := msgspec.msgpack.decode(self.ranks.share(), type=list[str]):
            batch = self.plane.get(self.partition, rows, self.stage.reads)
            try:
                output = aligned(self.stage(batch), batch)
            except Exception:
                if not self.rows_may_fail:
                    raise  # with rows_may_fail the leader, who raised the same, records it
        return output

    def _share(self, rows: Sequence[str]) -> None:
        """Tell the other ranks which rows come next, none being the end."""
        if self.ranks.size > 1:
            self.ranks.share(msgspec.msgpack.encode(list(rows)))

    def _lead(self, step: int | None) -> Output | None:
        started = time.thread_time()
        claim = self.plane.claim(
            self.partition,
            self.stage.task,
            limit=self.limit,
            lease_s=self.lease_s,
            where=self.where,
            step=step,
            worker=self.name,
        )
        self.plane_s += time.thread_time() - started
        if claim is None:
            return None
        with self.keeper.keeping(claim, self.lease_s):
            return self._work(claim)

    def take_work(self) -> Work:
        """What was done since the last call."""
        done = Work(self.plane_s, self.stage_s, self.batches, self.samples, self.tokens)
        self.plane_s, self.stage_s, self.batches, self.samples, self.tokens = 0.0, 0.0, 0, 0, 0
        return done

    def _work(self, claim: Claim) -> Output:
        self.prepare()
        started = time.thread_time()
        try:
            batch = claim.batch
        except CorruptData as error:
            return self._give_up(claim, f"corrupt: {error}")
        self.plane_s += time.thread_time() - started
        if claim.attempt == 1 or not (self.isolate and self.rows_may_fail):
            return self._run(claim, batch)
        size = SECOND_TRY if claim.attempt == 2 else 1
        for first in range(0, len(batch), size):
            output = self._run(claim, batch.take(range(first, min(first + size, len(batch)))))
        return output

    def _run(self, claim: Claim, batch: Batch) -> Output:
        """The stage on *batch*, some or all of the claim's rows, and its commit."""
        self.busy = Busy(self.stage.task, self.partition, batch.sample_ids, time.monotonic())
        self._share(batch.sample_ids)
        try:
            output = aligned(self.stage(batch), batch)
        except Exception as error:  # with rows_may_fail the error is data on the rows
            if not self.rows_may_fail:
                claim.release()
                raise
            output = Output([], {}, dict.fromkeys(batch.sample_ids, f"stage_error: {type(error).__name__}: {error}"))
        finally:
            self.ended = time.monotonic()
            self.stage_s += self.ended - self.busy.since
            self.busy = None
        self.batches += 1
        self.samples += len(batch)
        self.tokens += response_tokens(output, batch)
        committing = time.thread_time()
        lineage = {"worker": self.name, "weight_version": self.weight_version, "versions": _versions()}
        try:
            light = self._put_heavy(claim, output, lineage)
            claim.commit(light, sample_ids=output.sample_ids, failed=output.failed, lineage=lineage)
        except LeaseLost:
            if not self.rows_may_fail:
                raise
            output = Output([], {})  # the rows are somebody else's by now; what was made of them is thrown away
        self.plane_s += time.thread_time() - committing
        return output

    def _put_heavy(self, claim: Claim, output: Output, lineage: dict[str, Any]) -> dict[str, ColumnData]:
        """Write heavy columns into a block of their own, so that they can go before the rest; the other columns.

        They are there before the rows are acknowledged; if the commit never comes, the next attempt replaces them.
        """
        heavy = {name: data for name, data in output.columns.items() if name in HEAVY}
        if heavy and output.sample_ids:
            claim.renew()  # raises if the rows belong to somebody else by now
            self.plane.replace(self.partition, output.sample_ids, heavy, lineage={**lineage, "task": claim.task})
        return {name: data for name, data in output.columns.items() if name not in heavy}

    def _give_up(self, claim: Claim, reason: str) -> Output:
        failed = dict.fromkeys(claim.sample_ids, reason)
        claim.fail(failed)
        return Output([], {}, failed)


def aligned(output: Output, batch: Batch) -> Output:
    """*output* with every row failed whose token columns do not have one entry per token. Values never shift."""
    tokens = {name: data for name, data in output.columns.items() if name in REGISTRY and REGISTRY[name].per == "token"}
    if not tokens or not output.sample_ids:
        return output
    arrays = {name: to_arrow(data, REGISTRY[name].field, output.sample_ids) for name, data in tokens.items()}
    lengths = {name: np.diff(array.offsets.to_numpy()) for name, array in arrays.items()}
    expected = lengths["input_ids"] if "input_ids" in lengths else _lengths(batch, output.sample_ids)
    bad = {
        output.sample_ids[row]: f"misaligned: column {name!r} expected {expected[row]} values, got {got[row]}"
        for name, got in lengths.items()
        for row in np.flatnonzero(got != expected).tolist()
    }
    columns = {**output.columns, **arrays}
    if not bad:
        return Output(output.sample_ids, columns, output.failed, output.metrics)
    keep = [row for row, sample_id in enumerate(output.sample_ids) if sample_id not in bad]
    kept = Batch.of(output.sample_ids, columns).take(keep)
    return Output(
        kept.sample_ids, {name: kept.array(name) for name in columns}, {**output.failed, **bad}, output.metrics
    )


def response_tokens(output: Output, batch: Batch) -> int:
    """Tokens of the student's in the rows that the stage read, or else in those it made."""
    masks = batch.array("token_mask") if "token_mask" in batch else output.columns.get("token_mask")
    return int(masks.flatten().true_count) if isinstance(masks, pa.Array) else 0


def _lengths(batch: Batch, sample_ids: Sequence[str]) -> np.ndarray:
    """Tokens per sample, from whichever token column the stage read; [rows], int64."""
    name = next(name for name in batch if name in REGISTRY and REGISTRY[name].per == "token")
    by_id = dict(zip(batch.sample_ids, batch.lengths(name), strict=True))
    return np.array([by_id[sample_id] for sample_id in sample_ids], dtype=np.int64)
