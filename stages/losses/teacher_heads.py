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
    def staged(self) -> Iterator[list[Tensor]]:
        """The heads on the device, by teacher index, for the length of a step."""
        heads = {path: self._stage(path) for path in dict.fromkeys(self.checkpoints)}
        yield [heads[path] for path in self.checkpoints]

    def _stage(self, path: str) -> Tensor:
        head = self._parked.get(path)
        if head is None:
            head = self.load(path)
            if self.lifecycle == "none":
                self._parked[path] = head.to(self.device)
            elif self.lifecycle == "offload":
                self._parked[path] = head.cpu()
        return head.to(self.device)
