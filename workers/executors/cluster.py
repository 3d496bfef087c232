"""``Cluster``: the Ray that a job's roles run on.

A local one of our own, on loopback, unless the recipe or RAY_ADDRESS names a cluster to join; never a stray one.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dataplane.backends.scratch import own_folder
from schemas.errors import InputError
from workers.executors import RoleSpec

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the errors of loops are ours to tell
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # read by processes that start: a thread's arena keeps what it freed
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


class Cluster:
    """*address* is that of the cluster to join; RAY_ADDRESS stands in for it, and without either Ray is started."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS")
        if not self.address:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # how Ray is told to bind to loopback; read at import
        self._folder: Path | None = None
        self._started = False

    def start(self, roles: Mapping[str, RoleSpec]) -> None:
        """Connect this process. Raises InputError for what *roles* ask for and can never get."""
        import ray

        handler = signal.getsignal(signal.SIGTERM)
        if self.address:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            refuse_missing_interpreters(roles)
            self._folder = own_folder("ray")
            asked = sum(spec.cpus * spec.ranks for spec in roles.values())
            _start_local(max(os.cpu_count() or 1, asked), self._folder)
        self._started = True
        _handle(signal.SIGTERM, handler)
        _let_raylets_print(False)
        refuse_impossible(ray.cluster_resources(), roles)

    def stop(self) -> None:
        """Leave it, and end it if it is ours."""
        if self._started:  # else Ray may be only half imported
            import ray

            with suppress(ray.exceptions.RayError):
                ray.shutdown()
            _let_raylets_print(True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


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


def _handle(number: signal.Signals, handler: Any) -> None:
    """Put back a handler in whose place Ray has put two of its own: one prints a C++ stack, one leaves at once."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def _let_raylets_print(allowed: bool) -> None:
    """What a raylet says of an actor that was killed goes to stdout, among the data, whatever ``log_to_driver`` is.

    Events tell of every lost worker.
    """
    import ray

    ray._private.worker._worker_logs_enabled = allowed  # private: Ray's own debugger uses it, nothing public does this


def refuse_missing_interpreters(roles: Mapping[str, RoleSpec]) -> None:
    """Raise InputError for an interpreter that is not on this machine: Ray would wait for it without end."""
    for name, python in ((name, spec.python) for name, spec in roles.items()):
        if python is not None and not os.access(python, os.X_OK):
            hint = "; `make test-engines` makes it" if ".venv-engines" in Path(python).parts else ""
            raise InputError(f"{name}: no interpreter at {python}{hint}")


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
