"""The batch that everything is measured with: 512 rows of three jagged columns, about 10 MB."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

COLUMNS = ("input_ids", "generation_logprobs", "teacher_logprobs")


def batch(rows: int = 512, low: int = 200, high: int = 3200, seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """``(values, offsets)`` of each column as contiguous tensors; row lengths are drawn from *low* … *high*."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(low, high, rows, endpoint=True)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))))
    size = int(offsets[-1])
    ids = torch.from_numpy(draw.integers(0, 150_000, size).astype(np.int32))
    values = [ids, *(torch.from_numpy(-draw.random(size, dtype=np.float32)) for _ in COLUMNS[1:])]
    return {name: (value, offsets) for name, value in zip(COLUMNS, values, strict=True)}


def names(rows: int, prefix: str = "sample") -> list[str]:
    """Ids of 20 characters."""
    return [f"{prefix}-{row:0{19 - len(prefix)}d}" for row in range(rows)]


def raw(columns: dict[str, tuple[Any, Any]]) -> np.ndarray:
    """The same bytes end to end."""
    return np.concatenate([values.numpy().view(np.uint8) for values, _ in columns.values()])
