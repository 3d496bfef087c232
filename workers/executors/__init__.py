"""Where roles run. The controller knows this protocol and nothing else of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dataplane import DataPlane
from workers.executors.status import Status, describe
from workers.ranks import Ranks
from workers.roles import Role
from workers.teachers.placement import Bundles


class BuildRole(Protocol):
    """Makes a role in the process that will host it."""

    def __call__(self, plane: DataPlane, *, ranks: Ranks) -> Role: ...


@dataclass(frozen=True)
class RoleSpec:
    """A role to host: how to make it, and what its *ranks* processes need each.

    What a *stateful* role holds is gone when a process of it is lost. *python* is the interpreter of its processes,
    None the controller's own. *bundles* are reserved before any role is built; None takes what is free.
    """

    build: BuildRole
    cpus: float = 1.0
    gpus: float = 0.0
    stateful: bool = False
    ranks: int = 1
    python: str | None = None
    bundles: Bundles | None = None


class RoleLost(Exception):
    """A stateful role's process was lost and started again; whoever relied on its state must restore it."""

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(f"{role} was lost: {reason}")
        self.role = role
        self.reason = reason


class CallLost(Exception):
    """The process that ran a call was lost; its role, which has no state, runs again: the call can be made again."""


#: What the controller does while it waits; whether that gave anybody something to do.
Meanwhile = Callable[[], bool]


class Call(Protocol):
    """A method running on a role."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Executor(Protocol):
    """Hosts roles, lets them take turns, and carries calls to them."""

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        """Build every role where it will live, over *plane* or a connection to it."""
        ...

    def names(self) -> Sequence[str]:
        """The roles hosted."""
        ...

    def submit(self, role: str, method: str, *arguments: Any) -> Call:
        """Start ``role.method(*arguments)``."""
        ...

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Return when *until* holds; *meanwhile* is called whenever the store has changed, and now and then.

        Raises DeadlinePassed, naming *what* was waited for.
        """
        ...

    @property
    def statuses(self) -> Mapping[str, Status]:
        """What every role does, as far as that is known; asked from other threads too."""
        ...

    def take_news(self) -> Sequence[str]:
        """What befell roles since it was asked last, a line each."""
        ...

    def stop(self) -> None: ...


__all__ = ["BuildRole", "Call", "CallLost", "Executor", "Meanwhile", "RoleLost", "RoleSpec", "Status", "describe"]
