"""Megatron engines, alone or as one of several ranks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from tests.workers.engines.training import HOW
from tests.workers.spawned import PRELOADED
from workers.ranks import ALONE, Ranks

multiprocessing.set_forkserver_preload([*PRELOADED, "workers.engines.megatron.trainer"])  # its import takes seconds


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
