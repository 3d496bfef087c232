"""Scoring from hidden states: what is alike in the engines that hold their model themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.losses.full_vocabulary import shift_states
from stages.protocols import Ask, Masks, Scores
from stages.topk import TopK
from workers.engines.batching import MicroBatch
from workers.engines.spreading import Named

Sequences = Sequence[Sequence[int]]

#: Makes the results of one micro-batch from its rows, their numbers, and the states after each token [B, S, H].
Run = Callable[[Sequences, MicroBatch, Tensor], list[Named]]


class StatesScorer(ABC):
    """What a PayloadScorer gives, over a forward pass and an LM head that its engine has.

    Vocabulary-wide results are made a row at a time, or of the tokens that are asked for, and leave the device.
    """

    @abstractmethod
    def _spread(self, sequences: Sequences, run: Run) -> list[Named]:
        """What *run* makes of each sequence, on whichever rank and without gradients; the same on every rank."""

    @abstractmethod
    def _logprobs(self, rows: Sequences, states_BSH: Tensor, temperature: float) -> Tensor:
        """The log-prob of each token; [B, S], float32, column 0 is 0."""

    @abstractmethod
    def _logits(self, states_TH: Tensor) -> Tensor:
        """The logits after each token, those of padding left out; [T, V]."""

    @abstractmethod
    def _best(self, states_NH: Tensor, k: int, temperature: float) -> TopK:
        """The top k after each of some tokens, maybe none; only a few meet the LM head at once."""

    def logprobs(self, sequences: Sequences, temperature: float) -> list[Tensor]:
        def run(rows: Sequences, part: MicroBatch, states: Tensor) -> list[Named]:
            return [{"logprobs": row} for row in unpadded(self._logprobs(rows, states, temperature).cpu(), rows)]

        return [named["logprobs"] for named in self._spread(sequences, run)]

    def logits(self, sequences: Sequences) -> list[Tensor]:
        def run(rows: Sequences, part: MicroBatch, states: Tensor) -> list[Named]:
            return [{"logits": self._payload(row, Ask("logits"))} for row in unpadded(states, rows)]

        return [named["logits"] for named in self._spread(sequences, run)]

    def top_k(self, sequences: Sequences, masks: Masks, k: int, temperature: float) -> list[TopK]:
        def run(rows: Sequences, part: MicroBatch, states: Tensor) -> list[Named]:
            return [top._asdict() for top in self._top_k(states, [masks[row] for row in part], k, temperature)]

        return [TopK(**named) for named in self._spread(sequences, run)]

    def score(self, sequences: Sequences, masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        def run(rows: Sequences, part: MicroBatch, states: Tensor) -> list[Named]:
            logprobs = unpadded(self._logprobs(rows, states, temperature).cpu(), rows)
            found = [{"token_logprobs": row} for row in logprobs]
            if ask.payload is not None:
                for named, row in zip(found, unpadded(states, rows), strict=True):
                    named["payload"] = self._payload(row, ask)
            if ask.top_k is not None:
                tops = self._top_k(states, [masks[row] for row in part], ask.top_k, temperature)
                for named, top in zip(found, tops, strict=True):
                    named.update(top._asdict())
            return found

        return [
            Scores(
                named.pop("token_logprobs"), named.pop("payload", None), None if ask.top_k is None else TopK(**named)
            )
            for named in self._spread(sequences, run)
        ]

    def _payload(self, states_TH: Tensor, ask: Ask) -> Tensor:
        """What each token was predicted from, in the type that is asked for; row 0 is 0."""
        vectors = self._logits(states_TH) if ask.payload == "logits" else states_TH
        return shift_states(vectors[None])[0].to(getattr(torch, ask.dtype)).cpu()

    def _top_k(self, states_BSH: Tensor, masks: Masks, k: int, temperature: float) -> list[TopK]:
        """Only the states of tokens in the masks ever meet the LM head."""
        states = shift_states(states_BSH)
        picked = [row[: len(mask)][torch.tensor(mask)] for row, mask in zip(states, masks, strict=True)]
        best = self._best(torch.cat(picked), k, temperature)
        columns = [column.cpu().split(list(map(len, picked))) for column in best]
        return [TopK(*row) for row in zip(*columns, strict=True)]


def unpadded(padded: Tensor, rows: Sequences) -> list[Tensor]:
    """Rows of *padded* [B, S, …] as long as *rows*."""
    return [values[: len(row)] for values, row in zip(padded, rows, strict=True)]
