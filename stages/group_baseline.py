"""The reward baseline of a prompt group.

With leave-one-out a sample's baseline is the mean reward of the *other* valid samples of its group (RLOO,
arXiv 2402.14740), else the mean of all valid ones. With at most one valid sample it is the reward itself, so
the advantage is 0. The advantage may be divided by std + 1e-6, std unbiased over the same set as the baseline,
where std > 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_EPS = 1e-6


def group_numbers(group_ids: Sequence[str | None]) -> Tensor:
    """A number per sample, equal within a group; [B]. A sample without a group is alone."""
    seen: dict[object, int] = {}
    numbers = [seen.setdefault(row if group is None else group, len(seen)) for row, group in enumerate(group_ids)]
    return torch.tensor(numbers, dtype=torch.int64)


def group_baseline(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor, leave_one_out: bool) -> tuple[Tensor, Tensor]:
    """(baseline [B], std [B]) of the valid samples; baseline = reward and std = 0 for the others.

    Samples with equal numbers in *groups_B* form a group. Rewards of invalid samples enter no statistic.
    """
    baseline, std = rewards_B.clone(), torch.zeros_like(rewards_B)
    for group in groups_B.unique():
        rows = ((groups_B == group) & valid_B.bool()).nonzero().squeeze(1)
        if len(rows) > 1:
            baseline[rows], std[rows] = _within(rewards_B[rows], leave_one_out)
    return baseline, std


def _within(rewards_n: Tensor, leave_one_out: bool) -> tuple[Tensor, Tensor]:
    """Mean and std of the set each of the *n* samples is compared with."""
    n = len(rewards_n)
    sets = rewards_n.double().expand(n, n)
    if leave_one_out:
        sets = sets[~torch.eye(n, dtype=torch.bool, device=rewards_n.device)].view(n, n - 1)
    std = sets.std(1) if sets.shape[1] > 1 else torch.zeros_like(sets[:, 0])
    # Equal rewards must give 0 and not the rounding of their mean, which 1 / (std + 1e-6) would blow up.
    std = torch.where(sets.amax(1) == sets.amin(1), 0.0, std)
    return sets.mean(1).to(rewards_n.dtype), std.to(rewards_n.dtype)


def reward_advantages(
    rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor, *, leave_one_out: bool, normalize: bool
) -> Tensor:
    """reward - baseline of each valid sample, divided by its std when *normalize*; 0 for the others; [B]."""
    baseline, std = group_baseline(rewards_B, groups_B, valid_B, leave_one_out)
    advantage = torch.where(valid_B.bool(), rewards_B - baseline, 0.0)
    return torch.where(std > 0, advantage / (std + STD_EPS), advantage) if normalize else advantage
