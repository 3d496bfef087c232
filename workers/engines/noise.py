"""Counter-based noise: one uniform number per (seed, sample id, position), whoever asks and whenever.

So a sample that is generated again, in another batch or after a crash, draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_keys(seeds: Sequence[int], sample_ids: Sequence[str]) -> np.ndarray:
    """A 64-bit stream key per sample; shape [B], uint64."""
    pairs = zip(seeds, sample_ids, strict=True)
    keys = (xxhash.xxh3_64_intdigest(sample_id.encode(), seed=seed % 2**64) for seed, sample_id in pairs)
    return np.fromiter(keys, dtype=np.uint64, count=len(sample_ids))


def uniform(keys: np.ndarray, position: int) -> np.ndarray:
    """A number in [0, 1) per stream, for this position; shape [B], float64.

    SplitMix64 (Steele, Lea, Flood 2014): the stream's key advanced *position* + 1 times, then mixed.
    """
    with np.errstate(over="ignore"):
        z = keys + _GOLDEN * np.uint64(position + 1)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
