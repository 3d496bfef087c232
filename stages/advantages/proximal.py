"""The proximal teacher: distil from a mixture of teacher and student instead of the teacher itself.

With d = log p_T - log p_S and alpha in (0, 1], the advantage is

    log(alpha·p_T + (1 - alpha)·p_S) - log p_S  =  log(alpha·e^d + 1 - alpha)

which is at least log(1 - alpha), so one token that the teacher finds absurd cannot rule the step. It is computed as

    d ≤ 0:  log1p(alpha·expm1(d))                d > 0:  d + log(alpha + (1 - alpha)·e^-d)

which neither overflows nor leaves rounding dust at d = 0. alpha = 1 is OPD bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor


def proximal(gap_BS: Tensor, alpha: float) -> Tensor:
    """log(alpha·e^d + 1 - alpha) of the gap *d*; any shape."""
    if alpha == 1.0:
        return gap_BS
    below = torch.log1p(alpha * torch.expm1(gap_BS.clamp(max=0.0)))
    above = gap_BS + torch.log(alpha + (1.0 - alpha) * torch.exp(-gap_BS.clamp(min=0.0)))
    return torch.where(gap_BS > 0, above, below)
