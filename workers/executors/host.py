"""``RoleHost``: one role in a process of its own. What an executor starts there, and asks of it."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dataplane import connect
from workers.executors import BuildRole
from workers.executors.status import Status, status_of
from workers.ranks import ALONE, Ranks, meet, meeting_point, use_interface
from workers.roles import Role

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

#: Seconds to let more rows arrive before looking again: one look instead of many.
SETTLE_S = 0.02
#: Rows that are ready sooner than this were so when they were asked for: no more are about to arrive.
AT_ONCE_S = 0.005
#: Seconds that a role with nothing to do waits for rows before it looks again anyway.
IDLE_S = 0.5


class RoleHost:
    """Hosts one rank of a role over a connection to the plane: the leader takes turns on one thread and answers calls
    on others, and has every other rank run the same."""

    def __init__(self, name: str, address: str, settings: HostSettings, rank: int = 0, size: int = 1) -> None:
        settings.apply(name if rank == 0 else f"{name}.{rank}")
        self.settings = settings
        self.rank, self.size = rank, size
        self.plane = connect(address)
        self.watched = connect(address)  # a connection of its own: waiting on it holds up no other call
        self.role: Role
        self.ranks = ALONE
        self._meeting: TCPStore | None = None
        self._stopping = threading.Event()
        self._one_by_one = threading.Lock()
        self._called: tuple[str, float] | None = None

    def open_meeting(self) -> tuple[str, int]:
        """Of the leader: where the other ranks find it."""
        host = self.settings.host or own_address()
        self._meeting, port = meeting_point(host)
        return host, port

    def begin(self, build: BuildRole, meeting: tuple[str, int] | None = None) -> int:
        """Meet the other ranks and build the role; the process id."""
        if meeting is not None:
            use_interface(meeting[0])
            self.ranks = Ranks.join(self._meeting or meet(*meeting), self.rank, self.size)
        self.role = build(self.plane, ranks=self.ranks)
        self.role.expect_to_die(self.settings.lease_s)
        tell(f"{self.role.name} is ready (process {os.getpid()})")
        gc.freeze()  # libraries and models stay: the collector need not walk them again and again
        return os.getpid()

    def loop(self) -> None:
        """Take turns until told to stop; an error that is no row's ends the loop and is the caller's."""
        with told():
            self._loop()

    def _loop(self) -> None:
        if not self.role.workers:
            self._stopping.wait()  # it only answers calls
        tasks = [(worker.partition, worker.stage.task) for worker in self.role.workers]
        ready: list[int] | None = None  # all: the end of a lease shows only to who claims
        while not self._stopping.is_set():
            done = self.call("turn", ready)
            asked = time.monotonic()
            ready = self.watched.wait_ready(tasks, IDLE_S) or None
            if not done or time.monotonic() - asked > AT_ONCE_S:
                self._stopping.wait(SETTLE_S)

    def answer(self, method: str, *arguments: Any) -> Any:
        """What the controller calls: ``call``, and ``status`` says so meanwhile."""
        self._called = method, time.monotonic()
        try:
            with told():
                return self.call(method, *arguments)
        finally:
            self._called = None

    def call(self, method: str, *arguments: Any) -> Any:
        """Run a method of the role, on all its ranks unless it is the leader's alone."""
        if self.ranks.size == 1 or method in self.role.leaders_own:
            return getattr(self.role, method)(*arguments)
        with self._one_by_one:
            self.ranks.share(msgspec.msgpack.encode((method, arguments)))
            return getattr(self.role, method)(*arguments)

    def follow(self) -> None:
        """Run what the leader runs, for ever."""
        while True:
            method, arguments = msgspec.msgpack.decode(self.ranks.share())
            getattr(self.role, method)(*arguments)

    def status(self) -> Status:
        """What the role does now; answered while it does it."""
        return status_of(self.role, self._called)

    def stop(self) -> None:
        self._stopping.set()


@dataclass(frozen=True)
class HostSettings:
    """How a host process is set up before its role is built. *host* is where ranks meet, None this node's address."""

    log_directory: Path
    working_directory: Path
    threads: int
    lease_s: float
    host: str | None = "127.0.0.1"

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


def tell(line: str) -> None:
    """A line in the log."""
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}", flush=True)


@contextmanager
def told() -> Iterator[None]:
    """What is raised here is in the log before it is the caller's."""
    try:
        yield
    except Exception:
        tell(traceback.format_exc())
        raise


def own_address() -> str:
    """The address of this node that other nodes reach it by."""
    import ray

    address: str = ray.util.get_node_ip_address()
    return address
