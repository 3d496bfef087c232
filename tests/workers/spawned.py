"""Several ranks in processes of their own, which a server forks with torch imported."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing as mp

from workers.ranks import Ranks, use_interface

#: What the server imports before it forks.
PRELOADED = ["tests.workers.spawned"]
multiprocessing.set_forkserver_preload(PRELOADED)


def on_ranks(size: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(ranks, *arguments)`` gave on each of *size* ranks, as JSON has it."""
    folder.mkdir(parents=True, exist_ok=True)
    mp.start_processes(_one, args=(size, folder, work, arguments), nprocs=size, start_method="forkserver")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def _one(rank: int, size: int, folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    use_interface("127.0.0.1")
    ranks = Ranks.join(dist.FileStore(str(folder / "meeting"), size), rank, size)
    (folder / f"{rank}.json").write_text(json.dumps(work(ranks, *arguments)))
    dist.destroy_process_group()
