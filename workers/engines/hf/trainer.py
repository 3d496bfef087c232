"""The student being trained: scoring, gradients, optimizer, and its state as safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import distributed as dist

from schemas.batch import Batch
from schemas.errors import CorruptData
from stages.losses.full_vocabulary import shift_states
from stages.protocols import MicroBatchLoss, StatesLoss, Update
from workers.engines.batching import plan
from workers.engines.hf.model import CausalLM, load_model, recompute_activations, states_of, token_logprobs
from workers.engines.hf.scorer import HFScorer
from workers.engines.training import adamw_options, gradient_summary, in_micro_batches, training_options
from workers.ranks import ALONE, Ranks

OPTIMIZER_FILE = "optimizer.safetensors"


class HFTrainer(HFScorer):
    """A TrainEngine over a Hugging Face model with AdamW and a warm-up schedule; each of its ranks is a replica.

    One update per global batch: gradients of every micro-batch and rank are summed, clipped and applied once, by
    every rank alike.
    """

    def __init__(
        self,
        model: CausalLM,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        *,
        clip_grad_norm: float,
        batch_size: int,
        micro_batch_size: int,
        **scoring: Any,
    ) -> None:
        super().__init__(model, batch_size=batch_size, **scoring)
        self.optimizer = optimizer
        self.schedule = schedule
        self.clip_grad_norm = clip_grad_norm
        self.micro_batch_size = micro_batch_size
        self.updates = 0

    def micro_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        shares = plan(lengths, self.ranks.size, rows=self.micro_batch_size, tokens=self.batch_tokens)
        return shares[self.ranks.rank]

    def gather(self, message: bytes) -> list[bytes]:
        return self.ranks.gather(message)

    def forward_backward(self, batch: Batch, loss: MicroBatchLoss, temperature: float) -> float:
        """Add the gradient of the whole batch's loss; its value."""
        return self._accumulate(
            batch,
            lambda ids, mask, micro: loss(
                token_logprobs(self.model, ids, mask, temperature, self.vocabulary_size), micro
            ),
        )

    def forward_backward_states(self, batch: Batch, loss: StatesLoss) -> float:
        """The same for a loss of hidden states and LM head."""
        return self._accumulate(
            batch,
            lambda ids, mask, micro: loss(
                shift_states(states_of(self.model, ids, mask)), self.model.lm_head.weight, micro
            ),
        )

    def _accumulate(self, batch: Batch, loss: Callable[[torch.Tensor, torch.Tensor, Batch], torch.Tensor]) -> float:
        total = 0.0
        for micro in in_micro_batches(batch, rows=self.micro_batch_size, tokens=self.batch_tokens):
            ids = micro.padded("input_ids").long().to(self.model.device)
            attended = torch.arange(ids.shape[1])[None] < torch.from_numpy(micro.lengths())[:, None]
            value = loss(ids, attended.to(ids.device), micro)
            if value.requires_grad:
                value.backward()
            total += float(value.detach())
        return total

    def take_gradient(self) -> torch.Tensor:
        """Norm of each parameter's gradient and its projection on a fixed direction, [2 P]; gradients are cleared."""
        self._sum_gradients()
        numbers = [number for parameter in self.model.parameters() for number in gradient_summary(parameter.grad)]
        self.optimizer.zero_grad(set_to_none=True)
        return torch.tensor(numbers, dtype=torch.float64)

    def update(self) -> Update:
        """Clip, step, advance the schedule, clear. A gradient that is not finite is an error and steps nothing."""
        self._sum_gradients()
        rate = self.optimizer.defaults["lr"] * self.schedule(self.updates + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if not parameters:
            return Update(grad_norm=0.0, learning_rate=rate, stepped=False)
        limit = self.clip_grad_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit, error_if_nonfinite=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return Update(grad_norm=float(norm), learning_rate=rate, stepped=True)

    def _sum_gradients(self) -> None:
        """Give every rank the sum of all ranks' gradients. A rank without rows adds zeros."""
        if self.ranks.size == 1:
            return
        for parameter in (p for p in self.model.parameters() if p.requires_grad):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    # -- state ------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters by name; tied ones once."""
        tied = (
            set(getattr(self.model, "_tied_weights_keys", None) or ())
            if self.model.config.tie_word_embeddings
            else set()
        )
        return {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.model.state_dict().items()
            if name not in tied
        }

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take these parameters; the optimizer stays as it is."""
        self.model.load_state_dict(tensors, strict=False)

    def snapshot(self) -> Callable[[Path], None]:
        """Copy weights and optimizer state; what comes back writes them as a checkpoint that transformers can load.

        Ranks hold the same, so that the leader writes for all.
        """
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state = {
            f"{names[parameter]}|{key}": _copied(value)
            for parameter, entries in self.optimizer.state.items()
            for key, value in entries.items()
        }
        state["updates"] = torch.tensor(self.updates)
        state["torch_rng"] = torch.get_rng_state()
        weights = {name: _copied(tensor) for name, tensor in self.model.state_dict().items()}

        def write(directory: Path) -> None:
            if self.ranks.leader:
                self.model.save_pretrained(directory, state_dict=weights)
                save_file(state, directory / OPTIMIZER_FILE)

        return write

    def reset(self, directory: str | Path) -> None:
        """Start over from the weights in *directory*, as if nothing had been trained."""
        self.model.load_state_dict(load_model(directory).state_dict())
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates = 0

    def restore(self, directory: Path) -> None:
        """Continue from what ``save`` wrote."""
        self.reset(directory)
        state = load_file(directory / OPTIMIZER_FILE)
        self.updates = int(state.pop("updates"))
        torch.set_rng_state(state.pop("torch_rng"))
        parameters = dict(self.model.named_parameters())
        for full_name, value in state.items():
            name, _, key = full_name.rpartition("|")
            if name not in parameters:
                raise CorruptData(
                    f"optimizer state in {directory}: no parameter {name!r} in this model; resume with the same model"
                )
            self.optimizer.state[parameters[name]][key] = value


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, and nobody else's."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def build_trainer(
    model_path: str, config: Any, *, max_steps: int, vocabulary_size: int | None = None, ranks: Ranks = ALONE
) -> HFTrainer:
    """The trainer that *config* (a RunConfig) describes, or one of its *ranks*."""
    model = load_model(model_path, config.policy.dtype)
    if config.trainer.gradient_checkpointing:
        recompute_activations(model)
    optimizer = torch.optim.AdamW(model.parameters(), **adamw_options(config.trainer.optimizer))
    options = training_options(config, max_steps)
    return HFTrainer(model, optimizer, **options, vocabulary_size=vocabulary_size, ranks=ranks)
