"""The trainer: student log-probs, advantages and the update of one sealed step after another."""

from __future__ import annotations

import math
import time
from pathlib import Path

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from schemas.errors import JobFailed
from stages.baseline import Baseline
from stages.divergence import Divergence
from stages.student import Student
from stages.train import Train
from workers.checkpoints import save_checkpoint
from workers.engines.hf_trainer import build_trainer
from workers.loop import Worker
from workers.partitions import SAMPLED
from workers.roles import Role
from workers.rundir import RunDir
from workers.tokenizer import HFTokenizer
from workers.weights import publish_weights


class TrainerRole(Role):
    """Holds the training engine; three workers run in order on each step, a fourth measures the exact KL."""

    name = "trainer"

    def __init__(self, plane: DataPlane, config: RunConfig, run_dir: RunDir) -> None:
        self.plane = plane
        self.run_dir = run_dir
        self.engine = build_trainer(config.policy.model, config, max_steps=config.grpo.max_num_steps)
        self.tokenizer = HFTokenizer(config.policy.tokenizer or config.policy.model)
        temperature = config.generator.sampling.temperature
        self.step_workers = [
            Worker(plane, TRAIN, stage, rows_may_fail=False, name=self.name)
            for stage in (
                Student(self.engine, temperature),
                Baseline(config),
                Train(self.engine, config.loss_fn, temperature),
            )
        ]
        self.divergence = Worker(plane, SAMPLED, Divergence(self.engine), rows_may_fail=False, name=self.name)
        self.called = [*self.step_workers, self.divergence]

    def train_step(self, step: int) -> dict[str, float]:
        """Run student, baseline and train on the sealed step, each over the whole of it; their metrics."""
        metrics: dict[str, float] = {}
        for worker in self.step_workers:
            worker.weight_version = step - 1
            started = time.perf_counter()
            output = worker.run_once(step)
            if output is None:
                raise JobFailed(
                    f"step {step}: no row is ready for {worker.stage.task!r}; its sealed rows lack a column"
                )
            metrics |= output.metrics
            metrics[f"{worker.stage.task}_s"] = time.perf_counter() - started
        metrics["gap_mean"] = metrics.get("teacher_student_logprob_gap_mean", math.nan)
        return metrics

    def measure_divergence(self) -> dict[str, float]:
        """The exact KL over the sampled held-out rows that their teachers have scored."""
        parts = []
        while (output := self.divergence.run_once()) is not None:
            parts.append(output.metrics)
        tokens = sum(part["exact_kl_tokens"] for part in parts)
        return {"exact_kl": sum(p["exact_kl"] * p["exact_kl_tokens"] for p in parts) / tokens} if tokens else {}

    def publish(self, version: int) -> str:
        """Write the current weights as *version*; their path."""
        return str(publish_weights(self.run_dir.weights, version, self.engine.weights()))

    def checkpoint(self, step: int) -> str:
        """Write a resumable checkpoint; its path."""

        def write(directory: Path) -> None:
            self.engine.save(directory)
            self.tokenizer.save(directory)

        return str(save_checkpoint(self.run_dir.checkpoints, step, write))

    def restore(self, path: str) -> None:
        """Continue from a checkpoint."""
        self.engine.restore(Path(path))
