"""Prompts become rows: one per (prompt, generation index), waiting for the generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import pyarrow as pa

from dataplane import DataPlane
from schemas.batch import Batch
from schemas.columns import REGISTRY
from stages.protocols import Sampling


def admit(
    plane: DataPlane,
    partition: str,
    groups: Mapping[str, int],
    prompts: pa.Table,
    *,
    sampling: Sampling,
    generations: int = 1,
) -> dict[str, list[str]]:
    """Add *generations* rows for each group, given with its row of *prompts*; the sample ids by group."""
    ids = {group: [f"{group}-{index}" for index in range(generations)] for group in groups}
    names = [sample_id for group in ids.values() for sample_id in group]
    at = np.fromiter(groups.values(), np.int64, len(groups))
    rows = Batch(names, prompts.take(pa.array(np.repeat(at, generations))))
    once = {
        "sampling": _sampling(sampling, len(names)),
        "group_id": [group for group in groups for _ in range(generations)],
        "group_index": np.tile(np.arange(generations, dtype=np.int32), len(groups)),
    }
    plane.put(partition, names, {name: rows.array(name) for name in rows} | once)
    return ids


def group_of(sample_id: str) -> str:
    """The group that a sample id names."""
    return sample_id.rpartition("-")[0]


@lru_cache(maxsize=8)
def _sampling(sampling: Sampling, rows: int) -> pa.Array:
    """A column with this one value: dictionaries are slow to convert, and the same ones come again and again."""
    return pa.array([asdict(sampling)] * rows, REGISTRY["sampling"].field.type)
