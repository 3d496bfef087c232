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
from pathlib import Path
from typing import Any

from dataplane import DataPlane
from dataplane.scratch import own_folder
from schemas.errors import DeadlinePassed, InputError, JobFailed, OpdError
from workers.executors import Meanwhile, RoleLost, RoleSpec
from workers.executors.host import HostSettings, RoleHost, Status

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

#: Seconds between two looks at what is waited for, and between two at what every role does.
POLL_S, LOOK_S = 0.005, 0.5
#: Seconds that a role may take to start.
START_S = 300.0


class RayExecutor:
    """Actors by role name. What a role's own loop or a call raised ends the job; a lost process does not."""

    def __init__(self, settings: HostSettings, *, address: str | None = None, restarts: int = 3) -> None:
        self.settings = settings
        self.address = address or os.environ.get("RAY_ADDRESS")
        if not self.address:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # how Ray is told to bind to loopback; read at import
        self.restarts = restarts
        self.statuses: dict[str, Status] = {}
        self._plane: DataPlane
        self._specs: dict[str, RoleSpec] = {}
        self._actors: dict[str, Any] = {}
        self._loops: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._heard: dict[str, float] = {}
        self._lost: dict[str, int] = {}
        self._looked = 0.0
        self._folder: Path | None = None
        self._started = False

    # -- life -----------------------------------------------------------------------------------------

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        import ray

        self._plane, self._specs = plane, dict(roles)
        if self.address:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            self._folder = own_folder("ray")
            _start_local(max(os.cpu_count() or 1, sum(spec.cpus for spec in roles.values())), self._folder)
        self._started = True
        _refuse_impossible(ray.cluster_resources(), roles)
        for name in roles:
            self._spawn(name)
        for name in roles:
            self._await_ready(name)

    def _spawn(self, name: str) -> None:
        import ray

        spec = self._specs[name]
        actor = ray.remote(RoleHost).options(num_cpus=spec.cpus, num_gpus=spec.gpus, max_concurrency=4, max_restarts=0)
        self._actors[name] = actor.remote(name, spec.build, self._plane.address, self.settings)

    def _await_ready(self, name: str) -> None:
        import ray

        try:
            pid = ray.get(self._actors[name].ready.remote(), timeout=START_S)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlinePassed(
                f"{name}: not started after {START_S:.0f} s; its log is in {self.settings.log_directory}"
            ) from error
        except ray.exceptions.RayError as error:
            raise JobFailed(f"{name}: cannot start: {_cause(error)}") from error
        self._loops[name] = self._actors[name].loop.remote()
        self._heard = dict.fromkeys(self._actors, time.monotonic())  # nobody was asked while this one started
        self._asked.pop(name, None)
        self._plane.event("worker_started", worker=name, pid=pid)

    def stop(self) -> None:
        """End every actor, and Ray if it is ours. Whatever its teardown says changes no result."""
        if self._started:  # else it may be only half imported
            import ray

            for actor in self._actors.values():
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
            self._actors.clear()
            with suppress(ray.exceptions.RayError):
                ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- work -----------------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        return list(self._actors)

    def submit(self, role: str, method: str, *arguments: Any) -> RayCall:
        return RayCall(self, role, method, self._actors[role].call.remote(method, *arguments))

    def wait(self, until: Callable[[], bool], what: str, *, deadline_s: float, meanwhile: Meanwhile) -> None:
        """Poll *until*, look after the actors, and give up when nothing moves.

        A stage that runs for *deadline_s* is ended first, so the wait itself lasts twice as long.
        """
        moved = time.monotonic()
        position = self._plane.position()
        while not until():
            if meanwhile():
                moved = time.monotonic()
            self._look_after(deadline_s)
            now, seen = time.monotonic(), self._plane.position()
            if seen != position:
                position, moved = seen, now
            if now - moved > 2 * deadline_s:
                raise DeadlinePassed(f"{what}: nothing moved for {now - moved:.1f} s; {self.describe()}")
            time.sleep(POLL_S)

    def describe(self) -> str:
        """What every role does, in a line."""
        return "; ".join(f"{name} {status}" for name, status in self.statuses.items())

    # -- health ---------------------------------------------------------------------------------------

    def _look_after(self, deadline_s: float) -> None:
        """Restart what died or hangs. Raises JobFailed, and RoleLost for a role whose state is gone."""
        import ray

        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        for name, loop in list(self._loops.items()):
            if ray.wait([loop], timeout=0)[0]:
                self.replace(name, _reason(loop))
        for name in list(self._actors):
            self._ask(name)
            status, silent_s = self.statuses.get(name), time.monotonic() - self._heard[name]
            if status is not None and status.sample_ids and status.seconds > deadline_s:
                reason = f"timed_out: {name} {status}"
                self._plane.fail(status.partition, dict.fromkeys(status.sample_ids, reason))
                self.replace(name, reason)
            elif silent_s > deadline_s:
                self.replace(name, f"timed_out: no sign of life from {name} for {silent_s:.1f} s")

    def _ask(self, name: str) -> None:
        """Collect the answer to the last question about what the role does, and ask again."""
        import ray

        asked = self._asked.get(name)
        if asked is not None:
            if not ray.wait([asked], timeout=0)[0]:
                return
            with suppress(ray.exceptions.RayError):
                self.statuses[name] = ray.get(asked)
                self._heard[name] = time.monotonic()
        self._asked[name] = self._actors[name].status.remote()

    def replace(self, name: str, reason: str) -> None:
        """Start a lost role again. Raises RoleLost if it was stateful, JobFailed when it was lost too often."""
        import ray

        self._lost[name] = self._lost.get(name, 0) + 1
        self._plane.event("worker_lost", worker=name, reason=reason, times=self._lost[name])
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actors[name])
        if self._lost[name] > self.restarts:
            raise JobFailed(
                f"{name}: lost {self._lost[name]} times, last: {reason}; its log is in {self.settings.log_directory}"
            )
        self.statuses.pop(name, None)
        self._spawn(name)
        self._await_ready(name)
        if self._specs[name].stateful:
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
            raise (
                cause if isinstance(cause, OpdError) else JobFailed(f"{self.role}.{self.method}: {_cause(error)}")
            ) from error


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


def _refuse_impossible(available: Mapping[str, float], roles: Mapping[str, RoleSpec]) -> None:
    """Raise InputError, at once, for what the cluster can never give."""
    for resource, asked in (
        ("CPU", {name: spec.cpus for name, spec in roles.items()}),
        ("GPU", {name: spec.gpus for name, spec in roles.items()}),
    ):
        needed, there = sum(asked.values()), available.get(resource, 0)
        if needed > there:
            who = ", ".join(f"{name} {count:g}" for name, count in asked.items() if count)
            raise InputError(
                f"cluster: {needed:g} {resource}s are asked for ({who}), it has {there:g}; "
                "ask for fewer or join a larger one"
            )


def _reason(loop: Any) -> str:
    """Why a role's loop ended. What it raised itself is the job's failure."""
    import ray

    try:
        ray.get(loop)
    except ray.exceptions.RayActorError as error:
        return f"its process died: {_cause(error)}"
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, OpdError) else JobFailed(_cause(error))) from error
    return "its loop ended"


def _cause(error: Exception) -> str:
    """The last line of Ray's long message, or the first where it is the telling one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
