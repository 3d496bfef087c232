"""Lines of tokens that context-parallel ranks share: cut for the model, and put together again behind it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from workers.engines.megatron.layout import Place
from workers.engines.megatron.packing import packed_zigzag
from workers.engines.megatron.vocabulary import gathered


def places_here(bounds: list[int], context: Place) -> list[Tensor]:
    """The places in a line that each context rank holds; *bounds* are where its rows start, and its end."""
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return [packed_zigzag(lengths, rank, context.size) for rank in range(context.size)]


def whole_line(part_SBH: Tensor, places: list[Tensor], context: Place) -> Tensor:
    """The states of all places, on every rank. Each rank takes the same gradient of the whole.

    That is of one rank's parameters only what its own places say, times the ranks: the optimizer takes the mean.
    """
    whole: Tensor = _Whole.apply(part_SBH, places, context.rank, context.group)
    return whole


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, places: list[Tensor], rank: int, group: dist.ProcessGroup) -> Tensor:
        ctx.mine, ctx.ranks = places[rank].to(part.device), len(places)
        line = part.new_empty(sum(map(len, places)), *part.shape[1:])
        for at, states in zip(places, gathered(part, group), strict=True):
            line[at.to(part.device)] = states
        return line

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad[ctx.mine] * ctx.ranks, None, None, None
