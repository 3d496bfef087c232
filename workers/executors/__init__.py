"""Where roles run. The controller knows this protocol and nothing else of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dataplane import DataPlane
from workers.roles import Role

#: Makes a role in the process that will host it.
BuildRole = Callable[[DataPlane], Role]

#: What the controller does while it waits; whether that gave anybody something to do.
Meanwhile = Callable[[], bool]


class Call(Protocol):
    """A method running on a role."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Executor(Protocol):
    """Hosts roles, lets them take turns, and carries calls to them."""

    def start(self, plane: DataPlane, roles: Mapping[str, BuildRole]) -> None:
        """Build every role where it will live, over *plane* or a connection to it."""
        ...

    def names(self) -> Sequence[str]:
        """The roles hosted."""
        ...

    def submit(self, role: str, method: str, *arguments: Any) -> Call:
        """Start ``role.method(*arguments)``."""
        ...

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Return when *until* holds. Raises DeadlinePassed, naming *what* was waited for."""
        ...

    def stop(self) -> None: ...
