"""What a plan says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.planning.columns import ColumnPlan
from workers.planning.memory import Memory


@dataclass(frozen=True)
class RolePlan:
    """A role: its processes by node, what each is given, and the bytes of each; None where its model is not here."""

    name: str
    engine: str
    model: str
    processes: int
    gpus: float
    nodes: Mapping[str, int]
    memory: Memory | None


@dataclass(frozen=True)
class StorePlan:
    """Bytes that a run leaves on disk at once: rows of *steps_kept* steps, payloads of fewer, and weights."""

    step_bytes: int
    steps_kept: int
    rows_bytes: int
    payload_steps: int
    payload_bytes: int
    checkpoints_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.rows_bytes + self.payload_bytes + self.checkpoints_bytes


@dataclass(frozen=True)
class Plan:
    """All of it; *notes* say what could not be told, *problems* what would not fit."""

    cluster: str
    tokens_per_step: int
    roles: list[RolePlan]
    columns: list[ColumnPlan]
    store: StorePlan
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
