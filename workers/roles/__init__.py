"""Roles: what one process of a job hosts. An executor decides in which process that is.

A role takes *turns* (``turn()``: one claim of each of its workers; False when there was nothing to do) and answers
*calls* (its other public methods). Roles meet only in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from workers.loop import Busy, Work, Worker


class Role:
    """Some workers that share a process, a model and a name."""

    name: str
    #: Workers that take turns by themselves, in this order.
    workers: Sequence[Worker] = ()
    #: Workers that run only when a call says so.
    called: Sequence[Worker] = ()
    #: Methods that only the leader of several ranks runs.
    leaders_own: ClassVar[frozenset[str]] = frozenset({"take_work"})

    def turn(self, ready: Sequence[int] | None = None) -> bool:
        """One claim of each worker, or of those that are *ready*, by index; whether any had something to do."""
        workers = self.workers if ready is None else [self.workers[index] for index in ready]
        return any([worker.run_once() is not None for worker in workers])

    def expect_to_die(self, lease_s: float) -> None:
        """In a process of its own: claims end after *lease_s* without a sign of life, and bad rows are isolated."""
        for worker in (*self.workers, *self.called):
            worker.lease_s = lease_s
            worker.isolate = True

    def busy(self) -> Busy | None:
        """What one of its workers is doing, if any is."""
        return next((worker.busy for worker in (*self.workers, *self.called) if worker.busy), None)

    def idle_since(self) -> float:
        """When one of its workers had rows in hand last (monotonic seconds)."""
        return max((worker.ended for worker in (*self.workers, *self.called)), default=0.0)

    def take_work(self) -> Work:
        """What its workers did since the last call, together."""
        return sum((worker.take_work() for worker in (*self.workers, *self.called)), Work())
