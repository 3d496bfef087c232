"""A teacher: one frozen model that scores the samples of all its aliases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig, get_opd_full_config
from stages.payload import Shipment, measured_shipment, shipment_of
from stages.routing import TeacherConfig
from stages.teacher import Teacher
from stages.topk_columns import TopKTeacher
from workers.doctor.diagnose import ROWS
from workers.doctor.invariants import SCORE_TOLERANCE, Check, differences
from workers.loop import Worker
from workers.partitions import SAMPLED
from workers.ranks import ALONE, Ranks
from workers.roles import Role
from workers.teachers.payload import payload_width
from workers.teachers.resources import ROWS_A_TURN, load_teacher, teacher_engine
from workers.tokenizer import HFTokenizer


class TeacherRole(Role):
    """Claims only rows routed to one of its aliases. *checkpoints* is what a ``teacher_index`` counts."""

    def __init__(
        self,
        plane: DataPlane,
        config: RunConfig,
        teacher: TeacherConfig,
        checkpoints: Sequence[str],
        ranks: Ranks = ALONE,
    ) -> None:
        self.plane, self.config, self.teacher, self.ranks = plane, config, teacher, ranks
        self.name = f"teacher:{teacher.alias}"
        self.index = checkpoints.index(teacher.model_name)
        vocabulary = len(HFTokenizer(config.policy.tokenizer or config.policy.model).vocabulary)
        self.how = teacher_engine(config, teacher)
        self.engine = load_teacher(teacher.model_name, self.how, vocabulary, ranks)
        self.workers = [
            self._scoring(SAMPLED, measured_shipment(vocabulary)),
            self._scoring(TRAIN, shipment_of(config, payload_width(config, vocabulary))),
        ]
        opd = config.on_policy_distillation
        top = TopKTeacher(self.engine, opd.topk_stats_k, config.generator.sampling.temperature)
        # By index, not by alias: the row's own teacher, whatever the aliases mean today.
        self.top_k = Worker(
            plane,
            TRAIN,
            top,
            where={"teacher_index": [self.index]},
            rows_may_fail=False,
            name=self.name,
            ranks=ranks,
        )
        self.called = [self.top_k] if opd.log_topk_stats else []

    def _scoring(self, partition: str, ships: Shipment) -> Worker:
        full = get_opd_full_config(self.config)
        stage = Teacher(
            self.engine,
            dict.fromkeys(self.teacher.aliases, self.index),
            self.config.generator.sampling.temperature,
            ships,
            keep_nonfinite=self.config.on_policy_distillation.nonfinite_teacher_keeps_reward,
            check_head=self.how.dtype if full is not None and full.validate_decomposition else None,
        )
        where = {"teacher": list(self.teacher.aliases)}
        return Worker(self.plane, partition, stage, limit=ROWS_A_TURN, where=where, name=self.name, ranks=self.ranks)

    def examine(self, step: int) -> list[Check]:
        """Some rows of a sealed step, scored again one by one: what is stored must come out again."""
        mine = self.plane.rows(TRAIN, where={"teacher_index": [self.index]}, step=step)[:ROWS]
        rows = self.plane.get(TRAIN, mine, ["input_ids", "token_mask", "teacher_logprobs"])
        finite = [row for row, values in enumerate(rows.values("teacher_logprobs")) if all(map(math.isfinite, values))]
        rows = rows.take(finite)  # the others are the baseline's to judge
        temperature = self.config.generator.sampling.temperature
        again = [self.engine.logprobs([sequence], temperature)[0] for sequence in rows.values("input_ids")]
        apart = differences(rows.values("teacher_logprobs"), again, rows.values("token_mask")).abs()
        return [
            Check(
                f"rescored.{self.teacher.alias}",
                float(apart.max()) if len(apart) else 0.0,
                SCORE_TOLERANCE[self.how.dtype],
                "the stored scores are not this teacher's: look at routing, alignment and padding",
            )
        ]

    def score_topk(self, step: int) -> int:
        """The top k of this teacher's rows of a sealed step, at the tokens the student's part picked; rows done."""
        rows = 0
        while (output := self.top_k.run_once(step)) is not None:
            rows += len(output.sample_ids)
        return rows
