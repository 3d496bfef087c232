"""Sums and maxima over the ranks that share a vocabulary; without a group, the value itself."""

from __future__ import annotations

from torch import Tensor
from torch import distributed as dist


def all_sum(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """*values* summed over the ranks of *group*, in place."""
    if group is not None:
        dist.all_reduce(values, dist.ReduceOp.SUM, group=group)
    return values


def all_max(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The largest of *values* over the ranks of *group*, in place."""
    if group is not None:
        dist.all_reduce(values, dist.ReduceOp.MAX, group=group)
    return values
