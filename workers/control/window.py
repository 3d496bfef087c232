"""Which rows may be admitted, and which make up the next step.

A step asks for ``prompts`` groups. Groups are admitted in data order as far as the staleness window and the bounds on
what is buffered reach; which of them join a step is the sampler's choice. A row that fails is tried again; when that
is used up its group goes on without it, and a group without any row left is replaced by another prompt before the
step is sealed. Rows that have become too old for a step are generated again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.config import RunConfig
from workers.control.backpressure import Backpressure
from workers.control.budgets import check_budget, check_size, code_of
from workers.control.counts import StepCounts
from workers.control.samplers import choose, overtaking_window

#: Columns of a step's rows that its age and routing are measured by.
MEASURED = ("weight_version", "teacher")

#: Failures that another try may mend.
RETRYABLE = ("engine_error", "stage_error", "timed_out")


@dataclass
class Window:
    """Open groups (admitted, not sealed) in admission order, and what became of their rows."""

    plane: DataPlane
    config: RunConfig
    #: Columns that a row needs before it can be sealed.
    needed: tuple[str, ...]
    open: dict[str, list[str]] = field(default_factory=dict)
    admitted: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    #: Rows of groups that were replaced since the last seal, with their errors.
    replaced: dict[str, str] = field(default_factory=dict)
    #: Of steps about to be trained: what ``next_members`` read of their rows.
    chosen: dict[int, Batch] = field(default_factory=dict)
    counts: StepCounts = field(init=False)
    pressure: Backpressure = field(init=False)

    def __post_init__(self) -> None:
        self.counts = StepCounts(self.plane)
        self.pressure = Backpressure(self.plane, self.config)

    @property
    def groups_per_step(self) -> int:
        return self.config.grpo.num_prompts_per_step

    @property
    def sampling_tasks(self) -> list[str]:
        """Tasks of a row before its seal: those that a row which is sampled again goes through again."""
        return ["generate", "teacher"] if "teacher_logprobs" in self.needed else ["generate"]

    def room(self, next_step: int, published: int) -> int:
        """Groups that may be admitted now: *next_step* is the next to be sealed, *published* the newest weights."""
        grpo = self.config.grpo
        newest_step = min(published + 1 + grpo.async_grpo.window, grpo.max_num_steps)
        wanted = max(0, (newest_step - next_step + 1) * self.groups_per_step - len(self.open))
        return self.pressure.room(len(self.open), wanted) if wanted else 0

    def add(self, groups: Mapping[str, list[str]]) -> None:
        """Groups just admitted, with their rows."""
        self.open.update(groups)
        self.admitted += len(groups)

    def restore(self, groups: dict[str, list[str]], unsealed: set[str]) -> None:
        """Start over with the groups that the store has; those of which nothing is sealed are open."""
        self.admitted = max((int(group) for group in groups), default=-1) + 1  # rows of old steps may be cleared
        self.open = {group: ids for group, ids in groups.items() if unsealed.issuperset(ids)}
        self.replaced.clear()
        self.chosen.clear()

    def settle(self) -> bool:
        """Retry what failed and may be tried again, forget groups with no row left; whether anything changed."""
        failed = self._failed()
        again = [sample_id for sample_id, error in failed.items() if self._may_retry(sample_id, error)]
        self._retry(again)
        gone = set(failed) - set(again)
        dead = [group for group, ids in self.open.items() if gone.issuperset(ids)] if gone else []
        for group in dead:
            self.replaced |= {sample_id: failed[sample_id] for sample_id in self.open.pop(group)}
        check_budget(self.replaced, self.config.grpo.num_samples_per_step, self.config.failures)
        return bool(again or dead)

    def _failed(self) -> dict[str, str]:
        """Unsealed rows that failed, with their errors."""
        if not self.plane.rows(TRAIN, sealed=False, failed=True):
            return {}
        state = self.plane.row_state(TRAIN).select(["sample_id", "error", "step"])
        failed = state.filter(pc.and_(pc.is_valid(state["error"]), pc.is_null(state["step"])))
        return dict(zip(failed["sample_id"].to_pylist(), failed["error"].to_pylist(), strict=True))

    def _may_retry(self, sample_id: str, error: str) -> bool:
        return code_of(error) in RETRYABLE and self.retries[sample_id] + 1 < self.config.failures.attempts

    def _retry(self, ids: list[str]) -> None:
        if not ids:
            return
        self.retries.update(ids)
        generated = set(self.plane.rows(TRAIN, have=["input_ids"], sealed=False, failed=True))
        for tasks, rows in (
            (["generate"], [i for i in ids if i not in generated]),
            (["teacher"], [i for i in ids if i in generated]),
        ):
            if rows:
                self.plane.requeue(TRAIN, rows, tasks)

    def next_members(self, step: int) -> list[str] | None:
        """The rows of the next step once enough groups are settled, else None.

        Raises JobFailed when too many are lost.
        """
        if len(self.open) < self.groups_per_step:
            return None
        failed = self._failed()
        groups = self._fresh_groups(step, failed)
        if groups is None:
            return None
        rows = [sample_id for group in groups for sample_id in self.open[group]]
        lost = {sample_id: failed[sample_id] for sample_id in rows if sample_id in failed}
        check_budget(lost, len(rows), self.config.failures)
        check_size(lost, len(rows), self.config.failures)
        self.counts.collected(step, len(rows) + len(self.replaced), {**self.replaced, **lost})
        for group in groups:
            for sample_id in self.open.pop(group):
                self.retries.pop(sample_id, None)
        self.replaced.clear()
        return [sample_id for sample_id in rows if sample_id not in lost]

    def _fresh_groups(self, step: int, failed: dict[str, str]) -> list[str] | None:
        """The groups that the sampler takes for *step*, none of whose rows is too old for it."""
        reach = overtaking_window(self.config.grpo)
        settled = set(self.plane.rows(TRAIN, have=self.needed, sealed=False, failed=False)) | failed.keys()
        places = {int(group): group for group in self.open}
        while True:
            is_settled = ((place, settled.issuperset(self.open[group])) for place, group in places.items())
            chosen = choose(is_settled, self.groups_per_step, reach)
            if chosen is None:
                return None
            groups = [places[place] for place in chosen]
            stale = self._regenerate_stale(step, [i for g in groups for i in self.open[g] if i not in failed])
            if not stale:
                return groups
            settled.difference_update(stale)

    def _regenerate_stale(self, step: int, rows: list[str]) -> list[str]:
        """Send rows whose oldest token is too old for *step* back to the generator; those rows."""
        oldest = step - 1 - self.config.grpo.async_grpo.window
        read = self.chosen[step] = self.plane.get(TRAIN, rows, MEASURED)
        versions = read.values("weight_version")
        stale = [sample_id for sample_id, version in zip(rows, versions, strict=True) if version < oldest]
        if stale:
            self.plane.event("stale", step=step, rows=len(stale), oldest_allowed=oldest)
            self.plane.requeue(TRAIN, stale, self.sampling_tasks)
        return stale
