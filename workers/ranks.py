"""``Ranks``: the processes that host one role together.

They are run by one program over all data: every rank builds the role, calls the same methods with the same arguments
and reads the same rows. The first rank, the *leader*, decides what that is and tells the others; it alone claims rows
and commits. How the work of a call is split is the engines' business, by collectives inside.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

#: A rank that waits is not lost: executors watch processes, and collectives only have to outlast the longest stage.
PATIENCE = timedelta(days=1)
#: Time for all ranks of a role to find each other.
MEETING = timedelta(minutes=5)


@dataclass(frozen=True)
class Ranks:
    """This process among the *size* that host a role. ``Ranks()`` is a process on its own."""

    rank: int = 0
    size: int = 1
    #: Carries messages and CPU tensors between all of them; None on one's own.
    group: dist.ProcessGroup | None = None

    @property
    def leader(self) -> bool:
        return self.rank == 0

    @classmethod
    def join(cls, store: Store, rank: int, size: int) -> Ranks:
        """Meet the others at *store*. Tensors on GPUs then travel by NCCL, all else by Gloo."""
        if size == 1:
            return cls()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        return cls(rank, size, dist.new_group(backend="gloo", timeout=PATIENCE))

    def share(self, message: bytes = b"") -> bytes:
        """The leader's *message*, on every rank."""
        if self.group is None:
            return message
        length = torch.tensor([len(message)])
        dist.broadcast(length, src=0, group=self.group)
        content = _tensor(message) if self.leader else torch.empty(int(length), dtype=torch.uint8)
        if int(length):
            dist.broadcast(content, src=0, group=self.group)
        return bytes(content.numpy())

    def gather(self, message: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
        """Every rank's message in order of ranks, on every rank: of *group* (over CPU tensors), or of all."""
        group = group or self.group
        if group is None:
            return [message]
        count = dist.get_world_size(group)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
        dist.all_gather(lengths, torch.tensor([len(message)]), group=group)
        longest = max(map(int, lengths))
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(message)] = _tensor(message)
        everyone = [torch.empty_like(mine) for _ in range(count)]
        if longest:
            dist.all_gather(everyone, mine, group=group)
        return [bytes(content[: int(length)].numpy()) for content, length in zip(everyone, lengths, strict=True)]


#: A role in one process.
ALONE = Ranks()


def _tensor(message: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


def meeting_point(host: str) -> tuple[TCPStore, int]:
    """A store at which the leader of a role waits for the other ranks, on a free port of *host* only."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    # the store takes the descriptor over and closes it
    store = _tcp_store(host, port, is_master=True, master_listen_fd=listener.detach())
    return store, port


def meet(host: str, port: int) -> TCPStore:
    """The leader's store, from another rank."""
    return _tcp_store(host, port, is_master=False)


def _tcp_store(host: str, port: int, **options: Any) -> TCPStore:
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, timeout=MEETING, wait_for_workers=False, use_libuv=True, **options
    )


def use_interface(host: str) -> None:
    """Have collectives between ranks of one machine stay on its loopback interface."""
    if host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
