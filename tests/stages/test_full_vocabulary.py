"""Full-vocabulary distillation against the whole softmax in float64, and what it must not depend on."""

import pytest
import torch

from schemas.errors import InputError
from stages.losses.chunked_divergence import FullVocabulary, decomposition_residual, full_vocabulary_divergence
from stages.losses.counts import Counts
from stages.losses.divergences import Divergence, divergence_of
from stages.losses.full_vocabulary import (
    FullBatch,
    decomposition_error,
    full_vocabulary_loss,
    mixed_teachers,
    shift_states,
)
from stages.losses.projection import Logits, project, project_back
from tests.stages.ragged import JUNK

KINDS = [Divergence("reverse_kl"), Divergence("forward_kl"), Divergence("jsd", 0.3), Divergence("jsd", 0.9)]


def problem(n=7, width=3, teacher_width=5, student_ids=11, teacher_ids=11, dtype=torch.float64, seed=0):
    """(student rows, student head, teacher rows, teacher head), the student's with a gradient."""
    random = torch.Generator().manual_seed(seed)
    sizes = [(n, width), (student_ids, width), (n, teacher_width), (teacher_ids, teacher_width)]
    rows, head, theirs, their_head = (torch.randn(size, generator=random, dtype=dtype) for size in sizes)
    return rows.requires_grad_(), head.requires_grad_(), theirs, their_head


def reference(kind, student, teacher):
    """The divergence from whole probability tables."""
    p, q = torch.softmax(student, -1), torch.softmax(teacher, -1)
    if kind.kind == "reverse_kl":
        return (p * (p / q).log()).sum(-1)
    if kind.kind == "forward_kl":
        return (q * (q / p).log()).sum(-1)
    m = (1 - kind.beta) * p + kind.beta * q
    return kind.beta * (q * (q / m).log()).sum(-1) + (1 - kind.beta) * (p * (p / m).log()).sum(-1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_value_and_gradients_are_those_of_the_whole_softmax(kind, chunk):
    rows, head, theirs, their_head = problem()
    weights = torch.linspace(0.5, 2, 7).double()
    how = FullVocabulary(kind, chunk_size=chunk)
    found = full_vocabulary_divergence(Logits(rows, head), Logits(theirs, their_head), how)
    expected = reference(kind, rows @ head.T, theirs @ their_head.T)
    assert torch.allclose(found, expected, atol=1e-12)
    grads = torch.autograd.grad(found @ weights, (rows, head))
    for mine, other in zip(grads, torch.autograd.grad(expected @ weights, (rows, head)), strict=True):
        assert torch.allclose(mine, other, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradcheck(kind):
    rows, head, theirs, their_head = problem(n=4, student_ids=6, teacher_ids=6)
    how = FullVocabulary(kind, chunk_size=3)

    def divergence(rows, head):
        return full_vocabulary_divergence(Logits(rows, head), Logits(theirs, their_head), how)

    assert torch.autograd.gradcheck(divergence, (rows, head))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_logits_payload_divides_both_sides_by_the_temperature(kind):
    student = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 9, dtype=torch.float64)
    how = FullVocabulary(kind, temperature=0.5, chunk_size=2)
    found = full_vocabulary_divergence(Logits(student), Logits(teacher), how)
    expected = reference(kind, student / 0.5, teacher / 0.5)
    assert torch.allclose(found, expected, atol=1e-12)
    mine, other = (torch.autograd.grad(value.sum(), student)[0] for value in (found, expected))
    assert torch.allclose(mine, other, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_self_distillation_is_exactly_zero_in_float32(kind):
    rows, head, _, _ = problem(dtype=torch.float32)
    how = FullVocabulary(kind, chunk_size=2)
    found = full_vocabulary_divergence(Logits(rows, head), Logits(rows.detach(), head.detach()), how)
    grads = torch.autograd.grad(found.sum(), (rows, head))
    assert torch.equal(found, torch.zeros(7)) and not any(grad.any() for grad in grads)


def test_hand_worked_reverse_kl():
    student, teacher = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.5, 0.5]]).log()
    found = full_vocabulary_divergence(Logits(student), Logits(teacher), FullVocabulary())
    assert float(found) == pytest.approx(0.6 * 0.182321557 + 0.4 * -0.223143551, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("student_ids", "teacher_ids"), [(11, 16), (16, 11), (13, 16)])
def test_padded_heads_give_the_unpadded_answer(kind, student_ids, teacher_ids):
    rows, head, theirs, their_head = problem(student_ids=16, teacher_ids=16)
    plain = full_vocabulary_divergence(Logits(rows, head[:11]), Logits(theirs, their_head[:11]), FullVocabulary(kind))
    padded = full_vocabulary_divergence(
        Logits(rows, head[:student_ids]), Logits(theirs, their_head[:teacher_ids]), FullVocabulary(kind, vocabulary=11)
    )
    assert torch.equal(padded, plain)
    grad = torch.autograd.grad(padded.sum(), head)[0]
    assert not grad[11:].any() and grad[:11].any()


def test_a_head_without_the_shared_ids_is_refused():
    rows, head, theirs, their_head = problem(teacher_ids=8)
    with pytest.raises(InputError, match="expected 11 ids on this rank, got student 11, teacher 8"):
        full_vocabulary_divergence(Logits(rows, head), Logits(theirs, their_head), FullVocabulary(vocabulary=11))


def test_a_token_the_teacher_cannot_produce_sends_no_nan_where_the_student_cannot_either():
    student = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    teacher = torch.tensor([[1.0, 1.0, -torch.inf]])
    for kind in KINDS:
        found = full_vocabulary_divergence(Logits(student), Logits(teacher), FullVocabulary(kind))
        grad = torch.autograd.grad(found.sum(), student)[0]
        assert found.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_payload_is_compared_in_float32(dtype):
    rows, head, theirs, their_head = (x.detach().to(dtype).requires_grad_(x.requires_grad) for x in problem())
    found = full_vocabulary_divergence(Logits(rows, head), Logits(theirs, their_head), FullVocabulary())
    expected = reference(KINDS[0], rows.double() @ head.double().T, theirs.double() @ their_head.double().T)
    assert found.dtype == torch.float32 and torch.allclose(found.double(), expected, atol=1e-5)
    found.sum().backward()
    assert rows.grad.dtype == head.grad.dtype == dtype


def test_a_narrow_head_is_widened_block_by_block(monkeypatch):
    monkeypatch.setattr("stages.losses.projection.CHUNK_NUMBERS", 12)
    rows, head, *_ = problem(dtype=torch.float32)
    narrow = head.detach().bfloat16()
    logits = project(rows, narrow)
    assert torch.allclose(logits, rows @ narrow.float().T)
    assert torch.allclose(project_back(logits, narrow), logits @ narrow.float(), atol=1e-6)


def test_each_token_is_compared_with_its_own_teacher():
    rows, head, theirs, their_head = problem()
    narrow = torch.randn(11, 2, dtype=torch.float64)  # a narrower second teacher
    index = torch.tensor([1, 0, 0, 1, 0, 1, 0])
    found = mixed_teachers(Logits(rows, head), theirs, [their_head, narrow], index, FullVocabulary())
    logits = [theirs @ their_head.T, theirs[:, :2] @ narrow.T]
    expected = torch.stack([reference(KINDS[0], rows[n] @ head.T, logits[i][n]) for n, i in enumerate(index.tolist())])
    assert torch.allclose(found, expected, atol=1e-12)
    mine, other = (torch.autograd.grad(value.sum(), (rows, head)) for value in (found, expected))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(mine, other, strict=True))


def test_an_index_without_a_head_is_refused():
    rows, head, theirs, their_head = problem()
    with pytest.raises(InputError, match="teacher_index 2: expected one of the 1 recorded"):
        mixed_teachers(Logits(rows, head), theirs, [their_head], torch.full((7,), 2), FullVocabulary())


MASK = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 1, 0]]).bool()
SAMPLES = torch.tensor([True, True, False])
INDEX = torch.tensor([0, 1, 1])


def batch_loss(rows=(0, 1, 2), junk=None, token_level=True, teacher_seed=1):
    """(loss, gradient by the states, metrics) of some rows of one global batch."""
    random = torch.Generator().manual_seed(teacher_seed)
    payload = torch.randn(3, 5, 4, generator=random, dtype=torch.float64)
    heads = [torch.randn(9, 4, generator=random, dtype=torch.float64) for _ in range(2)]
    states, head, *_ = problem(n=15, student_ids=9)
    states = states.detach().view(3, 5, 3)
    if junk is not None:
        inside = (MASK & SAMPLES[:, None])[..., None]
        states, payload = states.where(inside, junk), payload.where(inside, junk)
    picked = list(rows)
    states = states[picked].clone().requires_grad_()
    batch = FullBatch(MASK[picked], SAMPLES[picked], payload[picked], INDEX[picked], heads)
    counts, how = Counts.of(MASK, SAMPLES), FullVocabulary(chunk_size=2)
    result = full_vocabulary_loss(states, head, batch, counts, how, token_level=token_level)
    result.loss.backward()
    return result.loss.detach(), states.grad, result.metrics


@pytest.mark.parametrize("junk", JUNK)
def test_junk_at_masked_positions_changes_no_bit(junk):
    clean, found = batch_loss(), batch_loss(junk=junk)
    assert torch.equal(found[0], clean[0]) and torch.equal(found[1], clean[1]) and found[2] == clean[2]


@pytest.mark.parametrize("token_level", [True, False])
def test_micro_batches_sum_to_the_batch(token_level):
    whole = batch_loss(token_level=token_level)
    parts = [batch_loss(rows, token_level=token_level) for rows in ([2], [1, 0])]
    assert float(parts[0][0] + parts[1][0]) == pytest.approx(float(whole[0]), abs=1e-12)
    assert torch.allclose(torch.cat([parts[1][1].flip(0), parts[0][1]]), whole[1], atol=1e-12)


def test_only_trained_tokens_get_a_gradient_and_the_teacher_matters():
    _, grad, _ = batch_loss()
    assert torch.equal(grad.abs().sum(-1) > 0, MASK & SAMPLES[:, None])
    assert not torch.allclose(grad, batch_loss(teacher_seed=2)[1])


def test_nothing_trained_is_a_finite_zero():
    states = torch.randn(2, 4, 3, requires_grad=True)
    batch = FullBatch(torch.zeros(2, 4).bool(), torch.ones(2), torch.randn(2, 4, 6))
    result = full_vocabulary_loss(states, torch.randn(6, 3), batch, Counts(0, 0), FullVocabulary())
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0 and not states.grad.any()


def test_states_predict_the_next_token():
    states = torch.arange(6.0).view(1, 3, 2)
    assert shift_states(states).tolist() == [[[0, 0], [0, 1], [2, 3]]]


def test_decomposition_agrees_with_the_divergence():
    rows, head, theirs, their_head = problem()
    residual = decomposition_residual(Logits(rows, head), Logits(theirs, their_head), FullVocabulary(chunk_size=3))
    assert residual.shape == (7,) and residual.max() < 1e-12


def test_a_divergence_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="use forward_kl"):
        Divergence("jsd", 0.0)
    with pytest.raises(InputError, match="expected reverse_kl, forward_kl or jsd"):
        Divergence("kl")


@pytest.mark.parametrize(("beta", "kind"), [(0.0, "forward_kl"), (1.0, "reverse_kl"), (0.4, "jsd")])
def test_the_ends_of_the_generalised_jsd_are_the_kls_themselves(beta, kind):
    assert divergence_of("jsd", beta).kind == kind
    assert divergence_of("forward_kl", 0.5) == Divergence("forward_kl")


def test_the_decomposition_error_sees_only_trained_tokens():
    rows, head, theirs, their_head = problem(n=6, dtype=torch.float32)
    payload = theirs.view(2, 3, 5).clone()
    payload[1] = float("nan")
    batch = FullBatch(torch.ones(2, 3).bool(), torch.tensor([True, False]), payload, torch.tensor([0, 0]), [their_head])
    assert 0 <= decomposition_error(rows.detach().view(2, 3, 3), head, batch, FullVocabulary()) < 1e-5
