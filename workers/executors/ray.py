"""``ray``: every role an actor; they meet only in the store, which the controller hosts.

A role whose process dies or hangs is started again and its rows go back; the trainer's state is lost with it, so the
controller then returns to the last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from dataplane import DataPlane
from schemas.errors import DeadlinePassed, JobFailed, OpdError
from workers.executors import CallLost, Meanwhile, RoleLost, RoleSpec, Status, describe
from workers.executors.cluster import Cluster
from workers.executors.host import HostSettings, RoleHost
from workers.executors.lost import cause_of, lost_rank, why_ended
from workers.teachers.cluster import TeacherCluster, reserve

#: Seconds between two looks at what is waited for, and between two at what every role does.
POLL_S, LOOK_S = 0.005, 0.5
#: The first looks come sooner, for what is quickly done.
FIRST_POLL_S = 0.0005
#: Seconds that a role may take to start.
START_S = 300.0


@dataclass
class Hosted:
    """A role where it lives: the actor of each rank, the leader first, and what is known of them."""

    spec: RoleSpec
    actors: list[Any] = field(default_factory=list)
    #: What each actor runs without end.
    loops: list[Any] = field(default_factory=list)
    #: A question about what the role does, not answered yet.
    asked: Any = None
    status: Status | None = None
    #: By the executor's clock: when the role last answered, and since when it has had these rows in hand.
    heard: float = 0.0
    busy_since: float = 0.0
    lost: int = 0


class Clock(Protocol):
    """What deadlines are measured by; the module ``time`` is one."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


class RayExecutor:
    """Actors by role name. What a role's own loop or a call raised ends the job; a lost process does not."""

    def __init__(
        self, settings: HostSettings, *, address: str | None = None, restarts: int = 3, clock: Clock = time
    ) -> None:
        self.cluster = Cluster(address)
        self.settings = replace(settings, host=None) if self.cluster.address else settings
        self.restarts = restarts
        self.clock = clock
        self._plane: DataPlane
        self._hosted: dict[str, Hosted] = {}
        self._reserved: dict[str, TeacherCluster] = {}
        self._looked = 0.0
        self._news: list[str] = []

    # -- life -----------------------------------------------------------------------------------------

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        self._plane = plane
        self.cluster.start(roles)
        self._reserved = reserve({name: spec.bundles for name, spec in roles.items() if spec.bundles is not None})
        self._hosted = {name: Hosted(spec) for name, spec in roles.items()}
        begun = {name: self._spawn(name) for name in roles}
        for name in roles:
            self._await_ready(name, begun[name])

    def _spawn(self, name: str) -> list[Any]:
        """Start a process for each rank and have them build the role; what they will say when they have."""
        import ray

        hosted, settings = self._hosted[name], self.settings
        spec = hosted.spec
        options: dict[str, Any] = {
            "num_cpus": spec.cpus,
            "num_gpus": spec.gpus,
            "max_concurrency": 4,
            "max_restarts": 0,
        }
        if spec.python is not None:
            options["runtime_env"] = {"py_executable": str(Path(spec.python).absolute())}
        reserved = self._reserved.get(name)
        hosted.actors = [
            ray.remote(RoleHost)
            .options(**{**options, **(reserved.options(rank) if reserved is not None else {})})
            .remote(name, self._plane.address, settings, rank, spec.ranks)
            for rank in range(spec.ranks)
        ]
        meeting = hosted.actors[0].open_meeting.remote() if spec.ranks > 1 else None
        return [host.begin.remote(spec.build, meeting) for host in hosted.actors]

    def _await_ready(self, name: str, begun: list[Any]) -> None:
        import ray

        try:
            pids = ray.get(begun, timeout=START_S)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlinePassed(
                f"{name}: not started after {START_S:.0f} s; its log is in {self.settings.log_directory}"
            ) from error
        except ray.exceptions.RayError as error:
            raise JobFailed(f"{name}: cannot start: {cause_of(error)}") from error
        hosted = self._hosted[name]
        leader, *others = hosted.actors
        hosted.loops = [leader.loop.remote(), *(other.follow.remote() for other in others)]
        hosted.asked = None
        for other in self._hosted.values():
            other.heard = self.clock.monotonic()  # nobody was asked while this one started
        for pid in pids:
            self._plane.event("worker_started", worker=name, pid=pid)

    def stop(self) -> None:
        """End every actor, and Ray if it is ours. Whatever its teardown says changes no result."""
        for name in self._hosted:
            self._end(name)
        self._hosted.clear()
        for reserved in self._reserved.values():
            reserved.free()
        self.cluster.stop()

    def _end(self, name: str) -> None:
        import ray

        for actor in self._hosted[name].actors:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)

    # -- work -----------------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        return list(self._hosted)

    def submit(self, role: str, method: str, *arguments: Any) -> RayCall:
        return RayCall(self, role, method, arguments)

    def leader(self, role: str) -> Any:
        """The actor that answers calls to *role*."""
        return self._hosted[role].actors[0]

    def loops(self, role: str) -> Sequence[Any]:
        """What the ranks of *role* run without end."""
        return self._hosted[role].loops

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Poll *until*, look after the actors, and give up when nothing moves.

        A stage that runs for *deadline_s* is ended first, so the wait itself lasts twice as long.
        """
        moved = due = self.clock.monotonic()
        position, pause = self._plane.position(), FIRST_POLL_S
        while not until():
            now, seen = self.clock.monotonic(), self._plane.position()
            if seen != position or now >= due:
                if meanwhile() or seen != position:
                    moved = now
                position, due = seen, now + LOOK_S
            self._look_after(deadline_s)
            if now - moved > 2 * deadline_s:
                raise DeadlinePassed(f"{what}: nothing moved for {now - moved:.1f} s; {describe(self.statuses)}")
            self.clock.sleep(pause)
            pause = min(2 * pause, POLL_S)

    @property
    def statuses(self) -> dict[str, Status]:
        """What every role said last of what it does."""
        return {name: hosted.status for name, hosted in list(self._hosted.items()) if hosted.status is not None}

    def take_news(self) -> Sequence[str]:
        taken, self._news = self._news, []
        return taken

    # -- health ---------------------------------------------------------------------------------------

    def _look_after(self, deadline_s: float) -> None:
        """Restart what died or hangs. Raises JobFailed, and RoleLost for a role whose state is gone."""
        import ray

        now = self.clock.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        for name, hosted in self._hosted.items():
            if ray.wait(hosted.loops, timeout=0)[0]:
                self.replace(name, why_ended(hosted.loops))
        for name, hosted in self._hosted.items():
            self._ask(hosted)
            status = hosted.status
            silent_s = self.clock.monotonic() - hosted.heard
            if status is not None and status.sample_ids and hosted.heard - hosted.busy_since > deadline_s:
                reason = f"timed_out: {name} {status}"
                self._plane.fail(status.partition, dict.fromkeys(status.sample_ids, reason))
                self.replace(name, reason)
            elif silent_s > deadline_s:
                self.replace(name, f"timed_out: no sign of life from {name} for {silent_s:.1f} s")

    def _ask(self, hosted: Hosted) -> None:
        """Collect the answer to the last question about what the role does, and ask again."""
        import ray

        if hosted.asked is not None:
            if not ray.wait([hosted.asked], timeout=0)[0]:
                return
            with suppress(ray.exceptions.RayError):
                before, hosted.status = hosted.status, ray.get(hosted.asked)
                hosted.heard = self.clock.monotonic()
                if before is None or before.since != hosted.status.since:
                    hosted.busy_since = hosted.heard
        hosted.asked = hosted.actors[0].status.remote()

    def replace(self, name: str, reason: str) -> None:
        """Start a lost role again. Raises RoleLost if it was stateful, JobFailed when it was lost too often."""
        hosted = self._hosted[name]
        hosted.lost += 1
        self._plane.event("worker_lost", worker=name, reason=reason, times=hosted.lost)
        self._news.append(f"{name} was lost ({reason}); it is started again")
        self._end(name)
        if hosted.lost > self.restarts:
            raise JobFailed(
                f"{name}: lost {hosted.lost} times, last: {reason}; its log is in {self.settings.log_directory}"
            )
        hosted.status = None
        self._await_ready(name, self._spawn(name))
        if hosted.spec.stateful:
            raise RoleLost(name, reason)


class RayCall:
    """A method running on the actor that leads a role."""

    def __init__(self, executor: RayExecutor, role: str, method: str, arguments: Sequence[Any]) -> None:
        self.executor = executor
        self.role = role
        self.method = method
        self.actor = executor.leader(role)
        self.reference = self.actor.answer.remote(method, *arguments)
        self.future = self.reference.future()  # asked every few milliseconds; ray.wait would cost one each time

    def done(self) -> bool:
        return bool(self.future.done())

    def result(self) -> Any:
        """Its value. Raises what it raised; when its process died, RoleLost or CallLost, and the role runs again."""
        import ray

        try:
            return ray.get(self.reference)
        except ray.exceptions.RayActorError as error:
            self._lost(f"its process died: {cause_of(error)}", error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, OpdError):
                raise cause from error
            if lost := lost_rank(self.executor.loops(self.role)):
                self._lost(lost, error)
            raise JobFailed(f"{self.role}.{self.method}: {cause_of(error)}") from error

    def _lost(self, reason: str, error: Exception) -> NoReturn:
        if self.actor is self.executor.leader(self.role):  # else whoever looks after the actors saw it first
            self.executor.replace(self.role, reason)
        raise CallLost(f"{self.role}.{self.method}: {reason}") from error
