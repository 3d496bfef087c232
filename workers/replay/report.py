"""What a replay found, as plain data and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stages.base import Output
from workers.cli.tables import cell, render
from workers.replay.compare import Comparison, Tolerance

#: From best to worst: the verdict over several stages is the worst of theirs.
VERDICTS = ("identical", "within_tolerance", "not_run", "different")

#: Largest difference that rounding explains: other batch shapes, other kernels, other threads.
EXACT, MODEL, HALF = Tolerance(1e-6, 1e-5), Tolerance(1e-4, 1e-4), Tolerance(5e-2, 5e-2)


def tolerance_of(stage: str, dtype: str) -> Tolerance:
    """The tolerance of a stage's numbers, given the type of the models' weights."""
    if stage == "baseline":
        return EXACT
    return MODEL if dtype == "float32" else HALF


@dataclass
class StageReport:
    """One stage: what it wrote beside what is stored. ``output`` is what it made, for whoever wants to look."""

    stage: str
    weights: str | None
    tolerance: Tolerance
    columns: dict[str, Comparison] = field(default_factory=dict)
    reason: str | None = None
    #: Rows that failed, then or now: id → [stored error, replayed error].
    errors: dict[str, list[str | None]] = field(default_factory=dict)
    output: Output | None = None

    @property
    def verdict(self) -> str:
        if self.reason is not None:
            return "not_run"
        verdicts = [column.verdict for column in self.columns.values()]
        verdicts += ["identical" if then == now else "different" for then, now in self.errors.values()]
        return max(verdicts, key=VERDICTS.index, default="identical")

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "stage": self.stage,
            "weights": self.weights,
            "verdict": self.verdict,
            "tolerance": asdict(self.tolerance),
            "columns": {name: _column(comparison) for name, comparison in self.columns.items()},
        }
        if self.reason is not None:
            found["reason"] = self.reason
        if self.errors:
            found["errors"] = {name: {"stored": then, "replayed": now} for name, (then, now) in self.errors.items()}
        return found


def _column(comparison: Comparison) -> dict[str, Any]:
    first = comparison.first_difference
    return {
        "rows": comparison.rows,
        "equal": comparison.equal,
        "max_abs_diff": comparison.max_abs_diff,
        "first_difference": None if first is None else asdict(first),
    }


@dataclass
class Report:
    """Every stage that was asked for; ``change`` says what the overrides would have changed."""

    step: int | None
    stages: list[StageReport]
    versions_changed: dict[str, list[str | None]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    change: dict[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """The worst of the stages' verdicts."""
        return max((stage.verdict for stage in self.stages), key=VERDICTS.index, default="not_run")

    @property
    def reason(self) -> str | None:
        """Why a stage could not run."""
        return next((f"{s.stage}: {s.reason}" for s in self.stages if s.reason is not None), None)

    def as_dict(self) -> dict[str, Any]:
        """The contract of ``opd replay --format json``."""
        found: dict[str, Any] = {
            "step": self.step,
            "stages": [stage.as_dict() for stage in self.stages],
            "verdict": self.verdict,
            "versions_changed": {name: {"then": a, "now": b} for name, (a, b) in self.versions_changed.items()},
        }
        if self.reason is not None:
            found["reason"] = self.reason
        if self.overrides:
            found["overrides"] = self.overrides
        if self.change is not None:
            found["change"] = self.change
        return found

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The same for people."""
        yield f"step {self.step}" if self.step is not None else "rows of no step, or of several"
        if self.overrides:
            yield f"with {', '.join(self.overrides)}"
        for stage in self.stages:
            yield ""
            yield from _stage_lines(stage, width)
        if self.change is not None:
            yield ""
            yield from change_lines(self.change, width)
        yield ""
        for name, (then, now) in self.versions_changed.items():
            yield f"since the run, {name} changed from {then or 'absent'} to {now or 'absent'}"
        yield f"verdict: {self.verdict.replace('_', ' ')}"


def _stage_lines(stage: StageReport, width: int | None) -> Iterator[str]:
    with_weights = f", {stage.weights}" if stage.weights else ""
    if stage.reason is not None:
        yield f"{stage.stage}{with_weights}: not run: {stage.reason}"
        return
    yield f"{stage.stage}{with_weights}: {stage.verdict.replace('_', ' ')} (tolerance {stage.tolerance})"
    rows = [
        (name, c.rows, c.equal, c.max_abs_diff, _where(c))
        for name, c in stage.columns.items()
        if c.rows or c.first_difference
    ]
    if rows:
        yield from render(("column", "rows", "equal", "max |diff|", "first difference"), rows, width)
    for sample_id, (then, now) in stage.errors.items():
        yield f"{cell(sample_id)} failed: then {cell(then)}; now {cell(now)}"


def _where(comparison: Comparison) -> str:
    first = comparison.first_difference
    if first is None:
        return ""
    at = "" if first.position is None else f" token {first.position}"
    return f"{cell(first.sample_id)}{at}: {cell(first.stored)} → {cell(first.replayed)}"


def change_lines(change: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """What the overrides would have changed."""
    sides = ("stored", "replayed")
    advantages = [change["advantages"][side] for side in sides]
    names = list(dict.fromkeys([*advantages[0], *advantages[1]]))
    rows = [(f"advantages, {name}", *(of.get(name) for of in advantages)) for name in names]
    rows += [
        (label, *(change[key][side] for side in sides))
        for label, key in (("share gated", "share_gated"), ("loss", "loss"), ("samples masked", "samples_masked"))
    ]
    yield from render(("what would have changed", *sides), rows, width)
    if change["moved"]:
        yield ""
        moved = [tuple(each.values()) for each in change["moved"]]
        yield from render(("samples that moved most", "mean |change|", "stored mean", "replayed mean"), moved, width)
