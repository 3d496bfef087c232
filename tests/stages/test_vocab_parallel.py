"""Logits cut over two ranks give the numbers and gradients of one; the teacher is another model than the student."""

import tempfile

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing as mp

from stages.losses import chunked_divergence
from stages.losses.chunked_divergence import FullVocabulary, full_vocabulary_divergence
from stages.losses.divergences import Divergence
from stages.losses.projection import Logits
from stages.vocab_parallel import distributed_vocab_logsumexp, vocab_parallel_logprobs, vocab_parallel_reverse_kl

IDS = torch.tensor([0, 4, 5, 9, 3])
#: Eleven real ids in heads padded to 14, cut 8 | 6: the second rank holds three rows of padding.
CUT, REAL, PADDED = 8, 11, 14
KINDS = ("reverse_kl", "forward_kl", "jsd")


def tables():
    random = torch.Generator().manual_seed(3)
    sizes = [(5, REAL), (5, REAL), (5, 3), (PADDED, 3), (5, 4), (PADDED, 4)]
    return [torch.randn(size, generator=random, dtype=torch.float64) for size in sizes]


def functions(ids, first, group):
    """The three functions of two tables of logits."""
    return [
        lambda s, t: distributed_vocab_logsumexp(s, group),
        lambda s, t: vocab_parallel_logprobs(s, ids, first, group),
        lambda s, t: vocab_parallel_reverse_kl(s, t, group),
    ]


def on_rank(rank, group):
    """Every result and gradient over this rank's slice of the vocabulary (everything without a group)."""
    student, teacher, rows, head, theirs, their_head = tables()
    ids = slice(None) if group is None else slice(0, CUT) if rank == 0 else slice(CUT, None)
    first, out = (ids.start or 0), []
    for function in functions(IDS, first, group):
        logits = student[:, ids].clone().requires_grad_()
        value = function(logits, teacher[:, ids])
        out += [value.detach(), torch.autograd.grad(value @ torch.arange(1.0, 6).double(), logits)[0]]
    for kind in KINDS:
        how = FullVocabulary(Divergence(kind), vocabulary=REAL, first_id=first, group=group)
        mine, shard = rows.clone().requires_grad_(), head[ids].clone().requires_grad_()
        value = full_vocabulary_divergence(Logits(mine, shard), Logits(theirs, their_head[ids]), how)
        out += [value.detach(), *torch.autograd.grad(value.sum(), (mine, shard))]
    return out


def one_rank(rank, init, out):
    chunked_divergence.CHUNK_NUMBERS = 12  # two tokens a chunk, on ranks with unequal shares
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=2)
    out[rank] = [value.tolist() for value in on_rank(rank, dist.group.WORLD)]
    dist.destroy_process_group()


def test_two_ranks_equal_one():
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        out = manager.dict()
        mp.spawn(one_rank, args=(f"{folder}/init", out), nprocs=2)
        halves = [[torch.tensor(value, dtype=torch.float64) for value in out[rank]] for rank in (0, 1)]
    for whole, first, second in zip(on_rank(0, None), *halves, strict=True):
        if whole.shape == first.shape:  # the same on every rank
            assert torch.allclose(first, whole, atol=1e-12) and torch.equal(first, second)
        else:  # a gradient, cut like the logits or the head
            dim = 1 if whole.shape[1] == REAL else 0
            assert torch.allclose(torch.cat([first, second], dim), whole, atol=1e-12)


def test_logsumexp_and_logprobs_are_torchs():
    student, *_ = tables()
    assert torch.allclose(distributed_vocab_logsumexp(student), student.logsumexp(-1))
    expected = student.log_softmax(-1)[torch.arange(5), IDS]
    assert torch.allclose(vocab_parallel_logprobs(student, IDS), expected)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradcheck(which):
    student, teacher, *_ = tables()
    function = functions(IDS, 0, None)[which]
    assert torch.autograd.gradcheck(lambda s: function(s, teacher), student.requires_grad_())


def test_bfloat16_logits_are_summed_in_float32():
    logits = torch.randn(4, 1000).bfloat16()
    assert torch.allclose(distributed_vocab_logsumexp(logits), logits.float().logsumexp(-1), atol=1e-5)
