"""From token losses to the batch's loss, normalised over the global batch.

    token level     Σ_t loss_t / (N_tok + 1e-8)
    sequence level  Σ_rows mean_t(loss_t) / (N_seq + 1e-8)

Returned per row, so that their sum over rows, micro-batches and ranks is the loss of the global batch.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from stages.losses.counts import Counts
from stages.masking import EPS, masked_mean, masked_sum


class Loss(NamedTuple):
    """``loss`` is the scalar to differentiate; ``row_losses_B`` sums to it (detached)."""

    loss: Tensor
    metrics: dict[str, float]
    row_losses_B: Tensor


def reduce_rows(values_BS: Tensor, mask_BS: Tensor, counts: Counts, token_level: bool) -> Tensor:
    """Each row's share of the loss; [B]."""
    if token_level:
        return masked_sum(values_BS, mask_BS, dim=1) / (counts.num_tokens + EPS)
    return masked_mean(values_BS, mask_BS, dim=1) / (counts.num_samples + EPS)
