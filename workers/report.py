"""What the controller tells the person who watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Reporter(Protocol):
    """Hears of every step as it happens."""

    def waiting(self, what: str) -> None: ...
    def trained(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def validated(self, version: int, metrics: Mapping[str, float]) -> None: ...


class Reports:
    """Passes everything on to several."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def waiting(self, what: str) -> None:
        for reporter in self.reporters:
            reporter.waiting(what)

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        for reporter in self.reporters:
            reporter.trained(step, metrics)

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        for reporter in self.reporters:
            reporter.validated(version, metrics)


class TensorBoard:
    """Writes every metric as a scalar."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory))

    def waiting(self, what: str) -> None: ...

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write("train", step, metrics)

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        self._write("validation", version, metrics)

    def _write(self, group: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        self.writer.flush()


class Quiet:
    """Says nothing."""

    def waiting(self, what: str) -> None: ...

    def trained(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def validated(self, version: int, metrics: Mapping[str, float]) -> None: ...
