"""A whole job in milliseconds: the real controller and store, with roles that only pretend to sample and to train."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dataplane import DataPlane
from schemas.columns import TRAIN
from stages.base import Output
from workers.checkpoints import CheckpointWriter
from workers.executors.inline import InlineExecutor
from workers.loop import Worker
from workers.roles import Role
from workers.rundir import RunDir


class Pretend:
    """The stage ``generate``: three tokens for every prompt, by the newest weights; *broken* rows fail once."""

    task, reads = "generate", ("prompt",)
    writes = ("input_ids", "token_mask", "generation_logprobs", "weight_version", "weight_version_max")

    def __init__(self, plane: DataPlane, broken: Collection[str]) -> None:
        self.plane = plane
        self.broken = set(broken)

    def __call__(self, batch) -> Output:
        bad = self.broken & set(batch.sample_ids)
        self.broken -= bad
        good = [sample_id for sample_id in batch.sample_ids if sample_id not in bad]
        version, size = self.plane.published()[-1].version, len(good)
        columns = {
            "input_ids": [[4, 5, 6]] * size,
            "token_mask": [[False, True, True]] * size,
            "generation_logprobs": [[0.0, -1.0, -2.0]] * size,
            "weight_version": [version] * size,
            "weight_version_max": [version] * size,
        }
        return Output(good, columns, dict.fromkeys(bad, "engine_error: boom"))


class PretendGenerator(Role):
    name = "generator"

    def __init__(self, plane: DataPlane, broken: Collection[str]) -> None:
        self.plane = plane
        self.workers = [Worker(plane, TRAIN, Pretend(plane, broken), limit=3, name=self.name)]

    def turn(self) -> bool:
        return bool(self.plane.published()) and super().turn()


class PretendTrainer(Role):
    """Its weights are the steps that it was trained on, in order."""

    name = "trainer"

    def __init__(self, plane: DataPlane, run_dir: RunDir) -> None:
        self.plane, self.run_dir = plane, run_dir
        self.weights: list[int] = []
        self.writer = CheckpointWriter(run_dir.checkpoints)

    def train_step(self, step: int) -> dict[str, float]:
        self.weights.append(step)
        rows = float(len(self.plane.members(step)))
        return {"trained_tokens": 2 * rows, "trained_samples": rows}

    def publish(self, version: int) -> str:
        self.run_dir.weights.mkdir(exist_ok=True)
        path = self.run_dir.weights / f"version_{version:06d}.safetensors"
        path.write_text(json.dumps(self.weights))
        return str(path)

    def begin_checkpoint(self, step: int) -> None:
        state = json.dumps(self.weights)
        self.writer.begin(step, lambda directory: (directory / "weights.json").write_text(state))

    def whole_checkpoints(self, wait: bool = False) -> list[tuple[int, str]]:
        return self.writer.whole(wait=wait)

    def restore(self, path: str | None) -> None:
        self.weights = json.loads((Path(path) / "weights.json").read_text()) if path else []

    def examine(self, step: int) -> list[Any]:
        return []

    def measure_divergence(self) -> dict[str, float]:
        return {}


class PretendExecutor(InlineExecutor):
    """Hosts the two, over a store that asks *before_write* before every record of its journal."""

    def __init__(self, run_dir: RunDir, before_write: Callable[[], None], broken: Collection[str] = ()) -> None:
        super().__init__()
        self.run_dir, self.before_write, self.broken = run_dir, before_write, broken

    def start(self, plane: DataPlane, roles: Any) -> None:
        write = plane._host._write

        def watched(record: Any) -> None:
            self.before_write()
            write(record)

        plane._host._write = watched
        self.roles = {"generator": PretendGenerator(plane, self.broken), "trainer": PretendTrainer(plane, self.run_dir)}
