"""Back-pressure: how many groups may be admitted, by the rows and bytes that wait to be part of a step.

The groups of one step may always be admitted, so that no bound can bring the run to a halt: it only keeps generation
from running ahead.
"""

from __future__ import annotations

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig


class Backpressure:
    """Knows what holds admission back, and notes in the events when that begins and ends."""

    def __init__(self, plane: DataPlane, config: RunConfig) -> None:
        self.plane = plane
        self.groups_per_step = config.grpo.num_prompts_per_step
        self.generations = config.grpo.num_generations_per_prompt
        self.max_rows = config.grpo.async_grpo.max_buffered_rows
        self.max_bytes = config.store.max_buffered_bytes
        #: The bound that holds admission back, in words; empty when none does.
        self.held = ""

    def room(self, open_groups: int, wanted: int) -> int:
        """How many of *wanted* groups may join the *open_groups* that are in no step yet."""
        room, held = self._bounded(open_groups, wanted)
        room = min(wanted, max(room, self.groups_per_step - open_groups))
        self._note(held if room < wanted else "")
        return room

    def _bounded(self, open_groups: int, wanted: int) -> tuple[int, str]:
        room, held = wanted, ""
        if self.max_rows is not None and open_groups + room > self.max_rows // self.generations:
            room = max(0, self.max_rows // self.generations - open_groups)
            held = f"grpo.async_grpo.max_buffered_rows ({self.max_rows:,})"
        if room and self.max_bytes is not None and self.plane.buffered(TRAIN).size_bytes >= self.max_bytes:
            room, held = 0, f"store.max_buffered_bytes ({self.max_bytes:,})"
        return room, held

    def _note(self, held: str) -> None:
        if held == self.held:
            return
        self.held = held
        if held:
            waits = self.plane.buffered(TRAIN)
            self.plane.event("admission_held", by=held, rows=waits.rows, bytes=waits.size_bytes)
        else:
            self.plane.event("admission_goes_on")
