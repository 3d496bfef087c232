"""The global baseline: subtract the mean advantage over *all* trained tokens of the step.

It needs the whole step: a first pass for the mean, a second to subtract it. A mean per chunk would be another
algorithm. A step without trained tokens stays 0.
"""

from __future__ import annotations

from torch import Tensor

from stages.masking import fill, masked_mean


def subtract_global_baseline(advantages_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Advantages minus their mean over *mask_BS*; masked tokens stay 0."""
    mean = masked_mean(advantages_BS.double(), mask_BS)
    return fill(advantages_BS - mean.to(advantages_BS.dtype), mask_BS)
