"""Temporary rows, so that every replica of a teacher has its share of a batch, however small that is.

Replicas meet in collectives (those of a mixture of experts, say), and one without rows would stay away from them.
The filler is the batch's shortest sequence again; what it scores is dropped here, and reaches no store and no count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from stages.protocols import Ask, Masks, PayloadScorer, Scores
from stages.topk import TopK

Row = TypeVar("Row")


class FullRounds:
    """A PayloadScorer whose *scorer* only ever sees batches that divide by the number of its *replicas*."""

    def __init__(self, scorer: PayloadScorer, replicas: int) -> None:
        self.scorer = scorer
        self.replicas = replicas
        self.max_length = scorer.max_length
        self.vocabulary_size = scorer.vocabulary_size

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        return self.scorer.logprobs(self._full(sequences), temperature)[: len(sequences)]

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return self.scorer.logits(self._full(sequences))[: len(sequences)]

    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        full = self._full(sequences)
        return self.scorer.top_k(full, _unasked(masks, full), k, temperature)[: len(sequences)]

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        full = self._full(sequences)
        return self.scorer.score(full, _unasked(masks, full), temperature, ask)[: len(sequences)]

    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        return self.scorer.head_error(self._full(sequences))

    def _full(self, sequences: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        missing = -len(sequences) % self.replicas
        return [*sequences, *([min(sequences, key=len)] * missing if missing else [])]


def _unasked(masks: Masks, full: Sequence[Sequence[int]]) -> Masks:
    """*masks*, and masks of the filler that ask for nothing."""
    return [*masks, *([False] * len(sequence) for sequence in full[len(masks) :])]
