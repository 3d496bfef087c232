"""Per-sample numbers and step correlations."""

import math

import pytest
import torch

from stages.diagnostics import average_ranks, correlations, pearson, sample_stats, spearman

MASK = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()
GENERATION = torch.tensor([[9, -1, -2, -1.0], [9, 9, -1, 9], [9, 9, 9, 9]])
STUDENT = torch.tensor([[9, -1, -2, math.nan], [9, 9, -1, 9], [9, 9, 9, 9]])
TEACHER = torch.tensor([[9, -3, -1, -1.0], [9, 9, -0.5, 9], [9, 9, 9, 9]])


def test_gaps_are_over_finite_generated_tokens():
    stats = sample_stats(GENERATION, STUDENT, TEACHER, MASK)
    assert stats["gap_sum"].tolist()[:2] == [-1.0, 0.5]
    assert stats["gap_mean"].tolist()[:2] == [-0.5, 0.5]
    assert stats["gap_abs_mean"].tolist()[:2] == [1.5, 0.5]
    assert stats["num_tokens"].tolist() == [3, 1, 0] and stats["num_finite"].tolist() == [2, 1, 0]


def test_a_row_without_tokens_has_no_means():
    stats = sample_stats(GENERATION, STUDENT, TEACHER, MASK)
    for name in ("gap_sum", "gap_mean", "gap_abs_mean", "student_entropy", "teacher_entropy"):
        assert math.isnan(stats[name][2])


def test_entropies_are_weighted_by_the_ratio_to_the_sampler():
    stats = sample_stats(GENERATION, STUDENT, TEACHER, MASK)
    assert float(stats["student_entropy"][0]) == pytest.approx(1.5)
    assert float(stats["teacher_entropy"][0]) == pytest.approx((3 * math.exp(-2) + math.exp(1)) / 2)


def test_without_a_teacher_its_columns_are_undefined():
    stats = sample_stats(GENERATION, STUDENT, None, MASK)
    assert stats["gap_mean"].isnan().all() and float(stats["student_entropy"][1]) == 1.0


def test_ties_share_their_average_rank():
    assert average_ranks(torch.tensor([5.0, 2.0, 5.0, 9.0])).tolist() == [1.5, 0.0, 1.5, 3.0]


def test_spearman_sees_order_where_pearson_sees_lines():
    x, y = torch.tensor([1.0, 2, 3, 4]).double(), torch.tensor([1.0, 10, 100, 1000]).double()
    assert spearman(x, y) == pytest.approx(1.0)
    assert pearson(x, y) == pytest.approx(torch.corrcoef(torch.stack([x, y]))[0, 1].item())
    assert pearson(x, y) < 0.9


@pytest.mark.parametrize("values", [[], [3.0], [0.1, 0.1, 0.1]])
def test_a_correlation_that_is_undefined_is_nan(values):
    flat = torch.tensor(values).double()
    rising = torch.arange(len(values)).double()
    assert math.isnan(pearson(flat, rising)) and math.isnan(spearman(rising, flat))


def test_correlations_use_the_given_rows_with_finite_numbers():
    stats = {name: torch.tensor([1.0, 2.0, 3.0, 50.0]) for name in ("gap_mean", "gap_abs_mean", "student_entropy")}
    stats |= {"reward": torch.tensor([3.0, 2.0, 1.0, 99.0]), "teacher_entropy": torch.tensor([1.0, math.nan, 2.0, 0.0])}
    found = correlations(stats, torch.tensor([True, True, True, False]))
    assert found["pearson_reward_gap"] == pytest.approx(-1.0)
    assert found["spearman_gap_teacher_entropy"] == pytest.approx(1.0)
    assert len(found) == 12
