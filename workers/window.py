"""Which rows may be admitted, and which make up the next step.

A step asks for ``prompts`` groups. Groups are admitted in data order as far as the staleness window reaches, and
join steps in the same order. A row that fails is tried again; when that is used up its group goes on without it,
and a group without any row left is replaced by another prompt before the step is sealed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.columns import FAILURE_CODES, TRAIN
from schemas.config import RunConfig
from schemas.errors import JobFailed
from workers.counts import StepCounts

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
    counts: StepCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = StepCounts(self.plane)

    @property
    def groups_per_step(self) -> int:
        return self.config.grpo.num_prompts_per_step

    @property
    def sampling_tasks(self) -> list[str]:
        """Tasks of a row before its seal: those that a row which is sampled again goes through again."""
        return ["generate", "teacher"] if "teacher_logprobs" in self.needed else ["generate"]

    def room(self, next_step: int, published: int) -> int:
        """Groups that may be admitted now: *next_step* is the next to be sealed, *published* the newest weights."""
        newest_step = published + 1 + self.config.grpo.async_grpo.window
        return max(0, (newest_step - next_step + 1) * self.groups_per_step - len(self.open))

    def add(self, groups: Iterable[list[str]]) -> None:
        """Groups just admitted."""
        for ids in groups:
            self.open[group_of(ids[0])] = ids
            self.admitted += 1

    def restore(self, groups: dict[str, list[str]], unsealed: set[str]) -> None:
        """Start over with the groups that the store has; those of which nothing is sealed are open."""
        self.admitted = max((int(group) for group in groups), default=-1) + 1  # rows of old steps may be cleared
        self.open = {group: ids for group, ids in groups.items() if unsealed.issuperset(ids)}
        self.replaced.clear()

    def settle(self) -> bool:
        """Retry what failed and may be tried again, forget groups with no row left; whether anything changed."""
        failed = self._failed()
        again = [sample_id for sample_id, error in failed.items() if self._may_retry(sample_id, error)]
        self._retry(again)
        gone = set(failed) - set(again)
        dead = [group for group, ids in self.open.items() if gone.issuperset(ids)]
        for group in dead:
            self.replaced |= {sample_id: failed[sample_id] for sample_id in self.open.pop(group)}
        self._check_budget(self.replaced, asked=self.config.grpo.num_samples_per_step)
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
        self.retries.update(ids)
        generated = set(self.plane.rows(TRAIN, have=["input_ids"], sealed=False, failed=True))
        for tasks, rows in (
            (["generate"], [i for i in ids if i not in generated]),
            (["teacher"], [i for i in ids if i in generated]),
        ):
            if rows:
                self.plane.requeue(TRAIN, rows, tasks)

    def next_members(self, step: int) -> list[str] | None:
        """The rows of the next step once its groups are settled, else None. Raises JobFailed when too many are lost."""
        groups = list(self.open.values())[: self.groups_per_step]
        if len(groups) < self.groups_per_step:
            return None
        done = set(self.plane.rows(TRAIN, have=self.needed, sealed=False, failed=False))
        failed = self._failed()
        rows = [sample_id for ids in groups for sample_id in ids]
        if any(sample_id not in done and sample_id not in failed for sample_id in rows):
            return None
        if self._regenerate_stale(step, [i for i in rows if i in done]):
            return None
        lost = {i: failed[i] for i in rows if i in failed}
        self._check_budget(lost, asked=len(rows))
        self._check_size(lost, asked=len(rows))
        self.counts.collected(step, len(rows) + len(self.replaced), {**self.replaced, **lost})
        for ids in groups:
            del self.open[group_of(ids[0])]
        self.replaced.clear()
        return [sample_id for sample_id in rows if sample_id in done]

    def _regenerate_stale(self, step: int, rows: list[str]) -> bool:
        """Send rows whose oldest token is too old for *step* back to the generator; whether there were any."""
        oldest = step - 1 - self.config.grpo.async_grpo.window
        versions = self.plane.get(TRAIN, rows, ["weight_version"]).values("weight_version")
        stale = [sample_id for sample_id, version in zip(rows, versions, strict=True) if version < oldest]
        if stale:
            self.plane.event("stale", step=step, rows=len(stale), oldest_allowed=oldest)
            self.plane.requeue(TRAIN, stale, self.sampling_tasks)
        return bool(stale)

    def _check_budget(self, lost: dict[str, str], asked: int) -> None:
        """So many rows of one step may be lost, and no more."""
        budgets = self.config.failures
        quarantined = {i: e for i, e in lost.items() if FAILURE_CODES.get(code_of(e)) == "quarantined"}
        others = {i: e for i, e in lost.items() if i not in quarantined}
        for rows, share, name in (
            (others, budgets.max_failed_share, "max_failed_share"),
            (quarantined, budgets.max_quarantined_share, "max_quarantined_share"),
        ):
            if len(rows) > share * asked:
                raise JobFailed(
                    f"expected {asked} samples, got {max(0, asked - len(lost))}: {len(rows)} lost is more than "
                    f"failures.{name} allows ({share:.0%}): {summarise(rows)}"
                )

    def _check_size(self, lost: dict[str, str], asked: int) -> None:
        """A step is never trained silently on less than was asked."""
        if asked - len(lost) < self.config.failures.min_step_fraction * asked:
            raise JobFailed(
                f"expected {asked} samples, got {asked - len(lost)}, less than failures.min_step_fraction "
                f"({self.config.failures.min_step_fraction:.0%}) of them: {summarise(lost)}"
            )


def group_of(sample_id: str) -> str:
    """The group that a sample id names."""
    return sample_id.rpartition("-")[0]


def code_of(error: str) -> str:
    """The code that opens an error."""
    return error.partition(":")[0]


def summarise(errors: dict[str, str]) -> str:
    """The commonest reasons, each with a sample to look at."""
    by_reason: dict[str, list[str]] = {}
    for sample_id, error in errors.items():
        by_reason.setdefault(error, []).append(sample_id)
    worst = sorted(by_reason.items(), key=lambda item: -len(item[1]))[:3]
    return "; ".join(f"{len(ids)} x {error} (e.g. {ids[0]})" for error, ids in worst)
