"""The trainer's weights at the start of a step, found or made again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas.errors import StoreError
from stages.protocols import Update
from stages.train import Train
from workers.checkpoints import is_complete
from workers.engines.hf.trainer import OPTIMIZER_FILE
from workers.replay.source import StoredRun
from workers.roles.trainer import TrainerRole
from workers.weights import read_weights


def bring_to(run: StoredRun, role: TrainerRole, version: int) -> str:
    """Give *role*'s engine the weights of *version*; where they came from, in words.

    In order: a checkpoint of that version, the student that the run started from, its published file. When all are
    gone, the nearest older checkpoint is trained forward in memory through the stored batches of the steps between.
    """
    whole = {c.step: path for c in run.plane.checkpoints() if is_complete(path := run.run_dir.own(c.path))}
    if version in whole:
        role.engine.reset(whole[version])
        return f"version {version}: checkpoint {whole[version].name}"
    if version == 0:
        return f"version 0: {role.config.policy.model}"
    published = {w.version: path for w in run.plane.published() if (path := run.run_dir.own(w.path)).is_file()}
    if version in published:
        role.engine.load_weights(read_weights(published[version])[0])
        return f"version {version}: published weights {published[version].name}"
    return _trained_forward(run, role, version, whole)


def _trained_forward(run: StoredRun, role: TrainerRole, version: int, whole: dict[int, Path]) -> str:
    start = max((step for step in whole if step < version), default=0)
    began = f"checkpoint {whole[start].name}" if start else f"the initial student {role.config.policy.model}"
    sealed = {step.step for step in run.plane.steps()}
    if missing := [step for step in range(start + 1, version + 1) if step not in sealed]:
        raise StoreError(
            f"the weights of version {version} are gone, and step {missing[0]}, which could make them again from "
            f"{began}, is not stored here"
        )
    if start and not (whole[start] / OPTIMIZER_FILE).is_file():
        raise StoreError(
            f"the weights of version {version} are gone, and {began} cannot be trained on here: another engine wrote "
            "its optimizer state"
        )
    if start:
        role.restore(str(whole[start]))
    [train] = [worker.stage for worker in role.step_workers if worker.stage.task == Train.task]
    for step in range(start + 1, version + 1):
        train(run.batch(run.rows_of(step), train.reads))
    through = f"batch of step {version}" if start + 1 == version else f"batches of steps {start + 1} to {version}"
    return f"version {version}: {began}, trained forward through the stored {through}"


@dataclass
class Held:
    """A training engine whose weights stay: everything of *engine*, but that an update is only measured."""

    engine: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def update(self) -> Update:
        """The norm of the gradients, which are then cleared."""
        norms = self.engine.take_gradient()[::2]
        return Update(grad_norm=float(torch.linalg.vector_norm(norms)), learning_rate=0.0, stepped=False)
