"""Which checkpoint a row's ``teacher_index`` means: a list that a run's store keeps, and that only grows.

A resumed run may name other teachers. Checkpoints it has not seen go to the end, so that rows scored before still
mean what they meant; the order of today's recipe never decides.
"""

from __future__ import annotations

import json

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from schemas.errors import InputError
from stages.routing import teacher_configs, teacher_configs_by_index

#: Name of the store's fact that lists them.
FACT = "teachers"


def recorded_teachers(plane: DataPlane) -> list[str]:
    """The checkpoint behind each ``teacher_index`` of this store."""
    return [str(checkpoint) for checkpoint in json.loads(plane.facts().get(FACT, "[]"))]


def record_teachers(plane: DataPlane, config: RunConfig) -> list[str]:
    """The same list, after the teachers of *config* that it lacked were added to it."""
    known = recorded_teachers(plane)
    for teacher in teacher_configs_by_index(teacher_configs(config.on_policy_distillation)):
        if teacher.model_name not in known:
            known.append(teacher.model_name)
    if known:
        plane.record_fact(FACT, json.dumps(known))
    return known


def assert_teachers_are_served(plane: DataPlane, config: RunConfig) -> None:
    """Raise InputError if rows of an earlier life wait for a teacher that *config* does not name any more."""
    served = set(config.on_policy_distillation.teacher_model_by_agent_name)
    waiting = plane.rows(TRAIN, have=["teacher"], sealed=False, failed=False)
    asked = plane.get(TRAIN, waiting, ["teacher"]).values("teacher") if waiting else []
    gone = sorted({alias for alias in asked if alias is not None and alias not in served})
    if gone:
        raise InputError(
            f"on_policy_distillation.teacher_model_by_agent_name: rows of this run wait for the teacher {gone[0]!r}, "
            f"which the recipe does not name (it names {', '.join(sorted(served)) or 'none'}); keep it until they are "
            "trained, under whatever checkpoint"
        )
