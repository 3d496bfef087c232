"""A weight sync that did nothing is silent: samples go on, from old weights. So every sync is proved.

With each published version the trainer stores its scores of four fixed sequences; a generator that has loaded the
version scores them too. Unequal once: it loads again. Unequal twice: the job stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from schemas.errors import JobFailed
from stages.protocols import Scorer

LENGTHS = (3, 5, 8, 13)
#: Largest difference of one token's log-prob, in nats, that two engines with the same weights may show.
TOLERANCE = 1e-3


def fixed_sequences(vocabulary_size: int) -> list[list[int]]:
    """Four sequences of unequal length, the same for everybody with this vocabulary."""
    return [[(7 * position + 3 * length) % vocabulary_size for position in range(length)] for length in LENGTHS]


def scores(engine: Scorer) -> torch.Tensor:
    """Log-probs of every token of the fixed sequences, one after the other; [29], float32."""
    return torch.cat(engine.logprobs(fixed_sequences(engine.vocabulary_size), 1.0))


def same(expected: torch.Tensor, found: torch.Tensor) -> bool:
    """Whether two engines hold the same weights, as far as the fixed sequences tell."""
    return bool((expected - found).abs().max() <= TOLERANCE)


def refuse(who: str, version: int, expected: torch.Tensor, found: Sequence[float] | torch.Tensor) -> None:
    """Raise JobFailed: *who* does not hold what was published."""
    gap = float((expected - torch.as_tensor(found)).abs().max())
    raise JobFailed(
        f"{who}: after loading version {version} twice its scores of four fixed sequences differ from the trainer's by "
        f"up to {gap:.3g} nats a token (at most {TOLERANCE:g} expected); its update does nothing, or caches are stale"
    )
