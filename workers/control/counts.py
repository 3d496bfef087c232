"""What became of the rows admitted for a step, in counts that add up:

    rows_admitted = samples (sealed members) + rows_failed + rows_empty + rows_quarantined + rows_stale + rows_lost
    samples       = trained_samples + masked_samples

The first line is settled before the step is sealed, and kept as an event, since a step may be trained again later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from dataplane import DataPlane
from schemas.columns import FAILURE_CODES

KIND = "step_collected"

#: Final statuses of rows that never became members.
STATUSES = ("failed", "empty", "quarantined", "stale", "lost")


class StepCounts:
    """Counts by step; those of an earlier life of the run are read back from its events."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._collected: dict[int, dict[str, float]] = {}

    def collected(self, step: int, admitted: int, lost: Mapping[str, str]) -> None:
        """*admitted* rows were meant for *step*; *lost* ones, by id with their error, will not be its members."""
        by_status = Counter(FAILURE_CODES[error.partition(":")[0]] for error in lost.values())
        counts = {"rows_admitted": admitted, **{f"rows_{status}": by_status[status] for status in STATUSES}}
        self.plane.event(KIND, step=step, **counts)
        self._collected[step] = {name: float(count) for name, count in counts.items()}

    def of(self, step: int, trained_samples: float) -> dict[str, float]:
        """Metrics of a trained step."""
        if step not in self._collected:
            self._collected = _earlier(self.plane) | self._collected
        members = len(self.plane.members(step))
        return {"samples": members, "masked_samples": members - trained_samples, **self._collected.pop(step, {})}


def _earlier(plane: DataPlane) -> dict[int, dict[str, float]]:
    events = plane.events().select(["kind", "step", "detail"]).to_pylist()
    return {
        event["step"]: {name: float(count) for name, count in json.loads(event["detail"]).items() if name != "step"}
        for event in events
        if event["kind"] == KIND
    }
