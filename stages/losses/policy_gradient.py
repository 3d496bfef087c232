"""The clipped policy-gradient loss over one micro-batch of a global batch.

    loss_t = w_t · surrogate_t + β · KL_t

w is the importance correction (importance.py), the surrogate REINFORCE, PPO, CISPO or GSPO (surrogate.py), the KL
that to a reference policy (reference_kl.py; off at β = 0). Reduced over the *global* batch (reduce.py): summing
losses and gradients over micro-batches and ranks gives the same as one big batch. Masked entries are replaced
before anything is computed, so nothing depends on them. The config is read by attribute; its names are NeMo-RL's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from schemas.errors import InputError
from stages.losses.counts import Counts
from stages.losses.importance import importance_weights
from stages.losses.metrics import Parts, loss_metrics
from stages.losses.reduce import Loss, reduce_rows
from stages.losses.reference_kl import reference_kl
from stages.losses.surrogate import policy_ratio, surrogate
from stages.masking import fill, trained

if TYPE_CHECKING:
    from schemas.config import ClippedPGLossConfig


@dataclass(frozen=True)
class LossBatch:
    """The columns a loss reads; [B, S], sample_mask [B]. Reference log-probs only where a KL is asked for."""

    token_mask: Tensor
    sample_mask: Tensor
    generation_logprobs: Tensor
    student_logprobs: Tensor
    advantages: Tensor
    reference_logprobs: Tensor | None = None


def policy_gradient_loss(
    current_logprobs_BS: Tensor, batch: LossBatch, counts: Counts, config: ClippedPGLossConfig
) -> Loss:
    """The loss of *batch* as its share of the global batch that *counts* describes.

    *current_logprobs_BS* carries the gradient. Computed in the wider of its type and float32.
    """
    mask = trained(batch.token_mask, batch.sample_mask)
    dtype = torch.promote_types(current_logprobs_BS.dtype, torch.float32)
    current = fill(current_logprobs_BS.to(dtype), mask)
    generation = fill(batch.generation_logprobs.to(dtype), mask)
    # A forced on-policy ratio declares that the student at the start of the step is the current one.
    student = current.detach() if config.force_on_policy_ratio else fill(batch.student_logprobs.to(dtype), mask)
    ratio = policy_ratio(current, student, mask, config)
    weights, outside = importance_weights(student, generation, mask, config)
    losses = surrogate(current, fill(batch.advantages.to(dtype), mask), ratio, config)
    if config.use_importance_sampling_correction:
        losses = weights * losses
    kl = _penalty(current, batch, mask, config)
    if kl is not None:
        losses = losses + config.reference_policy_kl_penalty * kl
    rows = reduce_rows(losses, mask, counts, config.token_level_loss)
    parts = Parts(current, student, generation, mask, ratio, weights, outside)
    metrics = loss_metrics(parts, batch.sample_mask, counts, config)
    metrics["loss"] = float(rows.detach().sum())
    penalty = torch.zeros_like(losses) if kl is None else kl.detach()
    metrics["kl_penalty"] = float(reduce_rows(penalty, mask, counts, config.token_level_loss).sum())
    return Loss(rows.sum(), metrics, rows.detach())


def _penalty(current_BS: Tensor, batch: LossBatch, mask_BS: Tensor, config: ClippedPGLossConfig) -> Tensor | None:
    if config.reference_policy_kl_penalty == 0:
        return None
    if batch.reference_logprobs is None:
        raise InputError("reference_policy_kl_penalty > 0 needs reference_logprobs, got none; set the penalty to 0")
    return reference_kl(current_BS, fill(batch.reference_logprobs.to(current_BS.dtype), mask_BS), config)
