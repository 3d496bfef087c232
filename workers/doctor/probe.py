"""A weight sync that did nothing is silent: samples go on, from old weights. So every sync is proved.

With each published version the trainer stores its scores of a few fixed sequences; a generator that has loaded the
version scores them too. Unequal once: it loads again. Unequal twice: the job stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from schemas.errors import JobFailed
from stages.protocols import Scorer
from workers.doctor.invariants import SCORE_TOLERANCE

#: The last is longer than a block of any engine's prefix cache, so that a cache left from old weights shows.
LENGTHS = (3, 5, 8, 13, 131)


def fixed_sequences(vocabulary_size: int, max_length: int) -> list[list[int]]:
    """Sequences of unequal length, those that fit, the same for everybody with this vocabulary."""
    return [
        [(7 * position + 3 * length) % vocabulary_size for position in range(length)]
        for length in LENGTHS
        if length <= max_length
    ]


def scores(engine: Scorer, max_length: int) -> torch.Tensor:
    """Log-probs of every token of the fixed sequences, one after the other; [29] or [160], float32.

    *max_length* is what the recipe lets a sequence have; the engine's own limit, which is its model's, counts too.
    """
    sequences = fixed_sequences(engine.vocabulary_size, min(max_length, engine.max_length))
    return torch.cat(engine.logprobs(sequences, 1.0))


def same(expected: torch.Tensor, found: torch.Tensor, dtype: str = "float32") -> bool:
    """Whether two engines with weights of this type hold the same, as far as the fixed sequences tell."""
    return bool((expected - found).abs().max() <= SCORE_TOLERANCE[dtype])


def refuse(
    who: str, version: int, expected: torch.Tensor, found: Sequence[float] | torch.Tensor, dtype: str = "float32"
) -> None:
    """Raise JobFailed: *who* does not hold what was published."""
    gap = float((expected - torch.as_tensor(found)).abs().max())
    raise JobFailed(
        f"{who}: after loading version {version} twice its scores of the fixed sequences differ from the trainer's by "
        f"up to {gap:.3g} nats a token (at most {SCORE_TOLERANCE[dtype]:g} expected); its update does nothing, or "
        "caches are stale"
    )
