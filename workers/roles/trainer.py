"""The trainer: student log-probs, advantages and the update of one sealed step after another."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from dataplane import DataPlane
from schemas.columns import TEACHER_LOGITS, TRAIN
from schemas.config import RunConfig, get_opd_full_config
from schemas.errors import JobFailed
from stages.base import Stage
from stages.baseline import Baseline
from stages.divergence import Divergence
from stages.losses.teacher_heads import TeacherHeads
from stages.objectives import objective_of
from stages.protocols import Scorer
from stages.reference import Reference
from stages.student import Student
from stages.topk_columns import TopKStudent
from stages.train import Train
from workers.checkpoints import CheckpointWriter
from workers.doctor.diagnose import ROWS
from workers.doctor.invariants import Check, check_gradients, check_scores
from workers.doctor.probe import scores
from workers.engines import build_scorer, build_trainer
from workers.engines.hf.head import load_head
from workers.loop import Worker
from workers.partitions import RETRAINED, SAMPLED
from workers.ranks import ALONE, Ranks
from workers.roles import Role
from workers.rundir import RunDir
from workers.tokenizer import HFTokenizer
from workers.weights import publish_weights


class TrainerRole(Role):
    """Holds the training engine; some workers run in order on each step, another measures the exact KL.

    *checkpoints* is what a ``teacher_index`` counts.
    """

    name = "trainer"
    leaders_own = Role.leaders_own | {"whole_checkpoints"}

    def __init__(
        self,
        plane: DataPlane,
        config: RunConfig,
        run_dir: RunDir,
        checkpoints: Sequence[str] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.plane = plane
        self.ranks = ranks
        self.config = config
        self.run_dir = run_dir
        self.tokenizer = HFTokenizer(config.policy.tokenizer or config.policy.model)
        self.vocabulary = len(self.tokenizer.vocabulary)
        self.engine = build_trainer(config, self.vocabulary, ranks)
        self.objective = objective_of(config, self.vocabulary, self._teacher_heads(checkpoints), self.engine.shard)
        worker = partial(Worker, plane, rows_may_fail=False, name=self.name, ranks=ranks)
        self.step_workers = [worker(partition=TRAIN, stage=stage) for stage in self._step_stages()]
        self.divergence = worker(partition=SAMPLED, stage=Divergence(self.engine))
        self.called = [*self.step_workers, self.divergence]
        self.checkpoints = CheckpointWriter(run_dir.checkpoints, ranks, durable=config.store.durability == "power")

    def _step_stages(self) -> list[Stage]:
        """What happens to a sealed step, in order."""
        opd, temperature = self.config.on_policy_distillation, self.config.generator.sampling.temperature
        stages: list[Stage] = [Student(self.engine, temperature)]
        if self.config.loss_fn.reference_policy_kl_penalty:
            stages.append(Reference(self._initial_student(), temperature))
        stages.append(Baseline(self.config))
        if opd.enabled and opd.log_topk_stats:
            stages.append(TopKStudent(self.engine, opd.topk_stats_k, opd.topk_stats_max_tokens, temperature))
        return [*stages, Train(self.engine, self.objective)]

    def _initial_student(self) -> Scorer:
        policy, trainer = self.config.policy, self.config.trainer
        return build_scorer(
            policy.model,
            trainer.engine,
            policy.dtype,
            batch_size=policy.logprob_batch_size,
            vocabulary_size=self.vocabulary,
            ranks=self.ranks,
            parallel=trainer.model_parallel_sizes,
        )

    def _teacher_heads(self, checkpoints: Sequence[str]) -> TeacherHeads | None:
        full = get_opd_full_config(self.config)
        if full is None or full.teacher_payload == "logits":
            return None

        def load(path: str) -> torch.Tensor:
            return self.engine.shard.cut(load_head(path))

        return TeacherHeads(checkpoints, load, full.teacher_lm_head_lifecycle, self.engine.device)

    def examine(self, step: int) -> list[Check]:
        """The invariants on some rows of a sealed step that these very weights sampled; nothing changes."""
        columns = ["input_ids", "token_mask", "generation_logprobs", "weight_version"]
        members = self.plane.get(TRAIN, self.plane.members(step), columns)
        fresh = [row for row, version in enumerate(members.values("weight_version")) if version == step - 1]
        if not fresh:
            return []
        rows = members.take(fresh[:ROWS])
        return [
            *check_scores(self.engine, self.config, rows),
            *check_gradients(self.engine, self.config, rows, self.vocabulary),
        ]

    def train_step(self, step: int) -> dict[str, float]:
        """Take the sealed step through every stage, each over the whole of it; their metrics."""
        metrics: dict[str, float] = {}
        for worker in self.step_workers:
            if (
                worker.stage.task == TopKStudent.task
                and step % self.config.on_policy_distillation.topk_stats_log_period
            ):
                continue
            worker.weight_version = step - 1
            started = time.perf_counter()
            output = worker.run_once(step)
            if output is None and worker.stage.task not in RETRAINED:
                continue  # done in an earlier life of the run, with weights that do not change
            if output is None:
                raise JobFailed(
                    f"step {step}: no row is ready for {worker.stage.task!r}; its sealed rows lack a column"
                )
            metrics |= output.metrics
            metrics[f"{worker.stage.task}_s"] = time.perf_counter() - started
        metrics["gap_mean"] = metrics.get("teacher_student_logprob_gap_mean", math.nan)
        return metrics

    def measure_divergence(self) -> dict[str, float]:
        """The exact KL over the sampled held-out rows that their teachers have scored, whose logits then go."""
        parts = []
        while (output := self.divergence.run_once()) is not None:
            parts.append(output.metrics)
            if self.ranks.leader:
                self.plane.clear(SAMPLED, output.sample_ids, [TEACHER_LOGITS])
        tokens = sum(part["exact_kl_tokens"] for part in parts)
        return {"exact_kl": sum(p["exact_kl"] * p["exact_kl_tokens"] for p in parts) / tokens} if tokens else {}

    def publish(self, version: int) -> str:
        """Write the current weights as *version*; their path."""
        tensors = self.engine.weights()
        probe = scores(self.engine, self.config.policy.max_total_sequence_length)
        return str(publish_weights(self.run_dir.weights, version, tensors, probe)) if self.ranks.leader else ""

    def begin_checkpoint(self, step: int) -> None:
        """Copy the state and start to write it; ``whole_checkpoints`` tells when it is there."""
        write = self.engine.snapshot()

        def write_all(directory: Path) -> None:
            write(directory)
            if self.ranks.leader:
                self.tokenizer.save(directory)

        self.checkpoints.begin(step, write_all)

    def whole_checkpoints(self, wait: bool = False) -> list[tuple[int, str]]:
        """(step, path) of the checkpoints finished since the last call; with *wait*, of all that were begun."""
        return self.checkpoints.whole(wait=wait)

    def restore(self, path: str | None) -> None:
        """Continue from a checkpoint; without one, from the initial student, whatever was trained since."""
        if path is None:
            self.engine.reset(self.config.policy.model)
        else:
            self.engine.restore(Path(path))
