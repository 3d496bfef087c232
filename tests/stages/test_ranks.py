"""Two data-parallel ranks with uneven counts give the loss and gradient of one."""

import tempfile

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing as mp

from stages.losses.counts import Counts
from stages.losses.policy_gradient import policy_gradient_loss
from tests.stages.ragged import CONFIGS, ragged_batch, rows_of

NAMES = ("reinforce icepop", "gspo", "k3")


def gradient_of(weight, batch, current, counts, config):
    """A one-parameter model: current log-probs times *weight*. (loss, its gradient)"""
    weight = weight.clone().requires_grad_()
    result = policy_gradient_loss(weight * current, batch, counts, config)
    result.loss.backward()
    return torch.stack([result.loss.detach(), weight.grad])


def one_rank(rank, init, shares, out):
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=2)
    batch, current = ragged_batch()
    batch, current = rows_of(batch, shares[rank]), current[shares[rank]]
    counts = Counts.of(batch.token_mask, batch.sample_mask).over_ranks()
    found = [gradient_of(torch.tensor(1.1).double(), batch, current, counts, CONFIGS[name]) for name in NAMES]
    total = torch.stack(found)
    dist.all_reduce(total)  # summed, not averaged
    out[rank] = total.tolist()
    dist.destroy_process_group()


@pytest.mark.parametrize("shares", [([0, 3, 4], [1, 2]), ([3], [4, 2, 1, 0])], ids=["one without tokens", "uneven"])
def test_ranks_sum_to_one_rank(shares):
    batch, current = ragged_batch()
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    alone = [gradient_of(torch.tensor(1.1).double(), batch, current, counts, CONFIGS[name]) for name in NAMES]
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        out = manager.dict()
        mp.spawn(one_rank, args=(f"{folder}/init", shares, out), nprocs=2)
        assert torch.allclose(torch.tensor(out[0]).double(), torch.stack(alone), atol=1e-6)
        assert out[0] == out[1]
