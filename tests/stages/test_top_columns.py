"""Top-k lists survive the way into columns and back, at the tokens they belong to."""

import pytest
import torch

from schemas.batch import Batch
from schemas.errors import InputError
from stages.losses.counts import Counts
from stages.losses.top_k import TopKBatch, logprobs_at, topk_loss
from stages.top_columns import TopColumn, ids_column, logprobs_column, logsumexp_column, read_top
from stages.topk import TopK, top_k, topk_divergence
from tests.stages.ragged import JUNK

MASKS = [[False, True, False, True], [False, True]]


def batch(masks=MASKS, seed=0):
    """(batch with two top-k columns, the lists it was made of)."""
    torch.manual_seed(seed)
    tops = [top_k(torch.randn(sum(mask), 9), 3) for mask in masks]
    columns = {"teacher_topk_ids": ids_column(tops, masks), "teacher_topk_logprobs": logprobs_column(tops, masks)}
    return Batch.of(["a", "b"], columns), tops


def test_lists_stand_at_their_tokens_and_nowhere_else():
    made, tops = batch()
    assert [[len(ids) for ids in row] for row in made.values("teacher_topk_ids")] == [[0, 3, 0, 3], [0, 3]]
    assert made.values("teacher_topk_ids")[0][3] == tops[0].ids[1].tolist()


def test_read_back_in_the_order_of_tokens_also_when_rows_are_taken():
    made, tops = batch()
    read = read_top(made.take([1, 0]), "teacher_topk_ids", "teacher_topk_logprobs", width=5)
    assert read.picked_BS.tolist() == [[False, True, False, False, False], [False, True, False, True, False]]
    ids, logprobs = read.at(torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]]).bool())
    assert ids.tolist() == tops[0].ids[1:].tolist() and torch.equal(logprobs, tops[0].logprobs[1:])


def test_a_trained_token_without_a_list_is_an_error():
    read = read_top(batch()[0], "teacher_topk_ids", "teacher_topk_logprobs")
    with pytest.raises(InputError, match="row 0: a trained token has no top-k list"):
        read.at(torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]).bool())


def test_the_logsumexp_of_other_tokens_is_zero():
    _, tops = batch()
    first = logsumexp_column(tops, MASKS)[0]
    assert first.tolist()[::2] == [0.0, 0.0] and torch.equal(first[[1, 3]], tops[0].logsumexp)


def test_a_batch_without_any_list_is_read_as_such():
    made, _ = batch([[False, False], [False]])
    read = read_top(made, "teacher_topk_ids", "teacher_topk_logprobs")
    assert not read.picked_BS.any() and read.picked_BS.shape == (2, 2)


def problem(junk=None, dtype=torch.float64):
    torch.manual_seed(3)
    states, head = torch.randn(2, 4, 5, dtype=dtype), torch.randn(9, 5, dtype=dtype, requires_grad=True)
    made, _ = batch()
    token_mask = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0]]).bool()
    if junk is not None:
        states = states.where(token_mask[..., None], junk)
    read = read_top(made, "teacher_topk_ids", "teacher_topk_logprobs")
    teacher = TopColumn(read.picked_BS, read.ids_NK, read.logprobs_NK.to(dtype))
    return states.requires_grad_(), head, TopKBatch(token_mask, torch.tensor([True, True]), teacher)


def test_the_loss_is_the_mean_divergence_over_trained_tokens():
    states, head, columns = problem()
    found = topk_loss(states, head, columns, Counts(3, 2), temperature=0.5)
    mask = columns.token_mask
    student = (states[mask] @ head.T / 0.5).log_softmax(-1)
    expected = topk_divergence(student.gather(1, columns.teacher.ids_NK.long()), columns.teacher.logprobs_NK).values
    assert float(found.loss.detach()) == pytest.approx(float(expected.mean().detach()), rel=1e-7)
    mine, other = (torch.autograd.grad(x, (states, head), retain_graph=True) for x in (found.loss, expected.mean()))
    assert all(torch.allclose(a, b, rtol=1e-7) for a, b in zip(mine, other, strict=True))


@pytest.mark.parametrize("junk", JUNK)
def test_junk_at_masked_positions_changes_no_bit(junk):
    results = []
    for filler in (None, junk):
        states, head, columns = problem(filler)
        loss = topk_loss(states, head, columns, Counts(3, 2)).loss
        results.append((loss.detach(), *torch.autograd.grad(loss, (states, head))))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_nothing_trained_is_a_finite_zero_with_a_graph():
    states, head, columns = problem()
    nobody = TopKBatch(columns.token_mask, torch.tensor([False, False]), columns.teacher)
    found = topk_loss(states, head, nobody, Counts(0, 0))
    found.loss.backward()
    assert float(found.loss.detach()) == 0.0 and not states.grad.any() and not head.grad.any()


def test_chunks_do_not_show(monkeypatch):
    states, head, ids = torch.randn(7, 5), torch.randn(9, 5), torch.randint(9, (7, 2))
    whole = logprobs_at(states, head, ids, 1.0)
    monkeypatch.setattr("stages.losses.projection.CHUNK_NUMBERS", 20)
    assert torch.allclose(logprobs_at(states, head, ids, 1.0), whole, atol=1e-6)


def test_lists_of_two_lengths_are_refused():
    tops = [TopK(torch.tensor([[1, 2]]), torch.zeros(1, 2), torch.zeros(1)), top_k(torch.randn(1, 9), 3)]
    masks = [[True], [True]]
    columns = {"teacher_topk_ids": ids_column(tops, masks), "teacher_topk_logprobs": logprobs_column(tops, masks)}
    with pytest.raises(InputError, match=r"expected lists of one length, got \[2, 3\]"):
        read_top(Batch.of(["a", "b"], columns), "teacher_topk_ids", "teacher_topk_logprobs")
