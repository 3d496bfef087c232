"""``ray``: every role an actor; they meet only in the store, which the controller hosts.

Its own local Ray, on loopback, unless the recipe or RAY_ADDRESS names a cluster; never a stray one. A role whose
process dies or hangs is started again and its rows go back; the trainer's state is lost with it, so the controller
then returns to the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dataplane import DataPlane
from dataplane.scratch import own_folder
from schemas.errors import DeadlinePassed, InputError, JobFailed, OpdError
from workers.executors import Meanwhile, RoleLost, RoleSpec, Status, describe
from workers.executors.host import HostSettings, RoleHost
from workers.teachers.cluster import TeacherCluster, reserve

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # read by processes that start: a thread's arena keeps what it freed
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

#: Seconds between two looks at what is waited for, and between two at what every role does.
POLL_S, LOOK_S = 0.005, 0.5
#: Seconds in which the death of a rank shows after the others have felt it.
PEER_S = 3.0
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
        self.address = address or os.environ.get("RAY_ADDRESS")
        if not self.address:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # how Ray is told to bind to loopback; read at import
        self.settings = replace(settings, host=None) if self.address else settings
        self.restarts = restarts
        self.clock = clock
        self._plane: DataPlane
        self._hosted: dict[str, Hosted] = {}
        self._clusters: dict[str, TeacherCluster] = {}
        self._looked = 0.0
        self._folder: Path | None = None
        self._started = False

    # -- life -----------------------------------------------------------------------------------------

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        import ray

        self._plane = plane
        if self.address:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            refuse_missing_interpreters(roles)
            self._folder = own_folder("ray")
            asked = sum(spec.cpus * spec.ranks for spec in roles.values())
            _start_local(max(os.cpu_count() or 1, asked), self._folder)
        self._started = True
        _let_raylets_print(False)
        refuse_impossible(ray.cluster_resources(), roles)
        self._clusters = reserve({name: spec.bundles for name, spec in roles.items() if spec.bundles is not None})
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
        cluster = self._clusters.get(name)
        hosted.actors = [
            ray.remote(RoleHost)
            .options(**{**options, **(cluster.options(rank) if cluster is not None else {})})
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
            raise JobFailed(f"{name}: cannot start: {_cause(error)}") from error
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
        if self._started:  # else it may be only half imported
            import ray

            for name in self._hosted:
                self._end(name)
            self._hosted.clear()
            for cluster in self._clusters.values():
                cluster.free()
            with suppress(ray.exceptions.RayError):
                ray.shutdown()
            _let_raylets_print(True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, name: str) -> None:
        import ray

        for actor in self._hosted[name].actors:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)

    # -- work -----------------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        return list(self._hosted)

    def submit(self, role: str, method: str, *arguments: Any) -> RayCall:
        return RayCall(self, role, method, self._hosted[role].actors[0].answer.remote(method, *arguments))

    def loops(self, role: str) -> Sequence[Any]:
        """What the ranks of *role* run without end."""
        return self._hosted[role].loops

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Poll *until*, look after the actors, and give up when nothing moves.

        A stage that runs for *deadline_s* is ended first, so the wait itself lasts twice as long.
        """
        moved = self.clock.monotonic()
        position = self._plane.position()
        while not until():
            if meanwhile():
                moved = self.clock.monotonic()
            self._look_after(deadline_s)
            now, seen = self.clock.monotonic(), self._plane.position()
            if seen != position:
                position, moved = seen, now
            if now - moved > 2 * deadline_s:
                raise DeadlinePassed(f"{what}: nothing moved for {now - moved:.1f} s; {describe(self.statuses)}")
            self.clock.sleep(POLL_S)

    @property
    def statuses(self) -> dict[str, Status]:
        """What every role said last of what it does."""
        return {name: hosted.status for name, hosted in list(self._hosted.items()) if hosted.status is not None}

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
                self.replace(name, _why_ended(hosted.loops))
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
    """A method running on an actor."""

    def __init__(self, executor: RayExecutor, role: str, method: str, reference: Any) -> None:
        self.executor = executor
        self.role = role
        self.method = method
        self.reference = reference
        self.future = reference.future()  # asked every few milliseconds; ray.wait would cost a millisecond each time

    def done(self) -> bool:
        return bool(self.future.done())

    def result(self) -> Any:
        """Its value. Raises what it raised, and RoleLost when its process died."""
        import ray

        try:
            return ray.get(self.reference)
        except ray.exceptions.RayActorError as error:
            self.executor.replace(self.role, f"its process died: {_cause(error)}")
            raise RoleLost(self.role, _cause(error)) from error
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, OpdError):
                raise cause from error
            if lost := _lost_rank(self.executor.loops(self.role)):
                self.executor.replace(self.role, lost)
                raise RoleLost(self.role, lost) from error
            raise JobFailed(f"{self.role}.{self.method}: {_cause(error)}") from error


def _start_local(cpus: float, folder: Path) -> None:
    """A Ray of our own, listening on loopback only, and quiet."""
    import ray

    ray.init(
        address="local",
        num_cpus=int(cpus),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 * 2**20,
        _temp_dir=str(folder),
    )


def refuse_missing_interpreters(roles: Mapping[str, RoleSpec]) -> None:
    """Raise InputError for an interpreter that is not on this machine: Ray would wait for it without end."""
    for name, python in ((name, spec.python) for name, spec in roles.items()):
        if python is not None and not os.access(python, os.X_OK):
            hint = "; `make test-engines` makes it" if ".venv-engines" in Path(python).parts else ""
            raise InputError(f"{name}: no interpreter at {python}{hint}")


def _let_raylets_print(allowed: bool) -> None:
    """What a raylet says of an actor that was killed goes to stdout, among the data, whatever ``log_to_driver`` is.

    Events tell of every lost worker. The switch is the one that Ray's own debugger uses.
    """
    import ray

    ray._private.worker._worker_logs_enabled = allowed


def refuse_impossible(available: Mapping[str, float], roles: Mapping[str, RoleSpec]) -> None:
    """Raise InputError, at once, for what the cluster can never give."""
    for resource, asked in (
        ("CPU", {name: spec.cpus * spec.ranks for name, spec in roles.items()}),
        ("GPU", {name: spec.gpus * spec.ranks for name, spec in roles.items()}),
    ):
        needed, there = sum(asked.values()), available.get(resource, 0)
        if needed > there:
            who = ", ".join(f"{name} {count:g}" for name, count in asked.items() if count)
            raise InputError(
                f"cluster: {needed:g} {resource}s are asked for ({who}), it has {there:g}; "
                "ask for fewer or join a larger one"
            )


def _why_ended(loops: Sequence[Any]) -> str:
    """Why a role's loops ended. What one raised itself is the job's failure, unless a rank's death made it raise."""
    import ray

    if lost := _lost_rank(loops):
        return lost
    ended, _ = ray.wait(list(loops), timeout=0)
    try:
        ray.get(ended)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, OpdError) else JobFailed(_cause(error))) from error
    return "its loop ended"


def _lost_rank(loops: Sequence[Any]) -> str:
    """How a process among the ranks of a role died; empty if none did.

    The others raise when they talk to it, maybe before its death is known.
    """
    import ray

    ended, _ = ray.wait(list(loops), num_returns=len(loops), timeout=PEER_S if len(loops) > 1 else 0)
    for loop in ended:
        try:
            ray.get(loop)
        except ray.exceptions.RayActorError as error:
            return f"its process died: {_cause(error)}"
        except ray.exceptions.RayTaskError:
            continue
    return ""


def _cause(error: Exception) -> str:
    """The last line of Ray's long message, or the first where it is the telling one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
