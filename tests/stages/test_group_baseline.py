"""The reward baseline of a group, its edges and its use as an advantage."""

import math

import pytest
import torch

from stages.group_baseline import group_baseline, group_numbers, reward_advantages


def advantages(rewards, groups, valid=None, leave_one_out=True, normalize=False):
    valid = torch.ones(len(rewards)) if valid is None else torch.tensor(valid)
    found = reward_advantages(
        torch.tensor(rewards), group_numbers(groups), valid, leave_one_out=leave_one_out, normalize=normalize
    )
    return found.tolist()


def test_leave_one_out_compares_with_the_others():
    assert advantages([1.0, 0.0, 0.5, 4.0, 2.0], list("aaabb")) == [0.75, -0.75, 0.0, 2.0, -2.0]


def test_the_mean_of_all_when_not_leaving_one_out():
    assert advantages([1.0, 0.0, 0.5, 4.0, 2.0], list("aaabb"), leave_one_out=False) == [0.5, -0.5, 0.0, 1.0, -1.0]


def test_one_valid_sample_has_advantage_zero():
    assert advantages([3.0, 1.0, 7.0], list("aab"), valid=[1, 0, 1]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e9])
def test_an_invalid_reward_reaches_no_other(junk):
    assert advantages([1.0, junk, 0.0], list("aaa"), valid=[1, 0, 1], normalize=True) == [1.0, 0.0, -1.0]


def test_three_survivors_of_four_use_the_mean_of_three():
    assert advantages([1.0, 0.0, 0.5], ["g"] * 3, leave_one_out=False) == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_equal_rewards_are_not_divided_by_rounding_dust(leave_one_out):
    assert advantages([0.1] * 7, ["g"] * 7, leave_one_out=leave_one_out, normalize=True) == [0.0] * 7


def test_normalised_by_the_unbiased_std_of_the_same_set():
    found = advantages([1.0, 0.0, 0.5, 0.0], ["g"] * 4, normalize=True)
    assert found[0] == pytest.approx((1 - 1 / 6) / (torch.tensor([0.0, 0.5, 0.0]).std().item() + 1e-6))


def test_a_set_of_one_has_no_std_to_divide_by():
    _, std = group_baseline(torch.tensor([3.0, 1.0]), torch.tensor([0, 0]), torch.ones(2), leave_one_out=True)
    assert std.tolist() == [0.0, 0.0]


def test_samples_without_a_group_stand_alone():
    assert group_numbers(["a", None, "a", None]).unique().numel() == 3
    assert advantages([1.0, 5.0, 0.0, 9.0], ["a", None, "a", None]) == [1.0, 0.0, -1.0, 0.0]


def test_order_of_rows_does_not_matter():
    rewards, groups = [1.0, 0.0, 0.5, 4.0, 2.0], list("aaabb")
    order = [3, 0, 4, 2, 1]
    shuffled = advantages([rewards[i] for i in order], [groups[i] for i in order], normalize=True)
    assert shuffled == [advantages(rewards, groups, normalize=True)[i] for i in order]
