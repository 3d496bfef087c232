"""The run directory and what stands where in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dataplane.backends.files import disk_errors
from schemas.errors import InputError
from schemas.messages import Step

#: Name of the store's fact that holds the resolved recipe too, so that a store can be replayed without its directory.
RECIPE = "recipe"


@dataclass(frozen=True)
class RunDir:
    """Paths of one run."""

    path: Path

    @classmethod
    def around(cls, run: str) -> RunDir:
        """The directory of a run that is given by it or by the store in it; the current one for a redis:// URL."""
        given = cls(Path() if "://" in run else Path(run))
        outer = cls(given.path.parent)
        return outer if outer.config.is_file() and not given.config.is_file() else given

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plane(self) -> Path:
        return self.path / "plane"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def weights(self) -> Path:
        """Published weight versions that generators may still load."""
        return self.path / "weights"

    @property
    def logs(self) -> Path:
        """A file per worker process."""
        return self.path / "logs"

    @property
    def diagnostics(self) -> Path:
        """Files about single steps."""
        return self.path / "diagnostics"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def own(self, recorded: str | Path) -> Path:
        """A file that the run recorded, where it lies now: in this directory, which may be a copy, if it is a run's."""
        path = Path(recorded)
        here = self.path / path.parent.name / path.name
        return here if self.config.is_file() or not path.exists() else path

    def check(self, *, resume: bool) -> None:
        """Raise InputError, with the ways out, unless a run can start (or continue) here."""
        exists = self.config.exists()
        if exists and not resume:
            raise InputError(
                f"{self.path}: a run is there already; continue it with --resume, remove it, or give another --run-dir"
            )
        other = self._what_is_no_runs()
        if not exists and other:
            raise InputError(f"{self.path}: holds {other!r} and no run; give another --run-dir")
        if resume and not exists:
            raise InputError(f"{self.path}: no run to resume there (no {self.config.name}); start it without --resume")

    def _what_is_no_runs(self) -> str:
        """The name of something here that no run makes; one that was killed at once leaves a store, say."""
        own = {path.name for path in (self.config, self.plane, self.metrics, self.checkpoints, self.tokenizer)}
        own |= {path.name for path in (self.weights, self.logs, self.diagnostics, self.tensorboard)}
        there = self.path.iterdir() if self.path.is_dir() else ()
        return min((path.name for path in there if path.name not in own), default="")

    def create(self) -> None:
        """Make the directory. Raises InputError where that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot be a run directory ({error.strerror})"
            raise InputError(f"{self.path}: {reason}; give another --run-dir") from None

    def write_metrics(self, steps: Iterable[Step]) -> None:
        """Render ``metrics.jsonl`` anew: one object a trained step."""
        with disk_errors(str(self.metrics)), self.metrics.open("w", encoding="utf-8") as file:
            file.writelines(_line(step) for step in steps if step.metrics is not None)

    def append_metrics(self, step: Step) -> None:
        """Add the line of a step just trained."""
        with disk_errors(str(self.metrics)), self.metrics.open("a", encoding="utf-8") as file:
            file.write(_line(step))


def _line(step: Step) -> str:
    """A trained step's metrics; NaN and infinities are null, whole numbers are written as such."""
    values = {name: value if math.isfinite(value) else None for name, value in (step.metrics or {}).items()}
    whole = {name: int(value) for name, value in values.items() if value is not None and value.is_integer()}
    return json.dumps(values | whole) + "\n"
