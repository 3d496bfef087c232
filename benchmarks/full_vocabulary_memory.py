"""Memory of the full-vocabulary loss at a real vocabulary: ``python -m benchmarks.full_vocabulary_memory``.

Peak bytes that forward and backward allocate, parameter and hidden-state gradients aside, of the naive form (whole
softmaxes of both sides) and of the chunked one, for growing numbers of tokens. Counted operation by operation, so
the numbers are exact and the same everywhere. The naive form at 2,048 tokens needs about 11 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.losses.chunked_divergence import FullVocabulary, full_vocabulary_divergence
from stages.losses.projection import Logits
from tests.stages.peak import PeakBytes

VOCABULARY, HIDDEN = 151_936, 64
TOKENS = (128, 512, 2048)


def naive(student: Logits, teacher: Logits) -> Tensor:
    log_s, log_t = ((side.rows @ side.head.T).log_softmax(-1) for side in (student, teacher))
    return (log_s.exp() * (log_s - log_t)).sum(-1)


def chunked(student: Logits, teacher: Logits) -> Tensor:
    return full_vocabulary_divergence(student, teacher, FullVocabulary())


def peak_bytes(loss: Callable[[Logits, Logits], Tensor], tokens: int) -> int:
    """Peak of forward and backward, gradients of parameters and states aside."""
    torch.manual_seed(0)
    rows, theirs = torch.randn(tokens, HIDDEN, requires_grad=True), torch.randn(tokens, HIDDEN)
    head, their_head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True), torch.randn(VOCABULARY, HIDDEN)
    with PeakBytes() as memory:
        loss(Logits(rows, head), Logits(theirs, their_head)).sum().backward()
    return memory.peak - 4 * (rows.numel() + head.numel())


def main(tokens: Sequence[int] = TOKENS) -> None:
    print(f"{'tokens':>8}{'naive, MiB':>14}{'chunked, MiB':>14}{'ratio':>8}")
    for count in tokens:
        whole, part = peak_bytes(naive, count), peak_bytes(chunked, count)
        print(f"{count:>8,}{whole / 2**20:>14,.0f}{part / 2**20:>14,.0f}{whole / part:>8.1f}")


if __name__ == "__main__":
    main()
