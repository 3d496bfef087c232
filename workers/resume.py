"""Going back to the newest complete checkpoint: a new epoch of the same run.

Steps sealed after it are trained again from their stored generation and teacher columns. Rows not sealed yet
whose weights are newer than the checkpoint wait for the generator again, and so do held-out answers by such weights.
"""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.columns import TRAIN, VALIDATION
from schemas.config.job import CheckpointingConfig
from workers.checkpoints import is_complete
from workers.partitions import RETRAINED, SAMPLED
from workers.window import Window, group_of


def newest_checkpoint(plane: DataPlane) -> tuple[int, str | None]:
    """(step, path) of the newest checkpoint that is whole; (0, None) without one."""
    whole = [(c.step, c.path) for c in plane.checkpoints() if is_complete(Path(c.path))]
    return max(whole, default=(0, None))


def best_checkpoint(plane: DataPlane, keeping: CheckpointingConfig) -> int | None:
    """The step of the checkpoint that is best by ``metric_name``; None without the name or any such value."""
    steps = {step.step: step.metrics for step in plane.steps()}
    values = {
        checkpoint.step: value
        for checkpoint in plane.checkpoints()
        if (value := (steps.get(checkpoint.step) or {}).get(keeping.metric_name or "")) is not None
        and math.isfinite(value)
        and is_complete(Path(checkpoint.path))
    }
    sign = 1 if keeping.higher_is_better else -1
    return max(values, key=lambda step: (sign * values[step], step), default=None)


def go_back(plane: DataPlane, window: Window, step: int) -> None:
    """Open the epoch that continues after *step*, and hand the window its open groups."""
    plane.new_epoch(step, tasks=RETRAINED)
    lost = _newer_than(plane, TRAIN, step)
    unsealed = set(plane.rows(TRAIN, sealed=False))
    requeued = [sample_id for sample_id in lost if sample_id in unsealed]
    if requeued:
        plane.requeue(TRAIN, requeued, window.sampling_tasks)
    for partition in (VALIDATION, SAMPLED):
        plane.clear(partition, _newer_than(plane, partition, step))
    groups: dict[str, list[str]] = {}
    everything = plane.rows(TRAIN)
    for sample_id in everything:
        groups.setdefault(group_of(sample_id), []).append(sample_id)
    window.restore(groups, unsealed)


def _newer_than(plane: DataPlane, partition: str, version: int) -> list[str]:
    """Rows some token of which was sampled by weights newer than *version*."""
    table = plane.table(partition, ["sample_id", "weight_version_max"])
    return table.filter(pc.greater(table["weight_version_max"], version))["sample_id"].to_pylist()
