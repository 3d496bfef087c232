"""The generator: samples with the newest published weights."""

from __future__ import annotations

from pathlib import Path

from dataplane import DataPlane
from schemas.columns import TRAIN, VALIDATION
from schemas.config import RunConfig
from stages.checkers import reward
from stages.generate import Generate
from workers.engines.hf_generator import HFGenerator
from workers.loop import Worker
from workers.partitions import SAMPLED
from workers.roles import Role
from workers.tokenizer import HFTokenizer
from workers.weights import read_weights


class GeneratorRole(Role):
    """Held-out prompts go first, so that a validation is not held up by training rows."""

    name = "generator"

    def __init__(self, plane: DataPlane, config: RunConfig) -> None:
        self.plane = plane
        tokenizer = HFTokenizer(config.policy.tokenizer or config.policy.model)
        self.engine = HFGenerator.load(
            config.policy.model,
            tokenizer.stop_ids,
            max_length=config.policy.max_total_sequence_length,
            batch_size=config.generator.batch_size,
        )
        stage = Generate(self.engine, tokenizer, reward)
        self.workers = [
            Worker(plane, partition, stage, limit=config.generator.batch_size, name=self.name)
            for partition in (VALIDATION, SAMPLED, TRAIN)
        ]

    def turn(self) -> bool:
        self._load_newest()
        return super().turn()

    def _load_newest(self) -> None:
        published = self.plane.published()
        if published and published[-1].version != self.engine.version:
            newest = published[-1]
            self.engine.load_weights(read_weights(Path(newest.path)), newest.version)
        for worker in self.workers:
            worker.weight_version = self.engine.version
