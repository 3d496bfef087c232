"""What the controller tells the person who watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Reporter(Protocol):
    """Hears of every step as it happens."""

    def waiting(self, what: str) -> None: ...
    def trained(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def validated(self, version: int, metrics: Mapping[str, float]) -> None: ...


class Quiet:
    """Says nothing."""

    def waiting(self, what: str) -> None: ...

    def trained(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def validated(self, version: int, metrics: Mapping[str, float]) -> None: ...
