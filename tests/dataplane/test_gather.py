"""Rows of several blocks, gathered in whichever way costs least."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dataplane.blocks import gather
from dataplane.blocks.gather import Places

FIELD = pa.field("input_ids", pa.large_list(pa.int32()))

#: Block 3 and block 5, which have 40 and 60 rows; row r of block b holds b and r, some rows nothing.
COLUMNS = {b: pa.array([[b, r] if r % 7 else [] for r in range(n)], FIELD.type) for b, n in ((3, 40), (5, 60))}


@pytest.mark.parametrize("joined_bytes", [0, 1 << 20])
@pytest.mark.parametrize("used", [(3,), (3, 5), (-1, 3), (-1, 3, 5), (-1,)])
def test_scattered_rows_come_in_the_order_asked_and_missing_ones_as_null(monkeypatch, used, joined_bytes):
    monkeypatch.setattr(gather, "_JOIN_BYTES", joined_bytes)
    draw = np.random.default_rng(len(used))
    blocks = draw.choice(used, 200).astype(np.int32)
    rows = draw.integers(0, 40, 200).astype(np.int32)
    [found] = Places(blocks, rows).gather(FIELD, COLUMNS.__getitem__, own=True)
    expected = [COLUMNS[b][r].as_py() if b >= 0 else None for b, r in zip(blocks.tolist(), rows.tolist(), strict=True)]
    assert found.to_pylist() == expected and found.type == FIELD.type


@pytest.mark.parametrize("own", [True, False])
def test_neighbours_share_the_block_unless_they_are_to_be_own(own):
    blocks, rows = np.full(10, 3, np.int32), np.arange(20, 30, dtype=np.int32)
    [found] = Places(blocks, rows).gather(FIELD, COLUMNS.__getitem__, own=own)
    assert found.to_pylist() == COLUMNS[3].to_pylist()[20:30]
    assert (found.buffers()[-1].address == COLUMNS[3].buffers()[-1].address) is not own
