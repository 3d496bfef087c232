"""Advantages: each part against hand-worked numbers, and the order they apply in."""

import math

import pytest
import torch

from schemas.config import OnPolicyDistillationConfig
from stages.advantages.discount import discount
from stages.advantages.gap import gap
from stages.advantages.global_baseline import subtract_global_baseline
from stages.advantages.opd import OPDAdvantageEstimator
from stages.advantages.proximal import proximal
from tests.stages.ragged import JUNK

MASK = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
TEACHER = torch.tensor([[9, -1, -2, 9, -0.5], [9, 9, -3, 9, 9], [9, 9, 9, 9, 9]])
STUDENT = torch.tensor([[7, -1.5, -1, 7, -0.5], [7, 7, -1, 7, 7], [7, 7, 7, 7, 7]])
GAP = torch.tensor([[0, 0.5, -1, 0, 0], [0, 0, -2, 0, 0], [0, 0, 0, 0, 0]])


def estimate(teacher=TEACHER, student=STUDENT, mask=MASK, rewards=None, **knobs):
    return OPDAdvantageEstimator(OnPolicyDistillationConfig(**knobs))(teacher, student, mask, rewards)


def test_opd_is_teacher_minus_student_at_trained_tokens():
    assert torch.equal(estimate().values_BS, GAP)


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.2, 1e-3])
def test_equal_teacher_and_student_give_exactly_zero(alpha):
    values = estimate(teacher=STUDENT, proximal_teacher_alpha=alpha, reward_shaping_scale=3.7).values_BS
    assert torch.equal(values, torch.zeros_like(values))


def test_alpha_one_is_opd_bit_for_bit():
    gaps = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 5
    assert torch.equal(proximal(gaps, 1.0), gaps)


@pytest.mark.parametrize("alpha", [0.9, 0.5, 0.2, 0.01])
def test_proximal_teacher_is_the_log_of_a_mixture(alpha):
    gaps = torch.linspace(-30, 30, 241, dtype=torch.float64)
    mixture = torch.logaddexp(math.log(alpha) + gaps, torch.full_like(gaps, math.log1p(-alpha)))
    assert torch.allclose(proximal(gaps, alpha), mixture, atol=1e-12)
    assert torch.allclose(proximal(gaps.float(), alpha).double(), mixture, rtol=1e-6, atol=1e-6)


def test_proximal_teacher_neither_overflows_nor_falls_below_its_bound():
    values = proximal(torch.tensor([-1e4, 1e4, -200.0]), 0.2)
    assert values.tolist() == pytest.approx([math.log(0.8), 1e4 + math.log(0.2), math.log(0.8)])


def test_scale_multiplies_the_mixture():
    plain, scaled = (estimate(proximal_teacher_alpha=0.5, reward_shaping_scale=s).values_BS for s in (1.0, 2.0))
    assert torch.allclose(scaled, 2 * plain)
    assert float(plain[0, 2]) == pytest.approx(math.log(0.5 * math.exp(-1) + 0.5))


def test_discount_counts_trained_tokens_and_steps_over_others():
    found = discount(GAP, MASK, 0.5)
    assert found.tolist() == [[0, 0.5 - 0.5, -1, 0, 0], [0, 0, -2, 0, 0], [0, 0, 0, 0, 0]]
    later = torch.tensor([[0, 0, 0, 0, 8.0]])
    assert discount(later, MASK[:1], 0.5).tolist() == [[0, 2, 4, 0, 8]]


def test_undiscounted_returns_do_not_see_a_neighbours_padding():
    alone = discount(torch.tensor([[0.5, -1.0]]), torch.ones(1, 2).bool(), 1.0)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    beside = discount(torch.tensor([[0.5, -1.0, 1e9, math.nan], [1.0, 2, 3, 4]]), mask, 1.0)
    assert alone.tolist() == [[-0.5, -1.0]]
    assert beside[0].tolist() == [-0.5, -1.0, 0.0, 0.0]


def test_global_baseline_is_the_mean_over_the_step_and_not_per_row():
    found = subtract_global_baseline(GAP, MASK)
    mean = (0.5 - 1 + 0 - 2) / 4
    assert torch.allclose(found[MASK], torch.tensor([0.5 - mean, -1 - mean, 0 - mean, -2 - mean]))
    assert torch.equal(found[~MASK], torch.zeros(11))


def test_global_baseline_of_nothing_is_finite_zeros():
    nothing = torch.zeros_like(MASK)
    assert torch.equal(estimate(mask=nothing, subtract_global_baseline=True).values_BS, torch.zeros(3, 5))


def test_reward_advantages_are_added_with_their_weight():
    found = estimate(rewards=torch.tensor([1.0, -2.0, 5.0]), use_orm_advantage=True, orm_advantage_weight=0.5)
    assert found.values_BS[MASK].tolist() == [0.5 + 0.5, -1 + 0.5, 0 + 0.5, -2 - 1.0]
    assert torch.equal(found.values_BS[2], torch.zeros(5))


def test_parts_apply_in_the_stated_order():
    """scale, discount, rewards, baseline, clip; every other order gives other numbers."""
    found = estimate(
        rewards=torch.tensor([1.0, 0.0, 0.0]),
        reward_shaping_scale=2.0,
        discount=0.5,
        use_orm_advantage=True,
        subtract_global_baseline=True,
        advantage_clip=[-1.0, 1.5],
    )
    # 2d = 1, -2, 0 | -4;  discounted 0, -2, 0 | -4;  + reward 1, -1, 1 | -4;  mean -0.75
    assert found.values_BS[MASK].tolist() == [1.5, -0.25, 1.5, -1.0]
    assert found.metrics["adv_mean_before_baseline"] == pytest.approx(-0.75)
    assert found.metrics["adv_mean"] == pytest.approx(0.0, abs=1e-7)
    assert found.metrics["adv_std"] == pytest.approx(torch.tensor([1.75, -0.25, 1.75, -3.25]).std().item())
    assert (found.metrics["adv_min"], found.metrics["adv_max"]) == (-1.0, 1.5)


def test_the_gap_metric_is_raw_whatever_alpha():
    metrics = estimate(proximal_teacher_alpha=0.2, reward_shaping_scale=9.0, subtract_global_baseline=True).metrics
    assert metrics["teacher_student_logprob_gap_mean"] == pytest.approx(-2.5 / 4)


def test_a_row_without_finite_teacher_keeps_only_its_reward():
    teacher = TEACHER.clone()
    teacher[0, 2] = math.nan
    found = estimate(teacher, rewards=torch.tensor([1.0, 0.0, 0.0]), use_orm_advantage=True)
    assert found.values_BS[MASK].tolist() == [1.0, 1.0, 1.0, -2.0]
    assert found.metrics["teacher_student_logprob_gap_mean"] == -2.0


@pytest.mark.parametrize("junk", JUNK)
def test_junk_at_masked_positions_changes_no_bit(junk):
    knobs = {"proximal_teacher_alpha": 0.3, "discount": 0.9, "subtract_global_baseline": True}
    clean = estimate(**knobs)
    found = estimate(TEACHER.where(MASK, junk), STUDENT.where(MASK, -junk), **knobs)
    assert torch.equal(found.values_BS, clean.values_BS) and found.metrics == clean.metrics


def test_advantages_are_constants():
    student = STUDENT.clone().requires_grad_()
    assert not gap(TEACHER, student, MASK).requires_grad


def test_a_changed_teacher_changes_the_advantage_of_that_token_only():
    teacher = TEACHER.clone()
    teacher[0, 2] += 0.25
    changed = estimate(teacher).values_BS - estimate().values_BS
    assert changed.nonzero().tolist() == [[0, 2]] and float(changed[0, 2]) == 0.25
