"""``RoleHost``: one role in a process of its own. What an executor starts there, and asks of it."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane import connect
from workers.executors import BuildRole

#: Seconds to let more changes of the store arrive before looking again: one look instead of many.
SETTLE_S = 0.02
#: Seconds that a role with nothing to do waits for a change of the store before it looks again anyway.
IDLE_S = 0.5


@dataclass(frozen=True)
class Status:
    """The rows that a role has in hand, none when it waits for some; and for how long."""

    task: str = ""
    partition: str = ""
    sample_ids: Sequence[str] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.sample_ids:
            return "waits for rows"
        return f"runs {self.task} on {len(self.sample_ids)} samples ({self.sample_ids[0]} …) for {self.seconds:.1f} s"


class RoleHost:
    """Builds a role over a connection to the plane, lets it take turns on one thread and answers calls on others."""

    def __init__(self, name: str, build: BuildRole, address: str, settings: HostSettings) -> None:
        settings.apply(name)
        self.plane = connect(address)
        self.watched = connect(address)  # a connection of its own: waiting on it holds up no other call
        self.role = build(self.plane)
        self.role.expect_to_die(settings.lease_s)
        self._stopping = threading.Event()

    def ready(self) -> int:
        """The process id, once the role is built."""
        return os.getpid()

    def loop(self) -> None:
        """Take turns until told to stop; an error that is no row's ends the loop and is the caller's."""
        while not self._stopping.is_set():
            position = self.watched.position()
            if not self.role.turn():
                self.watched.wait(position, IDLE_S)
                self._stopping.wait(SETTLE_S)

    def call(self, method: str, *arguments: Any) -> Any:
        """Run a method of the role."""
        return getattr(self.role, method)(*arguments)

    def status(self) -> Status:
        """What the role does now; answered while it does it."""
        busy = self.role.busy()
        return Status(busy.task, busy.partition, busy.sample_ids, time.monotonic() - busy.since) if busy else Status()

    def stop(self) -> None:
        self._stopping.set()


@dataclass(frozen=True)
class HostSettings:
    """How a host process is set up before its role is built."""

    log_directory: Path
    working_directory: Path
    threads: int
    lease_s: float

    def apply(self, name: str) -> None:
        """Output goes to a log of the role's own; paths resolve as they do for the controller."""
        os.chdir(self.working_directory)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        log = os.open(
            self.log_directory / f"{name.replace(':', '-')}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.enable()
        import torch

        torch.set_num_threads(self.threads)
