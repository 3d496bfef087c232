"""Runs on Ray with roles that misbehave in their own processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dataplane import DataPlane
from schemas.config import RunConfig
from workers.executors import BuildRole, RoleSpec
from workers.executors.host import HostSettings
from workers.executors.ray import RayExecutor
from workers.job import read_inputs, run_job
from workers.ranks import Ranks
from workers.roles import Role
from workers.rundir import RunDir

Break = Callable[[Role], None]


class Sabotaged(RayExecutor):
    """Tampers with roles in the processes that host them."""

    def __init__(self, settings: HostSettings, breaks: Mapping[str, Break], restarts: int, clock: Any) -> None:
        super().__init__(settings, restarts=restarts, clock=clock)
        self.breaks = breaks

    def start(self, plane: DataPlane, roles: Mapping[str, RoleSpec]) -> None:
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        for break_role in self.breaks.values():
            ray.cloudpickle.register_pickle_by_value(sys.modules[break_role.__module__])
        broken = {
            name: replace(spec, build=partial(build_broken, spec.build, self.breaks[name]))
            if name in self.breaks
            else spec
            for name, spec in roles.items()
        }
        super().start(plane, broken)


class Impatient:
    """A clock on which an hour passes in a second while a process that left its id in *folder* lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.real, self.shown = time.monotonic(), 0.0

    def monotonic(self) -> float:
        real = time.monotonic()
        hanging = any(Path("/proc", path.name).exists() for path in self.folder.glob("[0-9]*"))
        self.shown += (real - self.real) * (3600.0 if hanging else 1.0)
        self.real = real
        return self.shown

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def build_broken(build: BuildRole, break_role: Break, plane: DataPlane, *, ranks: Ranks) -> Role:
    role = build(plane, ranks=ranks)
    break_role(role)
    return role


def run_on_ray(
    config: RunConfig,
    directory: Path,
    breaks: Mapping[str, Break] | None = None,
    *,
    resume: bool = False,
    restarts: int = 4,
    clock: Any = time,
) -> RunDir:
    """Run to the end, or to the error."""
    run_dir = RunDir(directory)
    settings = HostSettings(directory.absolute() / "logs", Path.cwd(), threads=1, lease_s=5.0)
    executor: Any = Sabotaged(settings, breaks or {}, restarts, clock)
    run_job(config, read_inputs(config), run_dir, executor, resume=resume)
    return run_dir
