"""Masked arithmetic that cannot leak: what is masked is replaced *before* it is computed with.

``exp(x) * mask`` keeps a NaN when x is infinite, and ``where(mask, exp(x), 0)`` still sends a NaN gradient
back. Replacing the input, ``exp(fill(x, mask))``, does neither: values at masked positions change no bit of
a result or of a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Keeps 0 / 0 finite; below one half of the spacing of float32 at 1, so it changes no other mean.
EPS = 1e-8


def trained(token_mask_BS: Tensor, sample_mask_B: Tensor) -> Tensor:
    """Tokens that take part in the loss: token_mask and sample_mask; bool [B, S]."""
    return token_mask_BS.bool() & sample_mask_B.bool()[:, None]


def fill(values: Tensor, mask: Tensor, value: float = 0.0) -> Tensor:
    """*values* with *value* wherever *mask* is false, in value and in gradient."""
    return torch.where(mask, values, value)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of *values* where *mask*; over everything, or over *dim*."""
    return fill(values, mask).sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of *values* where *mask*; 0 where nothing is left."""
    return masked_sum(values, mask, dim) / (mask.sum(dim) + EPS)


def masked_std(values: Tensor, mask: Tensor) -> Tensor:
    """Unbiased standard deviation where *mask*; 0 below two values."""
    count = mask.sum()
    deviation = fill(values - masked_mean(values, mask), mask)
    return (deviation.square().sum() / (count - 1).clamp(min=1)).sqrt()
