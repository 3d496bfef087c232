"""What is measured of a step beside what its stages say: age, buffers, speed, and who did how much.

    wall_s        the step, from the first wait to the published weights
    plane_s       processor seconds in plane and controller code, summed over processes
    staleness_*   weight versions between the one that trains and the oldest that sampled a token of the row
    buffered_*    what waits for a step once this one is trained
    *_tokens_per_s  response tokens a second of a stage's own time; tokens_per_s is of the whole step
"""

from __future__ import annotations

from collections.abc import Mapping

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.routing import get_teacher_routing_metrics
from workers.executors import Executor
from workers.loop import Work

#: Stages that run beside training, and how the roles are called that run them.
BESIDE = {"generate": "generator", "teacher": "teacher"}


class Measures:
    """Gathers the numbers of one step after another."""

    def __init__(self, config: RunConfig, plane: DataPlane, executor: Executor) -> None:
        self.config = config
        self.plane = plane
        self.executor = executor

    def samples(self, step: int) -> dict[str, float]:
        """Age and routing of the rows of a sealed step."""
        names = ["weight_version", "teacher"] if self.config.on_policy_distillation.enabled else ["weight_version"]
        rows = self.plane.get(TRAIN, self.plane.members(step), names)
        ages = [max(0, step - 1 - version) for version in rows.values("weight_version")]
        age = {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))}
        return age | (self._routing(rows.values("teacher")) if "teacher" in names else {})

    def _routing(self, aliases: list[str]) -> dict[str, float]:
        return get_teacher_routing_metrics(aliases, self.config.on_policy_distillation.teacher_model_by_agent_name)

    def speed(self, trained: Mapping[str, float], wall_s: float, controller_s: float) -> dict[str, float]:
        """Seconds and rates since the last step; *trained* is what the trainer said of this one."""
        work: dict[str, Work] = {
            role: self.executor.submit(role, "take_work").result() for role in self.executor.names()
        }
        plane_s = {
            "controller_s": controller_s,
            "answers_s": self.plane.take_served_seconds(),
            "workers_plane_s": sum(done.plane_s for done in work.values()),
        }
        waits = self.plane.buffered(TRAIN)
        return {
            "wall_s": wall_s,
            "plane_s": sum(plane_s.values()),
            **plane_s,
            "tokens_per_s": trained["trained_tokens"] / wall_s,
            **_rates(work, trained),
            "buffered_rows": waits.rows,
            "buffered_bytes": waits.size_bytes,
            **{f"{role}/{name}": value for role, done in work.items() for name, value in _shares(done, wall_s).items()},
        }


def _rates(work: Mapping[str, Work], trained: Mapping[str, float]) -> dict[str, float]:
    """Response tokens a second of each stage that did something."""
    done = {stage: [w for name, w in work.items() if name.partition(":")[0] == role] for stage, role in BESIDE.items()}
    spent: dict[str, tuple[float, float]] = {
        stage: (sum(w.tokens for w in some), sum(w.stage_s for w in some)) for stage, some in done.items()
    }
    spent["train"] = (trained["trained_tokens"], trained.get("train_s", 0.0))
    return {f"{stage}_tokens_per_s": tokens / seconds for stage, (tokens, seconds) in spent.items() if seconds}


def _shares(done: Work, wall_s: float) -> dict[str, float]:
    return {
        "batches": done.batches,
        "samples": done.samples,
        "inference_s": done.stage_s,
        "waiting_s": max(0.0, wall_s - done.stage_s),
    }
