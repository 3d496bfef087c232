"""``Overview``: what a job does at this moment. It only looks at what is known anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workers.control.waiting import Waiting
from workers.control.window import Window
from workers.executors import Status


@dataclass(frozen=True)
class Overview:
    """Asked from the thread that draws, while the controller goes on."""

    waiting: Waiting
    window: Window
    statuses: Callable[[], Mapping[str, Status]]

    @property
    def waits_for(self) -> str:
        return self.waiting.what

    @property
    def waits_s(self) -> float:
        """Seconds that it has waited for it."""
        return self.waiting.clock() - self.waiting.since

    @property
    def open_rows(self) -> int:
        """Rows admitted that are in no step yet."""
        return len(self.window.open) * self.window.config.grpo.num_generations_per_prompt

    @property
    def held(self) -> str:
        """The bound that holds admission back; empty when none does."""
        return self.window.pressure.held
