"""Rows behind each other in one line of tokens, and the same line shared by context-parallel ranks.

Context parallelism gives each of n ranks two of the 2n pieces of a row, one from the front and one from the back, so
that causal attention costs all of them the same ("zig-zag"). A row of eight tokens over two ranks:

    tokens   a b | c d | e f | g h        rank 0: a b g h        rank 1: c d e f

Every row is padded to a multiple of 2n tokens first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def padded_length(length: int, multiple: int) -> int:
    """*length*, or the next multiple."""
    return length + -length % multiple


def row_multiple(tensor: int, context: int, *, sequence_parallel: bool = False) -> int:
    """What a line of tokens is padded to: two pieces for each context rank, shared again by tensor ranks."""
    return (2 * context if context > 1 else 1) * (tensor if sequence_parallel else 1)


def starts(lengths: Sequence[int], multiple: int = 1) -> list[int]:
    """Where each row starts in a line of rows padded to *multiple*, and where the line ends."""
    ends = torch.tensor([padded_length(length, multiple) for length in lengths], dtype=torch.long).cumsum(0)
    return [0, *ends.tolist()]


def places(lengths: Sequence[int], multiple: int = 1) -> Tensor:
    """Place in the line of every token of every row, without the padding; [total tokens]."""
    begin = starts(lengths, multiple)
    return torch.cat([torch.arange(start, start + n) for start, n in zip(begin, lengths, strict=False)] or [_NOTHING])


_NOTHING = torch.zeros(0, dtype=torch.long)


def block_causal_mask(lengths: Sequence[int], multiple: int = 1) -> Tensor:
    """Which places of a line must not be seen from which: later ones, and those of other rows. [T, T], True = unseen.

    The padding of a row counts to it.
    """
    begin = torch.tensor(starts(lengths, multiple))
    total = int(begin[-1])
    row = torch.searchsorted(begin, torch.arange(total), right=True)
    later = torch.ones(total, total, dtype=torch.bool).triu(1)
    return later | (row[:, None] != row[None, :])


def zigzag(length: int, rank: int, size: int) -> Tensor:
    """The places that *rank* of *size* holds of a row of *length* tokens (a multiple of 2·size)."""
    pieces = torch.arange(length).chunk(2 * size) if size > 1 else [torch.arange(length)]
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]]) if size > 1 else pieces[0]


def packed_zigzag(lengths: Sequence[int], rank: int, size: int, multiple: int = 1) -> Tensor:
    """The places of a packed line that *rank* holds, row by row."""
    begin = starts(lengths, multiple)
    return torch.cat([start + zigzag(stop - start, rank, size) for start, stop in pairwise(begin)] or [_NOTHING])


def gather_packed(shards: Sequence[Tensor], lengths: Sequence[int], multiple: int = 1) -> list[Tensor]:
    """What each row got, [length, …], from what every context rank holds of the line, [its places, …]."""
    size = len(shards)
    line = shards[0].new_empty((starts(lengths, multiple)[-1], *shards[0].shape[1:]))
    for rank, shard in enumerate(shards):
        line[packed_zigzag(lengths, rank, size, multiple)] = shard
    begin = starts(lengths, multiple)
    return [line[start : start + length] for start, length in zip(begin, lengths, strict=False)]
