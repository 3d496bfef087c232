"""Waiting: everything the controller waits for goes through here, so that what it is, and since when, is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dataplane import DataPlane
from workers.executors import CallLost, Executor, describe
from workers.reports.report import Reporter

#: Seconds after which a wait is worth an event.
LONG_S = 10.0


class Waiting:
    """Has the executor wait, and *meanwhile* done in between. Every wait ends after *deadline_s* without a change."""

    def __init__(
        self,
        plane: DataPlane,
        executor: Executor,
        report: Reporter,
        meanwhile: Callable[[], bool],
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plane = plane
        self.executor = executor
        self.report = report
        self.meanwhile = self.on_change(meanwhile)
        self.deadline_s = deadline_s
        self.clock = clock
        #: What is waited for now, and since when by the clock.
        self.what, self.since = "starting", clock()
        self._told = False
        #: Processor seconds that went into the executor, and through it into inline workers.
        self._elsewhere_s = 0.0

    def call(self, role: str, method: str, *arguments: Any, what: str) -> Any:
        """Run a method of a role; its result. A role without state that is lost meanwhile is called again."""
        while True:
            call = self._executors(self.executor.submit, role, method, *arguments)
            self._wait(call.done, what)
            with suppress(CallLost):
                return self._executors(call.result)

    def call_all(self, method: str, *, what: str) -> dict[str, Any]:
        """Run a method of every role at once; the results by role, without those that were lost meanwhile."""
        calls = {role: self._executors(self.executor.submit, role, method) for role in self.executor.names()}
        self._wait(lambda: all(call.done() for call in calls.values()), what)
        results = {}
        for role, call in calls.items():
            with suppress(CallLost):
                results[role] = self._executors(call.result)
        return results

    def on_change(self, check: Callable[[], bool]) -> Callable[[], bool]:
        """*check*, asked again only when the store has changed."""
        seen = -1

        def changed() -> bool:
            nonlocal seen
            position = self.plane.position()
            if position == seen:
                return False
            seen = position
            return check()

        return changed

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return when it *holds*. Raises DeadlinePassed, naming *what* was waited for."""
        self._wait(lambda: self._own(holds), what)

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        self.what, self.since, self._told = what, self.clock(), False
        self.report.waiting(what)
        self._executors(
            self.executor.wait, holds, what, deadline_s=self.deadline_s, meanwhile=lambda: self._own(self._between)
        )
        if self._told:
            self.plane.event("waited", what=what, seconds=round(self.clock() - self.since, 1))

    def _executors(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Do what is the executor's; its seconds are not the controller's."""
        began = time.thread_time()
        try:
            return work(*arguments, **named)
        finally:
            self._elsewhere_s += time.thread_time() - began

    def _own(self, work: Callable[[], bool]) -> bool:
        """Do, inside the executor's wait, what is the controller's after all."""
        began = time.thread_time()
        try:
            return work()
        finally:
            self._elsewhere_s -= time.thread_time() - began

    def take_elsewhere_seconds(self) -> float:
        """Processor seconds since the last call that were the executor's, not the controller's."""
        taken, self._elsewhere_s = self._elsewhere_s, 0.0
        return taken

    def _between(self) -> bool:
        moved = self.meanwhile()
        for line in self.executor.take_news():
            self.report.news(line)
        waited_s = self.clock() - self.since
        if waited_s > LONG_S and not self._told:
            self._told = True
            workers = describe(self.executor.statuses)
            self.plane.event("waiting", what=self.what, seconds=round(waited_s, 1), workers=workers)
            self.report.waits_long(self.what, waited_s, workers)
        return moved
