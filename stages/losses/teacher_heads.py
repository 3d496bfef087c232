"""The teachers' LM heads, and where they are between steps.

none      on the training device for the whole run
offload   on the CPU, copied to the device for a step
evict     nowhere; read from the checkpoint for each step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from schemas.errors import InputError

Lifecycle = Literal["none", "offload", "evict"]


class TeacherHeads:
    """One head per distinct checkpoint, handed out by ``teacher_index``.

    *checkpoints* are those recorded when the rows were written; *load* reads the head [V, H] of one.
    """

    def __init__(
        self,
        checkpoints: Sequence[str],
        load: Callable[[str], Tensor],
        lifecycle: Lifecycle = "offload",
        device: torch.device | str = "cpu",
    ) -> None:
        self.checkpoints = list(checkpoints)
        self.load = load
        self.lifecycle = lifecycle
        self.device = device
        self._parked: dict[str, Tensor] = {}

    @contextmanager
    def staged(self, wanted: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
        """The heads of the teachers *wanted* (all for None) on the device, for the length of a step."""
        paths = [self._checkpoint(index) for index in (range(len(self.checkpoints)) if wanted is None else wanted)]
        heads = {path: self._stage(path) for path in dict.fromkeys(paths)}
        yield [heads[path] for path in paths]

    def _checkpoint(self, index: int) -> str:
        if not 0 <= index < len(self.checkpoints):
            raise InputError(f"teacher_index {index}: expected one of the {len(self.checkpoints)} recorded teachers")
        return self.checkpoints[index]

    def _stage(self, path: str) -> Tensor:
        head = self._parked.get(path)
        if head is None:
            head = self.load(path)
            if self.lifecycle == "none":
                self._parked[path] = head.to(self.device)
            elif self.lifecycle == "offload":
                self._parked[path] = head.cpu()
        return head.to(self.device)
