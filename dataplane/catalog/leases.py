"""Leases: which rows a worker holds for a task, and until when. They end with the process that granted them.

    granted ──renew──▶ granted ──commit, fail, release──▶ over
       └──────────── the lease's time passes ───────────▶ over: rows go back, a late commit is refused
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from dataplane.numbers import Ints, not_in


@dataclass(slots=True)
class Lease:
    """What is left of a claim: row numbers in claim order, of those that were ``granted``."""

    claim: str
    partition: str
    task: str
    numbers: Ints
    attempt: int
    worker: str
    deadline: float
    granted: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.granted = self.numbers

    @property
    def whole(self) -> bool:
        """Whether no row has left it yet."""
        return self.numbers is self.granted


class Leases:
    """Every lease that is not over, by claim."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._deadlines: list[tuple[float, str]] = []

    def grant(self, lease: Lease) -> None:
        """A new lease."""
        self._leases[lease.claim] = lease
        heapq.heappush(self._deadlines, (lease.deadline, lease.claim))

    def get(self, claim: str) -> Lease | None:
        """The lease of a claim that is not over."""
        return self._leases.get(claim)

    def renew(self, claim: str, deadline: float) -> None:
        """The claim's lease now ends at *deadline*."""
        lease = self._leases.get(claim)
        if lease is not None:
            lease.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, claim))

    def drop(self, lease: Lease, numbers: Ints) -> None:
        """These rows leave the lease; it is over when none is left."""
        left = not_in(lease.numbers, numbers)
        if not left.all():
            lease.numbers = lease.numbers[left]
        if not len(lease.numbers):
            self._leases.pop(lease.claim, None)

    def on(self, partition: str, task: str) -> list[Lease]:
        """Leases of a task."""
        return [lease for lease in self._leases.values() if (lease.partition, lease.task) == (partition, task)]

    def all(self) -> list[Lease]:
        """Every lease that is not over."""
        return list(self._leases.values())

    def expired(self, now: float) -> list[Lease]:
        """Leases whose time has passed, oldest deadline first. Asking costs nothing while none has."""
        over: dict[str, Lease] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            lease = self._leases.get(heapq.heappop(self._deadlines)[1])
            if lease is not None and lease.deadline <= now:
                over[lease.claim] = lease
        return list(over.values())

    def clear(self) -> None:
        """All are over: another process has the store now."""
        self._leases.clear()
        self._deadlines.clear()
