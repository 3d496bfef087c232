"""What is measured of a step beside what its stages say: age, buffers, speed, and who did how much.

    wall_s        the step, from the first wait to the published weights
    plane_s       processor seconds in plane and controller code in that time, summed over processes
    staleness_*   weight versions between the one that trains and the oldest that sampled a token of the row
    buffered_*    what waits for a step once this one is trained
    *_tokens_per_s  response tokens a second of a stage's own time; tokens_per_s is of the whole step

Validation, checkpoints and what they let go are between steps, and so are the processor seconds spent meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from dataplane import DataPlane
from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.routing import get_teacher_routing_metrics
from workers.control.waiting import Waiting
from workers.control.window import MEASURED
from workers.loop import Work

#: Stages that run beside training, and how the roles are called that run them.
BESIDE = {"generate": "generator", "teacher": "teacher"}


class Measures:
    """Gathers the numbers of one step after another."""

    def __init__(self, config: RunConfig, plane: DataPlane, waiting: Waiting) -> None:
        self.config = config
        self.plane = plane
        self.waiting = waiting
        self._before: dict[str, Work] = {}

    def samples(self, step: int, rows: Batch | None = None) -> dict[str, float]:
        """Age and routing of the *rows* of a sealed step, which are read if need be."""
        if rows is None:
            rows = self.plane.get(TRAIN, self.plane.members(step), MEASURED)
        ages = [max(0, step - 1 - version) for version in rows.values("weight_version")]
        age = {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))}
        return age | (self._routing(rows.values("teacher")) if self.config.on_policy_distillation.enabled else {})

    def _routing(self, aliases: list[str]) -> dict[str, float]:
        return get_teacher_routing_metrics(aliases, self.config.on_policy_distillation.teacher_model_by_agent_name)

    def between_steps(self) -> None:
        """Processor seconds since the last step belong to none; what the stages did goes to the next one."""
        work, _ = self.take_work()
        self._before = {role: done._replace(plane_s=0.0) for role, done in work.items()}

    def take_work(self) -> tuple[dict[str, Work], float]:
        """Of every role, and the processor seconds of answers to them, since they were last taken."""
        done = self.waiting.call_all("take_work", what="what the workers did")
        before, self._before = self._before, {}
        return {role: work + before.get(role, Work()) for role, work in done.items()}, self.plane.take_served_seconds()

    def speed(
        self, trained: Mapping[str, float], done: tuple[dict[str, Work], float], wall_s: float, controller_s: float
    ) -> dict[str, float]:
        """Seconds and rates of a step: what the trainer said of it, and what was *done* since the last one."""
        work, answers_s = done
        plane_s = {
            "controller_s": controller_s,
            "answers_s": answers_s,
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
