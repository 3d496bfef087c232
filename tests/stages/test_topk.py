"""Top-k teachers as a loss, and top-k lists compared."""

import math

import pytest
import torch

from stages.topk import TopK, top_k, topk_divergence, with_tail
from stages.topk_stats import rank_of, subsample, topk_terms


def tables(n=6, v=12, k=4):
    """(student logits, teacher logits, the teacher's k ids), float64."""
    random = torch.Generator().manual_seed(5)
    student, teacher = (2 * torch.randn(n, v, generator=random, dtype=torch.float64) for _ in range(2))
    return student, teacher, teacher.topk(k).indices


def bucketed(logits, ids):
    p = logits.softmax(-1).gather(1, ids)
    return torch.cat([p, 1 - p.sum(1, keepdim=True)], 1)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_loss_is_a_divergence_over_k_ids_and_one_bucket(direction):
    student, teacher, ids = tables()
    sides = [logits.log_softmax(-1).gather(1, ids) for logits in (student, teacher)]
    found = topk_divergence(*sides, direction)
    p, q = (bucketed(logits, ids) for logits in ((student, teacher) if direction == "reverse" else (teacher, student)))
    assert torch.allclose(found.values, (p * (p / q).log()).sum(1), atol=1e-12)
    assert torch.allclose(found.captured_mass, bucketed(teacher, ids)[:, :4].sum(1))


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_gradcheck(direction):
    student, teacher, ids = tables()
    theirs = teacher.log_softmax(-1).gather(1, ids)

    def loss(logits):
        return topk_divergence(logits.log_softmax(-1).gather(1, ids), theirs, direction).values

    assert torch.autograd.gradcheck(loss, student.requires_grad_())


def test_all_ids_make_it_the_full_reverse_kl():
    student, teacher, _ = tables()
    found = topk_divergence(student.log_softmax(-1), teacher.log_softmax(-1)).values
    full = (student.softmax(-1) * (student.log_softmax(-1) - teacher.log_softmax(-1))).sum(-1)
    assert torch.allclose(found, full, atol=1e-6)


def test_a_peaked_row_is_finite_in_value_and_gradient():
    student = torch.tensor([[0.0, -40.0]], requires_grad=True)
    teacher = torch.tensor([[-0.1, -3.0]])
    found = topk_divergence(student, teacher)
    found.values.sum().backward()
    assert found.values.isfinite().all() and student.grad.isfinite().all()
    assert float(with_tail(student.detach())[0, 2]) == pytest.approx(math.log(1e-7), rel=1e-3)


def test_equal_sides_give_exactly_zero():
    logprobs = torch.randn(5, 9).log_softmax(-1)[:, :4]
    assert torch.equal(topk_divergence(logprobs, logprobs).values, torch.zeros(5))


def test_top_k_logprobs_are_over_the_whole_vocabulary_in_float32():
    logits = torch.randn(3, 50).bfloat16()
    found = top_k(logits, 4)
    exact = logits.double().log_softmax(-1)
    assert found.logprobs.dtype == torch.float32
    assert torch.allclose(found.logprobs.double(), exact.gather(1, found.ids), atol=1e-5)
    assert torch.allclose(found.logsumexp.double(), logits.double().logsumexp(-1), atol=1e-5)


def hand_worked():
    """student {1: .6, 2: .2}, teacher {1: .5, 3: .3}; token 3 was sampled."""
    nothing = torch.zeros(1)
    student = TopK(torch.tensor([[1, 2]]), torch.tensor([[0.6, 0.2]]).log(), nothing)
    teacher = TopK(torch.tensor([[1, 3]]), torch.tensor([[0.5, 0.3]]).log(), nothing)
    return {name: float(value) for name, value in topk_terms(student, teacher, torch.tensor([3])).items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("student_head_mass", 0.8),
        ("teacher_head_mass", 0.8),
        ("student_tail_mass", 0.2),
        ("student_head_entropy", -0.6 * math.log(0.6) - 0.2 * math.log(0.2)),
        ("teacher_tail_entropy", -0.2 * math.log(0.2)),
        ("student_mass_in_teacher_topk", 0.6),
        ("teacher_mass_in_student_topk", 0.5),
        ("intersection_student_cross_entropy", -0.6 * math.log(0.5)),
        ("intersection_teacher_cross_entropy", -0.5 * math.log(0.6)),
        ("intersection_size", 1),
        ("jaccard", 1 / 3),
        ("overlap", 0.5),
        ("weighted_jaccard", 0.625 / (0.75 + 0.25 + 0.375)),
        ("top1_agreement", 1),
        ("student_rank_of_sampled", -1),
        ("teacher_rank_of_sampled", 1),
    ],
)
def test_terms_of_the_hand_worked_example(name, expected):
    assert hand_worked()[name] == pytest.approx(expected, abs=1e-6)


def test_terms_of_equal_lists():
    lists = top_k(torch.randn(4, 20), 5)
    terms = topk_terms(lists, lists, lists.ids[:, 2])
    assert torch.allclose(terms["weighted_jaccard"], torch.ones(4))
    assert torch.allclose(terms["overlap"], terms["student_head_mass"])
    assert terms["student_rank_of_sampled"].tolist() == [2] * 4


def test_rank_of_an_absent_id_is_minus_one():
    assert rank_of(torch.tensor([[7, 5], [5, 7]]), torch.tensor([5, 6])).tolist() == [1, -1]


def test_subsampling_is_even_and_stays_inside_the_mask():
    mask = torch.zeros(3, 10).bool()
    mask[0, 2:6], mask[2, 1:8] = True, True
    thin = subsample(mask, 4)
    assert int(thin.sum()) == 4 and not (thin & ~mask).any()
    assert thin.any(1).tolist() == [True, False, True]
    assert torch.equal(subsample(mask, None), mask) and torch.equal(subsample(mask, 11), mask)
