"""A teacher: one frozen model that scores the samples of all its aliases."""

from __future__ import annotations

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.routing import TeacherConfig, teacher_configs, teacher_configs_by_index
from stages.teacher import Teacher
from workers.engines.hf_scorer import HFScorer
from workers.loop import Worker
from workers.partitions import SAMPLED
from workers.roles import Role


class TeacherRole(Role):
    """Claims only rows routed to one of its aliases."""

    def __init__(self, plane: DataPlane, config: RunConfig, teacher: TeacherConfig) -> None:
        self.name = f"teacher:{teacher.alias}"
        engine = HFScorer.load(teacher.model_name, config.policy.dtype, batch_size=config.policy.logprob_batch_size)
        index = teacher_configs_by_index(teacher_configs(config.on_policy_distillation)).index(teacher)
        index_of_alias = dict.fromkeys(teacher.aliases, index)
        temperature = config.generator.sampling.temperature

        def worker(partition: str, *, ship_logits: bool) -> Worker:
            stage = Teacher(engine, index_of_alias, temperature, ship_logits)
            where = {"teacher": list(teacher.aliases)}
            return Worker(plane, partition, stage, limit=_ROWS_A_TURN, where=where, name=self.name)

        self.workers = [worker(SAMPLED, ship_logits=True), worker(TRAIN, ship_logits=False)]


_ROWS_A_TURN = 1024
