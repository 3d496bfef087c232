"""``Status``: what a role does, as one sees it from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.roles import Role


@dataclass(frozen=True)
class Status:
    """The rows that a role has in hand, or else the method it was called for; when it has neither, it waits.

    Since when by its own clock (0 without rows), and for how many seconds.
    """

    task: str = ""
    partition: str = ""
    sample_ids: Sequence[str] = ()
    since: float = 0.0
    seconds: float = 0.0

    @property
    def doing(self) -> str:
        """In words, without how long."""
        if not self.task:
            return "waits for rows"
        rows = f" on {len(self.sample_ids)} samples ({self.sample_ids[0]} …)" if self.sample_ids else ""
        return f"runs {self.task}{rows}"

    def __str__(self) -> str:
        return f"{self.doing} for {self.seconds:.1f} s"


def status_of(role: Role, called: tuple[str, float] | None = None) -> Status:
    """What *role* does now; *called* is the method it was called for, and since when (monotonic seconds)."""
    now, busy = time.monotonic(), role.busy()
    if busy is not None:
        return Status(busy.task, busy.partition, busy.sample_ids, busy.since, now - busy.since)
    if called is not None:
        return Status(called[0], seconds=now - called[1])
    return Status(seconds=now - role.idle_since())


def describe(statuses: Mapping[str, Status]) -> str:
    """What every role does, in a line."""
    return "; ".join(f"{name} {status}" for name, status in statuses.items())
