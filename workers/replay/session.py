"""``replay``: some rows of a run, through its stages again."""

from __future__ import annotations

import json
import pdb
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Self

import torch

from schemas.batch import Batch
from schemas.columns import HEAVY, TRAIN
from schemas.errors import InputError, JobFailed, StoreError
from stages.base import Output, Stage
from workers.loop import aligned
from workers.replay.compare import Comparison, Tolerance, compare
from workers.replay.loss_terms import LossTerms, change
from workers.replay.report import Report, StageReport, tolerance_of
from workers.replay.source import StoredRun, open_run
from workers.replay.stages import OF_A_WHOLE_STEP, OF_ANY_ROWS, STAGES, Builder

#: Overrides as ``{"a.b": value}`` or ``["a.b=value"]``.
#: Sections of a recipe that a counterfactual may change.
ASKABLE = ("on_policy_distillation", "grpo", "loss_fn", "failures")
Overrides = Mapping[str, Any] | Sequence[str]


def replay(
    run: str | Path,
    step: int | None = None,
    *,
    sample_ids: Sequence[str] | None = None,
    where: str | None = None,
    config: str | Path | None = None,
) -> Replay:
    """Open *run* to replay a whole *step*, some samples, or those that a SQL condition picks; a context manager.

    *config* is the recipe, where *run* has none beside it (a redis:// URL). Raises InputError.
    """
    source = open_run(run, config)
    try:
        return Replay(source, step, _picked(source, step, sample_ids, where))
    except BaseException:
        source.plane.close()
        raise


def _picked(
    run: StoredRun, step: int | None, sample_ids: Sequence[str] | None, where: str | None
) -> dict[str, int | None]:
    """The rows meant and the step of each."""
    if sample_ids is None and where is None:
        if step is None:
            raise InputError("replay: say which rows: --step N, --sample ID or --where CONDITION")
        return dict.fromkeys(run.rows_of(step), step)
    ids = list(dict.fromkeys(sample_ids)) if sample_ids is not None else run.rows_where(str(where))
    if sample_ids is not None and where is not None:
        chosen = set(run.rows_where(where))
        ids = [sample_id for sample_id in ids if sample_id in chosen]
    steps = run.steps_of(ids)
    found = {sample_id: of for sample_id, of in steps.items() if step is None or of == step}
    if not found:
        raise InputError(f"replay: no training row meets this{'' if step is None else f' in step {step}'}")
    return found


class Replay:
    """Rows of a stored run. ``run`` puts them through stages; the run itself is only read."""

    def __init__(self, source: StoredRun, step: int | None, rows: Mapping[str, int | None]) -> None:
        self.source = source
        self.rows = dict(rows)
        steps = set(self.rows.values())
        self.step = step if step is not None else steps.pop() if len(steps) == 1 else None
        self._builders: dict[tuple[str, ...], Builder] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store."""
        self.source.plane.close()

    def stage(self, name: str, overrides: Overrides = ()) -> Stage:
        """The stage itself, as the job built it, to be called by hand."""
        with chdir(self.source.home()):
            return self._builder(_as_texts(overrides)).build(name, self.step).stage

    def batch(self, name: str, overrides: Overrides = ()) -> Batch:
        """What the stage *name* is given: the whole step where its rows depend on each other, else the rows meant."""
        return self._batch(name, self.stage(name, overrides))

    def run(self, *stages: str, overrides: Overrides = (), debug: bool = False) -> Report:
        """Put the rows through *stages* (default: teacher, student, baseline and train) and compare.

        Every stage reads what is stored. With *overrides* each one reads what the ones before it made, and the
        default is what needs no model: baseline and train, the loss from columns alone. *debug* stops inside the
        stage. What cannot run is reported as ``not_run`` with its reason.
        """
        texts = _as_texts(overrides)
        builder = self._builder(texts)
        names = stages or (("baseline", "train") if texts else STAGES)
        made: dict[str, Any] = {}
        with _threads(builder.config.cluster.threads_per_worker), chdir(self.source.home()):
            reports = [self._run(name, builder, made if texts else None, debug=debug) for name in names]
            changed = self._change(reports, builder) if texts else None
        return Report(self.step, reports, self.source.changed_versions(), texts, changed)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _builder(self, texts: list[str]) -> Builder:
        key = tuple(texts)
        if key not in self._builders:
            self._builders[key] = Builder(self.source, self.source.config(texts), what_if=bool(texts))
        return self._builders[key]

    def _batch(self, name: str, stage: Stage) -> Batch:
        if name in OF_A_WHOLE_STEP:
            if self.step is None:
                raise InputError(f"stage {name!r}: it needs a whole step, and the rows are in none or in several")
            return self.source.batch(self.source.rows_of(self.step), stage.reads)
        if name not in OF_ANY_ROWS and self.step is None:
            raise InputError(f"stage {name!r}: the rows are in no step, or in several; give --step N")
        return self.source.batch(list(self.rows), stage.reads)

    def _run(self, name: str, builder: Builder, made: dict[str, Any] | None, *, debug: bool) -> StageReport:
        report = StageReport(name, None, tolerance_of(name, builder.config.policy.dtype))
        try:
            built = builder.build(name, self.step)
            report.weights = built.weights
            batch = self._batch(name, built.stage)
            if made:
                batch = batch.with_columns({column: made[column] for column in batch if column in made})
            output: Output = _stopped(built.stage, batch) if debug else built.stage(batch)
            report.output = aligned(output, batch)
        except (InputError, StoreError, JobFailed) as error:
            report.reason = str(error)
            return report
        self._compare(report, built.stage)
        if made is not None and list(report.output.sample_ids) == batch.sample_ids:
            made |= report.output.columns
        return report

    def _compare(self, report: StageReport, stage: Stage) -> None:
        assert report.output is not None
        output = report.output
        ids = [sample_id for sample_id in self.rows if sample_id in set(output.sample_ids)]
        at = {sample_id: row for row, sample_id in enumerate(output.sample_ids)}
        schema = self.source.plane.partitions()[TRAIN]
        names = [name for name in stage.writes if name in output.columns and name in schema.names]
        new = Batch.of(output.sample_ids, {n: output.columns[n] for n in names}, schema)
        old = self.source.plane.get(TRAIN, ids, names, missing="null")
        written = [k for k in range(len(ids)) if any(old.array(name)[k].is_valid for name in names)]
        old, new = old.take(written), new.take([at[ids[k]] for k in written])
        for name in names:
            report.columns[name] = _compared(name, old, new, report.tolerance)
        then = self.source.errors_of(list(self.rows))
        now = {sample_id: error for sample_id, error in output.failed.items() if sample_id in self.rows}
        never_written = {ids[k] for k in range(len(ids))} - set(old.sample_ids)
        for sample_id in [i for i in self.rows if i in now or (i in then and i in never_written)]:
            report.errors[sample_id] = [then.get(sample_id), now.get(sample_id)]

    def _change(self, reports: Sequence[StageReport], builder: Builder) -> dict[str, Any] | None:
        """What the overrides would have done to the step; None where its columns or its loss are not to be had."""
        baseline = next((r for r in reports if r.stage == "baseline" and r.output is not None), None)
        if self.step is None or (baseline is None and not any(r.stage == "train" for r in reports)):
            return None
        before, after = LossTerms(self.source.config().loss_fn), LossTerms(builder.config.loss_fn)
        try:
            stored = self.source.batch(
                self.source.rows_of(self.step), list(dict.fromkeys([*before.reads, *after.reads]))
            )
        except StoreError:  # the stages' own reports say what is missing
            return None
        replayed = stored if baseline is None or baseline.output is None else _with(stored, baseline.output)
        return change(stored, replayed, before(stored).metrics, after(replayed).metrics)


def _compared(name: str, old: Batch, new: Batch, tolerance: Tolerance) -> Comparison:
    """One column; of a payload, the rows that retention has left."""
    rows = [row for row in range(len(old)) if name not in HEAVY or old.array(name)[row].is_valid]
    old, new = old.take(rows), new.take(rows)
    return compare(old.sample_ids, old.array(name), new.array(name), tolerance)


def _stopped(stage: Stage, batch: Batch) -> Output:
    """*stage* in a debugger that stops at its first line, with ``self`` and ``batch``; its output once one goes on."""
    output = pdb.Pdb().runcall(stage, batch)
    if output is None:
        raise InputError("the debugger was left before the stage was done; `continue` lets it finish")
    return output


def _with(stored: Batch, output: Output) -> Batch:
    return stored.with_columns({name: output.columns[name] for name in ("advantages", "sample_mask")})


def _as_texts(overrides: Overrides) -> list[str]:
    """``KEY=VALUE`` texts; JSON is YAML."""
    if isinstance(overrides, Mapping):
        texts = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    else:
        texts = [overrides] if isinstance(overrides, str) else list(overrides)
    for text in texts:
        if text.partition(".")[0] not in ASKABLE:
            raise InputError(f"{text}: no stage of a replay would read it; expected a key of {', '.join(ASKABLE)}")
    return texts


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many threads as the run's workers had: the same sums in the same order. Torch's random state is kept too."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)
