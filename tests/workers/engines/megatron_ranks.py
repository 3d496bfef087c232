"""Megatron engines in processes of their own, which a server forks with the library imported."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing as mp

from tests.workers.engines.training import HOW
from workers.ranks import ALONE, Ranks, use_interface

multiprocessing.set_forkserver_preload(["tests.workers.engines.megatron_ranks", "workers.engines.megatron.trainer"])


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


def scorer(path: Path | str, ranks: Ranks = ALONE, **options: Any) -> Any:
    from workers.engines.megatron.scorer import MegatronScorer

    return MegatronScorer.load(path, **{"batch_size": 2, "vocabulary_size": 97, **options}, ranks=ranks)


def trainer(path: Path | str, ranks: Ranks = ALONE, **options: Any) -> Any:
    """With the optimizer that the contract's reference has."""
    from workers.engines.megatron.trainer import MegatronTrainer

    defaults: dict[str, Any] = {"batch_size": 2, "vocabulary_size": 97, "micro_batch_size": HOW.rows}
    optimizer = {"lr": HOW.lr, "betas": HOW.betas, "eps": HOW.eps, "weight_decay": HOW.weight_decay}
    return MegatronTrainer(
        path,
        optimizer=optimizer,
        schedule=HOW.schedule,
        clip_grad_norm=HOW.clip_grad_norm,
        ranks=ranks,
        **{**defaults, **options},
    )
