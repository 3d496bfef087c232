"""Logits in pieces: hidden states and an LM head, multiplied a few tokens at a time.

The logits of all tokens, [N, V], are never held: at V = 151,936 a sequence of 2,048 tokens would need 1.2 GB in
float32, and a divergence several times that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from stages.losses.memory import CHUNK_NUMBERS
from stages.vocab_parallel import wide


class Logits(NamedTuple):
    """Where a distribution comes from: hidden states [N, H] with a head [V, H], or logits [N, V] and no head."""

    rows: Tensor
    head: Tensor | None = None

    @property
    def vocabulary(self) -> int:
        """How many logits a row has (on this rank)."""
        return self.rows.shape[-1] if self.head is None else len(self.head)

    def chunk(self, tokens: slice, vocabulary: int) -> Tensor:
        """Logits of some rows over the first *vocabulary* ids, in the wider of float32 and what is stored."""
        rows = self.rows[tokens]
        if self.head is None:
            return rows[:, :vocabulary].to(wide(rows.dtype))
        return project(rows, self.head[:vocabulary])


def project(rows_NH: Tensor, head_VH: Tensor) -> Tensor:
    """rows · headᵀ in at least float32, widening a narrower head block by block; [N, V]."""
    dtype = torch.promote_types(wide(rows_NH.dtype), head_VH.dtype)
    rows = rows_NH.to(dtype)
    if head_VH.dtype == dtype:
        return rows @ head_VH.T
    out = rows.new_empty(len(rows), len(head_VH))
    for block in blocks(len(head_VH), head_VH.shape[1]):
        out[:, block] = rows @ head_VH[block].to(dtype).T
    return out


def project_back(grad_NV: Tensor, head_VH: Tensor) -> Tensor:
    """grad · head, the gradient by the hidden states, block by block as in :func:`project`; [N, H]."""
    if head_VH.dtype == grad_NV.dtype:
        return grad_NV @ head_VH
    out = grad_NV.new_zeros(len(grad_NV), head_VH.shape[1])
    for block in blocks(len(head_VH), head_VH.shape[1]):
        out.addmm_(grad_NV[:, block], head_VH[block].to(grad_NV.dtype))
    return out


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices over *rows* of *width* numbers each, at most ``CHUNK_NUMBERS`` numbers in one."""
    step = max(1, CHUNK_NUMBERS // max(width, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
