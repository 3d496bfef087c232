"""Policy gradient on sampled tokens: the loss of stages/losses/policy_gradient.py over stored columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from schemas.batch import Batch
from schemas.config import ClippedPGLossConfig
from stages.losses.counts import Counts
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss
from stages.losses.reduce import Loss
from stages.protocols import TrainEngine

_COLUMNS = ("generation_logprobs", "student_logprobs", "advantages")


@dataclass
class PolicyGradient:
    """Advantages weigh the tokens that were sampled. Reads the reference policy only with a KL penalty to it."""

    config: ClippedPGLossConfig = field(default_factory=ClippedPGLossConfig)
    temperature: float = 1.0

    @property
    def reads(self) -> tuple[str, ...]:
        return ("input_ids", "token_mask", "sample_mask", *_COLUMNS, *self._reference)

    @property
    def _reference(self) -> tuple[str, ...]:
        return ("reference_logprobs",) if self.config.reference_policy_kl_penalty else ()

    def __call__(self, engine: TrainEngine, batch: Batch, counts: Counts) -> list[Loss]:
        results: list[Loss] = []

        def loss(current_logprobs_BS: torch.Tensor, micro: Batch) -> torch.Tensor:
            columns = self._columns(micro, current_logprobs_BS.device)
            results.append(policy_gradient_loss(current_logprobs_BS, columns, counts, self.config))
            return results[-1].loss

        engine.forward_backward(batch, loss, self.temperature)
        return results

    def _columns(self, micro: Batch, device: torch.device) -> LossBatch:
        named = {name: micro.padded(name).to(device) for name in ("token_mask", *_COLUMNS, *self._reference)}
        return LossBatch(sample_mask=micro.tensor("sample_mask").to(device), **named)
