"""A run as replay reads it: its store, its recipe, and where its files lie now. Nothing is ever written to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml

from dataplane import DataPlane
from dataplane.sql import run_sql
from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.config import RunConfig, load_recipe, load_resolved
from schemas.config.resolved import versions
from schemas.errors import InputError, MissingRows
from workers.cli.stores import about_condition, open_store
from workers.rundir import RECIPE, RunDir


@dataclass(frozen=True)
class StoredRun:
    """An open store, the file of its resolved recipe (None: the one in the store), and the directory around them."""

    plane: DataPlane
    config_file: Path | None
    run_dir: RunDir

    def config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The run's recipe with ``KEY=VALUE`` changes. Raises ConfigError."""
        if self.config_file is None:
            return load_resolved(self.plane.facts()[RECIPE], overrides)
        return load_recipe(str(self.config_file), overrides)

    def rows_of(self, step: int) -> list[str]:
        """Members of *step* that have not failed, in its sealed order. Raises InputError naming the steps there are."""
        sealed = [each.step for each in self.plane.steps() if each.partition == TRAIN]
        if step not in sealed:
            there = f"steps {sealed[0]} to {sealed[-1]} are" if sealed else "none is"
            raise InputError(f"step {step} is not sealed in this run; {there}")
        failed = set(self.plane.rows(TRAIN, failed=True, step=step))
        return [sample_id for sample_id in self.plane.members(step) if sample_id not in failed]

    def rows_where(self, condition: str) -> list[str]:
        """Training rows for which a SQL condition over ``samples`` holds. Raises InputError."""
        query = f"select sample_id from samples where partition = '{TRAIN}' and ({condition}\n)"
        with about_condition(condition):
            found = run_sql(self.plane, query)
        return [str(sample_id) for sample_id in found["sample_id"].to_pylist()]

    def steps_of(self, ids: Sequence[str]) -> dict[str, int | None]:
        """The step of each row, None where it is in none. Raises InputError for rows that are not there."""
        state = self.plane.row_state(TRAIN)
        found = dict(zip(state["sample_id"].to_pylist(), state["step"].to_pylist(), strict=True))
        unknown = [sample_id for sample_id in ids if sample_id not in found]
        if unknown:
            raise InputError(
                f'no sample {unknown[0]!r} among the training rows; `opd sql RUN "select sample_id from samples"` '
                "lists them"
            )
        return {sample_id: found[sample_id] for sample_id in ids}

    def errors_of(self, ids: Sequence[str]) -> dict[str, str]:
        """The recorded error of each row that failed."""
        state = self.plane.row_state(TRAIN)
        failed = state.filter(pc.is_valid(state["error"]))
        wanted = set(ids)
        pairs = zip(failed["sample_id"].to_pylist(), failed["error"].to_pylist(), strict=True)
        return {sample_id: error for sample_id, error in pairs if sample_id in wanted}

    def batch(self, ids: Sequence[str], columns: Sequence[str]) -> Batch:
        """Stored columns of rows, as a worker would get them. Raises MissingRows in a sentence about replay."""
        there = self.plane.partitions()[TRAIN].names
        unknown = [name for name in columns if name not in there]
        if unknown:
            raise MissingRows(f"this run never stored the column {unknown[0]!r}")
        try:
            return self.plane.get(TRAIN, ids, columns)
        except MissingRows as error:
            lacking = sorted({name for names in error.missing.values() for name in names})
            first = next(iter(error.missing), "")
            raise MissingRows(
                f"{len(error.missing)} of {len(ids)} rows lack what it reads ({', '.join(lacking)}): never written, or "
                f"cleared by retention; the first is {first!r}",
                error.missing,
            ) from None

    def teachers(self, config: RunConfig) -> list[str]:
        """The checkpoint behind each ``teacher_index``: those that the run recorded, then others of *config*."""
        from stages.routing import teacher_configs, teacher_configs_by_index
        from workers.teachers.index import recorded_teachers

        known = recorded_teachers(self.plane)
        for teacher in teacher_configs_by_index(teacher_configs(config.on_policy_distillation)):
            if teacher.model_name not in known:
                known.append(teacher.model_name)
        return known

    def changed_versions(self) -> dict[str, list[str | None]]:
        """Packages whose version is another than the run's: name → [then, now]."""
        then = self._recipe().get("versions") or self._started_with()
        now = versions()
        return {name: [then.get(name), now.get(name)] for name in {**then, **now} if then.get(name) != now.get(name)}

    def _started_with(self) -> dict[str, str]:
        events = self.plane.events().select(["kind", "detail"]).to_pylist()
        started = [json.loads(event["detail"]) for event in events if event["kind"] == "run_started"]
        return {name: value for name, value in started[-1].items() if name in versions()} if started else {}

    def _recipe(self) -> dict[str, Any]:
        """The resolved recipe as it was written."""
        file = self.config_file
        content: dict[str, Any] = yaml.safe_load(
            self.plane.facts()[RECIPE] if file is None else file.read_text(encoding="utf-8")
        )
        return content

    def home(self) -> Path:
        """Where the recipe's relative paths start: the run's working directory, or this process's if that is gone."""
        recorded = self._recipe().get("working_directory")
        return Path(recorded) if recorded and Path(recorded).is_dir() else Path.cwd()


def open_run(run: str | Path, config: str | Path | None = None) -> StoredRun:
    """The run at *run*: a run directory, its store, an export, or a redis:// URL. Raises InputError.

    Its recipe is *config*, else the ``config.yaml`` beside the store, else the one that the run recorded in it.
    """
    text = str(run) if "://" in str(run) else str(Path(run).absolute())
    directory = None if "://" in text else Path(text)
    places = [Path(config).absolute()] if config is not None else []
    if config is None and directory is not None:
        places = [directory / "config.yaml", directory.parent / "config.yaml"]
    plane = open_store(text)
    found = next((place for place in places if place.is_file()), None)
    if found is None and config is None and RECIPE in plane.facts():
        return StoredRun(plane, None, RunDir(directory or Path()))
    if found is None:
        plane.close()
        raise InputError(
            f"run {text!r}: replay needs its recipe, the config.yaml of the run directory, and there is none; "
            "give it with --config FILE"
        )
    return StoredRun(plane, found, RunDir(found.parent))
