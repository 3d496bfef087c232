"""The generator: samples with the newest published weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from dataplane import DataPlane
from schemas.columns import TRAIN, VALIDATION
from schemas.config import RunConfig
from schemas.errors import CorruptData
from schemas.messages import Weights
from stages.checkers import reward
from stages.generate import Generate
from workers.doctor.probe import refuse, same, scores
from workers.engines import InterruptibleGenerator, build_generator
from workers.loop import Worker
from workers.partitions import SAMPLED
from workers.ranks import ALONE, Ranks
from workers.roles import Role
from workers.tokenizer import HFTokenizer
from workers.weights import read_weights


class GeneratorRole(Role):
    """Held-out prompts go first, so that a validation is not held up by training rows."""

    def __init__(self, plane: DataPlane, config: RunConfig, name: str = "generator", ranks: Ranks = ALONE) -> None:
        self.name = name
        self.plane = plane
        tokenizer = HFTokenizer(config.policy.tokenizer or config.policy.model)
        self.policy = config.policy
        self.engine = build_generator(config, tokenizer.stop_ids, len(tokenizer.vocabulary))
        if config.generator.weight_update == "abort":
            cast("InterruptibleGenerator", self.engine).follow(self._newest_version, self.load_newest)
        stage = Generate(self.engine, tokenizer, reward)
        self.workers = [
            Worker(plane, partition, stage, limit=config.generator.batch_size, name=self.name, prepare=self.load_newest)
            for partition in (VALIDATION, SAMPLED, TRAIN)
        ]

    def turn(self, ready: Sequence[int] | None = None) -> bool:
        """Nothing is claimed while the newest weights are not there: a run that goes back writes them first."""
        newest = self._newest()
        return newest is not None and Path(newest.path).exists() and super().turn(ready)

    def load_newest(self) -> None:
        """Sample from the newest published weights.

        Rows are claimed first: whatever weights they were admitted for are published by then.
        """
        newest = self._newest()
        while newest is not None and newest.version != self.engine.version:
            try:
                self._sync(Path(newest.path), newest.version)
            except CorruptData:
                later = self._newest()
                if later == newest:
                    raise
                newest = later  # published while we looked, and the old file dropped
        for worker in self.workers:
            worker.weight_version = self.engine.version

    def _sync(self, path: Path, version: int) -> None:
        """Load a version and prove it against the trainer's scores; once more if that fails. Either is an event.

        Raises JobFailed.
        """
        tensors, expected = read_weights(path)
        for _ in range(2):
            self.engine.load_weights(tensors, version)
            found = scores(self.engine.scorer(), self.policy.max_total_sequence_length)
            if same(expected, found, self.policy.dtype):
                self.plane.event("sync_verified", worker=self.name, version=version)
                return
            self.plane.event("sync_failed", worker=self.name, version=version)
        refuse(self.name, version, expected, found, self.policy.dtype)

    def _newest_version(self) -> int:
        """What is published, or nothing newer while a run goes back and has not written it yet."""
        newest = self._newest()
        return newest.version if newest is not None and Path(newest.path).exists() else self.engine.version

    def _newest(self) -> Weights | None:
        published = self.plane.published(last=1)
        return published[-1] if published else None
