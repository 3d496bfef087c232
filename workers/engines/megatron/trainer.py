"""The student being trained by Megatron: scoring, gradients over pipelined micro-batches, optimizer, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch import distributed as dist

from schemas.batch import Batch
from stages.losses.full_vocabulary import shift_states
from stages.protocols import MicroBatchLoss, StatesLoss, Update
from workers.engines.batching import plan
from workers.engines.hf.model import pad_right
from workers.engines.megatron.checkpoint import Checkpoint, write_checkpoint
from workers.engines.megatron.export import Exporter
from workers.engines.megatron.inputs import Inputs
from workers.engines.megatron.mapping import shapes
from workers.engines.megatron.model import Tensors, fill, recompute_activations
from workers.engines.megatron.optimizer import ShardedAdamW
from workers.engines.megatron.scorer import MegatronScorer
from workers.engines.megatron.state import read_state, write_state
from workers.engines.training import adamw_options, gradient_summary, in_micro_batches, training_options
from workers.ranks import ALONE, Ranks

#: The loss of one micro-batch from its states after each token [B, S, H] and its token ids [B, S].
_Loss = Callable[[Tensor, Tensor, Batch], Tensor]


@dataclass
class _InFlight:
    """A micro-batch between its forward and its backward pass on one stage."""

    inputs: Inputs
    received: Tensor | None
    states: Tensor | None


class MegatronTrainer(MegatronScorer):
    """A TrainEngine over a Megatron model with AdamW and a warm-up schedule.

    One update per global batch. A replica's micro-batches go through the pipeline one behind the other, all forward
    and then all backward; the last stage takes the gradient of its own part at once.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: str = "float32",
        *,
        optimizer: Mapping[str, Any],
        schedule: Callable[[int], float],
        clip_grad_norm: float | None,
        micro_batch_size: int,
        gradient_checkpointing: bool = False,
        **scoring: Any,
    ) -> None:
        super().__init__(path, dtype, **scoring)
        if gradient_checkpointing:
            recompute_activations(self.model)
        self.optimizer = ShardedAdamW(
            self.parts,
            self.layout,
            **optimizer,
            tied=self.architecture.tied,
            sequence_parallel=self.stage.sequence_parallel,
        )
        self.exporter = Exporter(self.parts, self.layout, shapes(self.architecture))
        self.schedule = schedule
        self.clip_grad_norm = clip_grad_norm
        self.micro_batch_size = micro_batch_size
        self.updates = 0

    def micro_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        data = self.layout.data
        return plan(lengths, data.size, rows=self.micro_batch_size, tokens=self.batch_tokens)[data.rank]

    def gather(self, message: bytes) -> list[bytes]:
        return self.layout.gather(message)

    # -- gradients ------------------------------------------------------------------------------------

    def forward_backward(self, batch: Batch, loss: MicroBatchLoss, temperature: float) -> float:
        """Add the gradient of the whole batch's loss; its value, on every rank of the replica."""
        return self._accumulate(
            batch, lambda states, ids, micro: loss(self.head.logprobs(states, ids, temperature), micro)
        )

    def forward_backward_states(self, batch: Batch, loss: StatesLoss) -> float:
        """The same for a loss of hidden states and this rank's part of the LM head."""
        return self._accumulate(batch, lambda states, ids, micro: loss(shift_states(states), self.head.weight, micro))

    def _accumulate(self, batch: Batch, loss: _Loss) -> float:
        total, flying = 0.0, []
        for micro in in_micro_batches(batch, rows=self.micro_batch_size, tokens=self.batch_tokens):
            flight, value = self._forward(micro, loss)
            flying.append(flight)
            total += value
        self.stage.flush()
        # Only now do gradients travel: states and gradients never cross each other between two stages.
        for flight in flying:
            self._backward(flight)
        self.stage.flush()
        return self._from_last_stage(total)

    def _forward(self, micro: Batch, loss: _Loss) -> tuple[_InFlight, float]:
        """On the last stage with the backward pass of its own part, and the loss."""
        sequences = micro.values("input_ids")
        self.stage.assert_known(sequences)
        inputs = self.stage.inputs(sequences)
        received = self.stage.receive(inputs)
        if received is not None:
            received.requires_grad_()
        states = self.stage.run(inputs, received)
        if not self.layout.pipeline.last:
            self.stage.send(states)
            return _InFlight(inputs, received, states), 0.0
        value = loss(inputs.rows(states), pad_right(sequences, states.device)[0], micro)
        if value.requires_grad:
            self.stage.backward(value)
        return _InFlight(inputs, received, None), float(value.detach())

    def _backward(self, flight: _InFlight) -> None:
        """Take the gradient from the next stage through this one, and hand it to the one before."""
        if flight.states is not None:
            self.stage.backward(flight.states, self.stage.receive_gradient(flight.inputs))
            flight.states = None
        if flight.received is not None:
            gradient = flight.received.grad
            self.stage.send_gradient(torch.zeros_like(flight.received) if gradient is None else gradient)

    def _from_last_stage(self, value: float) -> float:
        pipeline = self.layout.pipeline
        if pipeline.size == 1:
            return value
        told = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(told, self.layout.stage(pipeline.size - 1), group=pipeline.group)
        return float(told)

    def take_gradient(self) -> Tensor:
        """Norm of each parameter's gradient and its projection on a fixed direction, in the order of transformers;
        [2 P]. Gradients are cleared."""
        self.optimizer.reduce()
        gradients = self.exporter(self.optimizer.gradient, torch.float32)
        found = {name: torch.tensor(gradient_summary(gradient), dtype=torch.float64) for name, gradient in gradients}
        self.optimizer.clear()
        numbers = list(self.exporter.ordered(found).values())
        said = self.ranks.share(save({"numbers": torch.cat(numbers)}) if self.ranks.leader else b"")
        return load(said)["numbers"]

    def update(self) -> Update:
        """Reduce, clip, step, advance the schedule, clear. A gradient that is not finite is an error, and no step."""
        rate = self.optimizer.lr * self.schedule(self.updates + 1)
        if not any(self.ranks.gather(b"some" if self.optimizer.has_gradient else b"")):
            return Update(grad_norm=0.0, learning_rate=rate, stepped=False)
        self.optimizer.reduce()
        norm = self.optimizer.step(rate, self.clip_grad_norm)
        self.updates += 1
        return Update(grad_norm=norm, learning_rate=rate, stepped=True)

    # -- state ----------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The parameters by their Hugging Face names, tied ones once; on the leader alone."""
        return self.exporter.ordered(dict(self._export()))

    def _export(self) -> Iterator[tuple[str, Tensor]]:
        return self.exporter(lambda name: self.parts[name].parameter, self.model.config.params_dtype)

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these parameters, all of them, on every rank; the optimizer stays as it is."""
        self._set(tensors)

    def _set(self, tensors: Tensors) -> None:
        for name, value in fill(self.parts, tensors, self.layout):
            self.optimizer.set_masters(name, value)

    def snapshot(self) -> Callable[[Path], None]:
        """Copy weights and optimizer state; what comes back writes this rank's part of them.

        The leader writes the model for transformers, and the first replica its optimizer state, a file a rank.
        """
        weights = self.weights()
        state = {name: value.to("cpu", copy=True) for name, value in self.optimizer.state().items()}
        state["updates"] = torch.tensor(self.updates)

        def write(directory: Path) -> None:
            if self.ranks.leader:
                write_checkpoint(directory, weights, self.path)
            if not self.layout.data.rank and not self.layout.context.rank:
                write_state(directory, state, self.layout)

        return write

    def reset(self, directory: str | Path) -> None:
        """Start over from the weights in *directory*, as if nothing had been trained."""
        self._set(Checkpoint(directory))
        self.optimizer.forget()
        self.updates = 0

    def restore(self, directory: Path) -> None:
        """Continue from what ``snapshot`` wrote. Raises CorruptData where it was written over other ranks."""
        state = read_state(directory, self.layout)
        self.reset(directory)
        self.updates = int(state.pop("updates"))
        self.optimizer.restore(state)


def build_trainer(
    model_path: str, config: Any, *, max_steps: int, vocabulary_size: int | None = None, ranks: Ranks = ALONE
) -> MegatronTrainer:
    """The trainer that *config* (a RunConfig) describes, or one of its *ranks*."""
    return MegatronTrainer(
        model_path,
        config.policy.dtype,
        optimizer=adamw_options(config.trainer.optimizer),
        gradient_checkpointing=config.trainer.gradient_checkpointing,
        vocabulary_size=vocabulary_size,
        ranks=ranks,
        sequence_packing=config.trainer.sequence_packing,
        **config.trainer.model_parallel_sizes,
        **training_options(config, max_steps),
    )
