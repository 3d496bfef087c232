"""``TeacherLogprobCoordinator``: rows of a store that wait for their teacher, scored by teacher groups.

The rows of each group are a claim of their own: they go to the group in the order in which they became ready, and a
group has one batch at a time, while groups work beside each other. It is what a job's teacher roles do by themselves;
here Python says when.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.payload import shipment_of
from stages.routing import get_teacher_routing_metrics
from stages.teacher import Teacher
from workers.loop import Worker
from workers.teachers.groups import TeacherWorkerGroup
from workers.teachers.index import record_teachers, recorded_teachers
from workers.teachers.payload import payload_width


class TeacherLogprobCoordinator:
    """Over the groups of ``create_teacher_worker_groups``, for the rows of one *partition*."""

    def __init__(
        self,
        plane: DataPlane,
        groups: Mapping[str, TeacherWorkerGroup],
        group_of_alias: Mapping[str, str],
        config: RunConfig,
        partition: str = TRAIN,
    ) -> None:
        self.plane, self.partition = plane, partition
        self._models = dict(config.on_policy_distillation.teacher_model_by_agent_name)
        checkpoints = record_teachers(plane, config)
        self._aliases = {
            group: [alias for alias, its_group in group_of_alias.items() if its_group == group] for group in groups
        }
        self._workers: dict[str, Worker] = {}
        for alias, group in groups.items():
            index = checkpoints.index(group.teacher.model_name)
            ships = shipment_of(config, payload_width(config, group.vocabulary_size))
            temperature = config.generator.sampling.temperature
            stage = Teacher(group, dict.fromkeys(self._aliases[alias], index), temperature, ships)
            self._workers[alias] = Worker(plane, partition, stage, name=f"teacher:{alias}")
        self._locks = {alias: asyncio.Lock() for alias in groups}
        self._waiting_s = dict.fromkeys(groups, 0.0)
        self._scored: Counter[str] = Counter()

    async def enrich(self, group_ids: Sequence[str] | None = None) -> list[str]:
        """Score what is ready, of these prompt groups or of all; the ids of the rows that have their columns now."""
        found = await asyncio.gather(*(self._enrich(alias, group_ids) for alias in self._workers))
        return [sample_id for ids in found for sample_id in ids]

    async def _enrich(self, alias: str, group_ids: Sequence[str] | None) -> list[str]:
        worker, done, asked = self._workers[alias], list[str](), time.monotonic()
        async with self._locks[alias]:
            self._waiting_s[alias] += time.monotonic() - asked
            worker.where = {"teacher": self._aliases[alias], **({"group_id": group_ids} if group_ids else {})}
            while (output := await asyncio.to_thread(worker.run_once)) is not None:
                done += output.sample_ids
        if done:
            self._scored.update(self.plane.get(self.partition, done, ["teacher"]).values("teacher"))
        return done

    def drain_metrics(self) -> dict[str, float]:
        """What was done since the last call: routing, and by teacher its batches, samples and seconds."""
        metrics = get_teacher_routing_metrics(list(self._scored), self._models)
        for alias, worker in self._workers.items():
            work, name = worker.take_work(), f"teacher:{alias}"
            metrics[f"{name}/batches"] = float(work.batches)
            metrics[f"{name}/samples"] = float(work.samples)
            metrics[f"{name}/inference_s"] = work.stage_s
            metrics[f"{name}/waiting_s"] = self._waiting_s[alias]
            self._waiting_s[alias] = 0.0
        self._scored.clear()
        return metrics

    def teacher_checkpoints_by_index(self) -> list[str]:
        """The checkpoint behind each ``teacher_index`` of this store, whatever the recipe would say by now."""
        return recorded_teachers(self.plane)
