"""Going back to the newest complete checkpoint: a new epoch of the same run.

Steps sealed after it are trained again from their stored generation and teacher columns. Rows not sealed yet
whose weights are newer than the checkpoint wait for the generator again; evaluations of such weights begin anew.
"""

from __future__ import annotations

import math

import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.columns import TRAIN, VALIDATION
from schemas.config.job import CheckpointingConfig
from schemas.errors import JobFailed
from workers.checkpoints import is_complete
from workers.control.admission import group_of
from workers.control.validation import version_of
from workers.control.window import Window
from workers.partitions import RETRAINED, SAMPLED
from workers.rundir import RunDir


def newest_checkpoint(plane: DataPlane, run_dir: RunDir) -> tuple[int, str | None]:
    """(step, path) of the newest checkpoint that is whole; (0, None) where none was recorded, or where a repair lost
    the records of those that are there.

    Raises JobFailed when all are gone: going back to the initial student must be somebody's wish.
    """
    recorded = {checkpoint.step: run_dir.own(checkpoint.path) for checkpoint in plane.checkpoints()}
    whole = [(step, str(path)) for step, path in recorded.items() if is_complete(path)]
    if recorded and not whole and not any(map(is_complete, run_dir.checkpoints.glob("step_*"))):
        raise JobFailed(
            f"resume: the store has checkpoints of steps {', '.join(map(str, sorted(recorded)))}, and none is whole in "
            f"{run_dir.checkpoints}; put one back, or start a new run"
        )
    return max(whole, default=(0, None))


def best_checkpoint(plane: DataPlane, run_dir: RunDir, keeping: CheckpointingConfig) -> int | None:
    """The step of the checkpoint that is best by ``metric_name``; None without the name or any such value."""
    steps = {step.step: step.metrics for step in plane.steps()}
    values = {
        checkpoint.step: value
        for checkpoint in plane.checkpoints()
        if (value := (steps.get(checkpoint.step) or {}).get(keeping.metric_name or "")) is not None
        and math.isfinite(value)
        and is_complete(run_dir.own(checkpoint.path))
    }
    sign = 1 if keeping.higher_is_better else -1
    return max(values, key=lambda step: (sign * values[step], step), default=None)


def go_back(plane: DataPlane, window: Window, step: int) -> None:
    """Open the epoch that continues after *step*, and hand the window its open groups."""
    plane.new_epoch(step, tasks=RETRAINED)
    _forget_training_of_unsealed(plane)
    lost = _of_lost_weights(plane, step)
    unsealed = set(plane.rows(TRAIN, sealed=False))
    requeued = [sample_id for sample_id in lost if sample_id in unsealed]
    if requeued:
        plane.requeue(TRAIN, requeued, window.sampling_tasks)
    for partition in (VALIDATION, SAMPLED):  # unanswered rows too: other weights would answer them in the meantime
        plane.clear(partition, [sample_id for sample_id in plane.rows(partition) if version_of(sample_id) > step])
    groups: dict[str, list[str]] = {}
    everything = plane.rows(TRAIN)
    for sample_id in everything:
        groups.setdefault(group_of(sample_id), []).append(sample_id)
    window.restore(groups, unsealed)


def _forget_training_of_unsealed(plane: DataPlane) -> None:
    """A repair may have put back what was made of a step, and could not know the step."""
    rows = plane.rows(TRAIN, have=["student_logprobs"], sealed=False)
    if rows:
        declared = plane.progress(TRAIN).tasks
        plane.requeue(TRAIN, rows, [task for task in RETRAINED if task in declared])


def _of_lost_weights(plane: DataPlane, step: int) -> list[str]:
    """Rows some token of which was sampled by weights newer than *step*'s, or that a generator has in hand.

    The latter are asked for first, so that what is committed in between shows among the others.
    """
    state = plane.row_state(TRAIN, ["sample_id", "claimed"])
    claimed = set(state.filter(state["claimed"])["sample_id"].to_pylist())
    in_hand = [sample_id for sample_id in plane.rows(TRAIN, lack=["input_ids"]) if sample_id in claimed]
    table = plane.table(TRAIN, ["sample_id", "weight_version_max"])
    return [*in_hand, *table.filter(pc.greater(table["weight_version_max"], step))["sample_id"].to_pylist()]
