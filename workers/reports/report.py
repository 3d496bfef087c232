"""What the controller tells the person who watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.reports.overview import Overview


class Reporter:
    """Hears of every step as it happens. This one says nothing."""

    def watch(self, overview: Overview) -> None:
        """What can be looked at from now on, at any time."""

    def resumed(self, validations: Mapping[int, Mapping[str, float]]) -> None:
        """Versions that were evaluated before, with their metrics."""

    def waiting(self, what: str) -> None:
        """The controller waits for something else now."""

    def news(self, line: str) -> None:
        """Something happened that nobody waited for."""

    def waits_long(self, what: str, seconds: float, workers: str) -> None:
        """It has done so for long; what every worker does."""

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is trained."""

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        """A version is evaluated."""


class Reports(Reporter):
    """Passes everything on to several."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def watch(self, overview: Overview) -> None:
        for reporter in self.reporters:
            reporter.watch(overview)

    def resumed(self, validations: Mapping[int, Mapping[str, float]]) -> None:
        for reporter in self.reporters:
            reporter.resumed(validations)

    def waiting(self, what: str) -> None:
        for reporter in self.reporters:
            reporter.waiting(what)

    def news(self, line: str) -> None:
        for reporter in self.reporters:
            reporter.news(line)

    def waits_long(self, what: str, seconds: float, workers: str) -> None:
        for reporter in self.reporters:
            reporter.waits_long(what, seconds, workers)

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        for reporter in self.reporters:
            reporter.trained(step, metrics)

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        for reporter in self.reporters:
            reporter.validated(version, metrics)


class TensorBoard(Reporter):
    """Writes every metric as a scalar."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory))

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write("train", step, metrics)

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        self._write("validation", version, metrics)

    def _write(self, group: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        self.writer.flush()
