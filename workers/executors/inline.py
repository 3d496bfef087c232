"""``inline``: every role in the controller's own thread, for debugging, replay and deterministic tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dataplane import DataPlane
from schemas.errors import DeadlinePassed, InputError
from workers.executors import Call, Meanwhile, RoleSpec, Status
from workers.executors.status import status_of
from workers.ranks import ALONE
from workers.roles import Role


class _Finished:
    """A call that ran at once."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.value


class InlineExecutor:
    """One process, one thread. Turns are taken in a fixed order, so that a run repeats bit for bit."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.roles: dict[str, Role] = {}

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        for name, spec in roles.items():
            _refuse_processes(name, spec)
        torch.set_num_threads(self.threads)
        self.roles = {name: spec.build(plane, ranks=ALONE) for name, spec in roles.items()}

    def names(self) -> Sequence[str]:
        return list(self.roles)

    def submit(self, role: str, method: str, *arguments: Any) -> Call:
        return _Finished(getattr(self.roles[role], method)(*arguments))

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Turns go round until *until* holds. Nobody else could help: a round in which nothing moves is the end."""
        while not until():
            moved = meanwhile()
            moved |= any([role.turn() for role in self.roles.values()])
            if not moved and not until():
                raise DeadlinePassed(
                    f"{what}: nothing is left that any worker could do; `opd sql` on the run shows its rows"
                )

    @property
    def statuses(self) -> dict[str, Status]:
        """What every role does."""
        return {name: status_of(role) for name, role in list(self.roles.items())}

    def take_news(self) -> Sequence[str]:
        return ()

    def stop(self) -> None:
        self.roles.clear()


def _refuse_processes(name: str, spec: RoleSpec) -> None:
    """Raise InputError for a role that one process cannot host."""
    if spec.ranks > 1:
        raise InputError(f"{name}: {spec.ranks} ranks need processes of their own; use --executor ray, or 1 rank")
    if spec.python is not None:
        raise InputError(f"{name}: asks for the interpreter {spec.python}; use --executor ray, or leave `python` out")
