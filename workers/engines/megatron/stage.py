"""This rank's part of a forward pass, and its neighbours in the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from schemas.errors import InputError
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.inputs import Inputs
from workers.engines.megatron.layout import Layout
from workers.engines.megatron.library import tensor_parallel
from workers.engines.megatron.model import StatesOnly
from workers.engines.megatron.packing import row_multiple


class Stage:
    """Runs micro-batches of ids below *ids* through the layers of this rank. *packed* rows share one line of tokens."""

    def __init__(self, model: StatesOnly, layout: Layout, *, ids: int, packed: bool = False) -> None:
        self.model, self.layout, self.ids, self.packed = model, layout, ids, packed
        self.sequence_parallel = bool(model.config.sequence_parallel)
        self.multiple = row_multiple(layout.tensor.size, layout.context.size, sequence_parallel=self.sequence_parallel)
        self._sending: list[tuple[Any, Tensor]] = []

    def assert_known(self, rows: Sequence[Sequence[int]]) -> None:
        """Raise InputError for a token that the model has no embedding for: cut over ranks, it would be none at all."""
        largest = max((max(row) for row in rows if len(row)), default=0)
        if largest >= self.ids:
            raise InputError(f"token id {largest}: the model knows ids below {self.ids}; its tokenizer is another one")

    def inputs(self, rows: Sequence[Sequence[int]]) -> Inputs:
        """*rows* for one pass."""
        return Inputs.of(
            rows, self.layout.device, packed=self.packed, multiple=self.multiple, context=self.layout.context
        )

    def run(self, inputs: Inputs, received: Tensor | None) -> Tensor:
        """The states that this stage makes of those *received* (of the tokens, on the first); Megatron's [S, B, H]."""
        with megatron_code():
            if received is not None:
                self.model.set_input_tensor(received)
            states: Tensor = self.model(**inputs.arguments())
            if self.layout.pipeline.last and self.sequence_parallel:
                # what comes back through it is whole and the same on every rank
                states = tensor_parallel.gather_from_sequence_parallel_region(
                    states, tensor_parallel_output_grad=False, group=self.layout.tensor.group
                )
        return states

    def backward(self, states: Tensor, gradient: Tensor | None = None) -> None:
        """Of what ``run`` gave, or of a scalar made of it."""
        with megatron_code():
            torch.autograd.backward(states, gradient)

    # -- neighbours: states go to the next stage, their gradients to the one before ---------------------------

    def receive(self, inputs: Inputs) -> Tensor | None:
        """States from the stage before; None on the first."""
        return None if self.layout.pipeline.first else self._from(self.layout.pipeline.rank - 1, inputs)

    def receive_gradient(self, inputs: Inputs) -> Tensor:
        """The gradient of what was sent, from the next stage."""
        return self._from(self.layout.pipeline.rank + 1, inputs)

    def send(self, states: Tensor) -> None:
        """*states* to the next stage. Returns at once."""
        self._to(self.layout.pipeline.rank + 1, states)

    def send_gradient(self, gradient: Tensor) -> None:
        """Of what was received, to the stage before. Returns at once."""
        self._to(self.layout.pipeline.rank - 1, gradient)

    def flush(self) -> None:
        """Wait until all that was sent is taken."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def _to(self, stage: int, tensor: Tensor) -> None:
        content = tensor.detach().contiguous()
        work = dist.isend(content, self.layout.stage(stage), group=self.layout.pipeline.group)
        self._sending.append((work, content))  # which must live until it has been taken

    def _from(self, stage: int, inputs: Inputs) -> Tensor:
        places, lines = inputs.shape
        if self.sequence_parallel:
            places //= self.layout.tensor.size
        config = self.model.config
        content = torch.empty(places, lines, config.hidden_size, dtype=config.params_dtype, device=self.layout.device)
        dist.recv(content, self.layout.stage(stage), group=self.layout.pipeline.group)
        return content
