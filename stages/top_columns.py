"""Top-k lists as columns and back.

A column of lists has an entry per token of the sample, empty where no list was taken:

    tokens         a    b    c    d                  picked        no   yes  no   yes
    teacher_topk_ids    [[], [7, 2], [], [2, 9]]     teacher_topk_logprobs    [[], [-0.1, -3.2], [], [-0.4, -1.1]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.columns import TOP_IDS, TOP_LOGPROBS, token
from schemas.errors import InputError
from stages.protocols import Masks
from stages.topk import TopK


def ids_column(tops: Sequence[TopK], masks: Masks) -> pa.Array:
    """The ids of *tops*, one TopK a sample, at the tokens in *masks*."""
    return _column([top.ids.int() for top in tops], masks, token(TOP_IDS))


def logprobs_column(tops: Sequence[TopK], masks: Masks) -> pa.Array:
    """Their log-probs."""
    return _column([top.logprobs.float() for top in tops], masks, token(TOP_LOGPROBS))


def logsumexp_column(tops: Sequence[TopK], masks: Masks) -> list[Tensor]:
    """Their logsumexps, 0 at the other tokens."""
    out = []
    for top, mask in zip(tops, masks, strict=True):
        values = torch.zeros(len(mask))
        values[torch.tensor(mask, dtype=torch.bool)] = top.logsumexp.float()
        out.append(values)
    return out


def _column(lists: Sequence[Tensor], masks: Masks, type_: pa.DataType) -> pa.Array:
    width = np.repeat([values.shape[1] for values in lists], [len(mask) for mask in masks])
    picked = np.concatenate([np.asarray(mask, bool) for mask in masks]) if masks else np.zeros(0, bool)
    inner = np.concatenate([[0], np.cumsum(np.where(picked, width, 0))]).astype(np.int32)
    outer = np.cumsum([0, *(len(mask) for mask in masks)], dtype=np.int64)
    values = torch.cat([values.flatten() for values in lists]).numpy() if lists else np.zeros(0)
    per_token = pa.ListArray.from_arrays(pa.array(inner), pa.array(values, type_.value_type.value_type))
    return pa.LargeListArray.from_arrays(pa.array(outer), per_token, type=type_)


class TopColumn(NamedTuple):
    """The lists of a batch: ``picked_BS`` (bool) says where, ``ids_NK`` and ``logprobs_NK`` hold them row by row."""

    picked_BS: Tensor
    ids_NK: Tensor
    logprobs_NK: Tensor

    def at(self, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(ids, log-probs) of the tokens in *mask_BS*, all of which must have a list."""
        place = self.picked_BS.flatten().cumsum(0).view(self.picked_BS.shape) - 1
        if (mask_BS & ~self.picked_BS).any():
            row = int((mask_BS & ~self.picked_BS).any(1).nonzero()[0])
            raise InputError(f"row {row}: a trained token has no top-k list of its teacher; score the row again")
        return self.ids_NK[place[mask_BS]], self.logprobs_NK[place[mask_BS]]


def read_top(batch: Batch, ids: str, logprobs: str, width: int | None = None) -> TopColumn:
    """Columns *ids* and *logprobs* of *batch*; S is its longest row, or *width*."""
    lists = batch.array(ids).flatten()
    counts = _copy(lists.value_lengths())
    k = int(counts.max(initial=0))
    if ((counts != 0) & (counts != k)).any():
        raise InputError(f"column {ids!r}: expected lists of one length, got {sorted(set(counts.tolist()))}")
    lengths = torch.from_numpy(batch.lengths(ids))
    size = width if width is not None else int(lengths.max()) if len(lengths) else 0
    picked = torch.zeros(len(batch), size, dtype=torch.bool)
    picked[torch.arange(size) < lengths[:, None]] = torch.from_numpy(counts > 0)
    return TopColumn(picked, _values(lists, k), _values(batch.array(logprobs).flatten(), k))


def _values(lists: pa.Array, k: int) -> Tensor:
    return torch.from_numpy(_copy(lists.flatten())).view(-1, max(k, 1))


def _copy(array: pa.Array) -> np.ndarray:
    return np.array(array.to_numpy(zero_copy_only=False))
