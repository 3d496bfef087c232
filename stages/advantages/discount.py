"""Discounted future advantages: A_t = Σ_{k ≥ t} gamma^(k - t) · A_k, k - t counted in trained tokens.

A token answers for what it leads to, as in MiniLLM (arXiv 2306.08543). Tool tokens between two generated ones
neither add a term nor cost a factor gamma.
"""

from __future__ import annotations

import torch
from torch import Tensor


def discount(advantages_BS: Tensor, mask_BS: Tensor, gamma: float) -> Tensor:
    """Discounted sums from the right over the tokens in *mask_BS*; 0 elsewhere."""
    out = torch.zeros_like(advantages_BS)
    running = advantages_BS.new_zeros(len(advantages_BS))
    for t in reversed(range(advantages_BS.shape[1])):
        here = mask_BS[:, t]
        running = torch.where(here, advantages_BS[:, t] + gamma * running, running)
        out[:, t] = torch.where(here, running, 0.0)
    return out
