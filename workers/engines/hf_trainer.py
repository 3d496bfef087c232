"""The student being trained: scoring, gradients, optimizer, and its state as safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from schemas.batch import Batch
from schemas.errors import CorruptData
from stages.protocols import MicroBatchLoss, Update
from workers.engines.hf_model import load_model, token_logprobs
from workers.engines.hf_scorer import HFScorer

OPTIMIZER_FILE = "optimizer.safetensors"


class HFTrainer(HFScorer):
    """A TrainEngine over a Hugging Face model with AdamW and a warm-up schedule.

    One update per global batch: gradients of every micro-batch are summed, clipped and applied once.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        *,
        clip_grad_norm: float,
        batch_size: int,
        micro_batch_size: int,
    ) -> None:
        super().__init__(model, batch_size=batch_size)
        self.optimizer = optimizer
        self.schedule = schedule
        self.clip_grad_norm = clip_grad_norm
        self.micro_batch_size = micro_batch_size
        self.updates = 0

    def forward_backward(self, batch: Batch, loss: MicroBatchLoss, temperature: float) -> float:
        """Add the gradient of the whole batch's loss; its value."""
        total = 0.0
        for start in range(0, len(batch), self.micro_batch_size):
            rows = range(start, min(start + self.micro_batch_size, len(batch)))
            micro = batch if len(rows) == len(batch) else batch.take(rows)
            ids = micro.padded("input_ids").long().to(self.model.device)
            attended = torch.arange(ids.shape[1])[None] < torch.from_numpy(micro.lengths())[:, None]
            value = loss(token_logprobs(self.model, ids, attended.to(ids.device), temperature), micro)
            if value.requires_grad:
                value.backward()
            total += float(value.detach())
        return total

    def update(self) -> Update:
        """Clip, step, advance the schedule, clear. A gradient that is not finite is an error and steps nothing."""
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

    def save(self, directory: Path) -> None:
        """A directory that transformers can load, with the optimizer's state beside the weights."""
        self.model.save_pretrained(directory)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state = {
            f"{names[parameter]}|{key}": value.cpu().contiguous()
            for parameter, entries in self.optimizer.state.items()
            for key, value in entries.items()
        }
        state["updates"] = torch.tensor(self.updates)
        state["torch_rng"] = torch.get_rng_state()
        save_file(state, directory / OPTIMIZER_FILE)

    def restore(self, directory: Path) -> None:
        """Continue from what ``save`` wrote."""
        self.model.load_state_dict(load_model(directory).state_dict())
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


def build_trainer(model_path: str, config: Any, *, max_steps: int) -> HFTrainer:
    """The trainer that *config* (a RunConfig) describes."""
    model = load_model(model_path, config.policy.dtype)
    options = config.trainer.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=options.lr,
        betas=tuple(options.betas),
        eps=options.eps,
        weight_decay=options.weight_decay,
    )
    return HFTrainer(
        model,
        optimizer,
        lr_schedule(config.trainer.scheduler, max_steps),
        clip_grad_norm=options.clip_grad_norm,
        batch_size=config.policy.logprob_batch_size,
        micro_batch_size=config.policy.train_micro_batch_size,
    )


def lr_schedule(scheduler: Any, max_steps: int) -> Callable[[int], float]:
    """Factor of the learning rate at update n = 1, 2, …: linear warm-up times the decay to ``min_lr_ratio``."""

    def factor(update: int) -> float:
        warm = min(1.0, update / max(1, scheduler.warmup_steps))
        progress = min(1.0, (update - 1) / max_steps)
        shape = {
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "linear": 1 - progress,
            "constant": 1.0,
        }[scheduler.decay]
        return warm * (scheduler.min_lr_ratio + (1 - scheduler.min_lr_ratio) * shape)

    return factor
