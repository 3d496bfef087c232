"""Scoring given tokens with a frozen Hugging Face model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from stages.losses.full_vocabulary import shift_states
from stages.losses.projection import blocks, project
from stages.protocols import Ask, Masks, Scores
from stages.topk import TopK, top_k
from stages.vocab_parallel import WHOLE
from workers.engines.batching import MicroBatch
from workers.engines.hf_model import (
    CausalLM,
    load_model,
    logprobs_of,
    max_positions,
    pad_right,
    real_logits,
    states_of,
    token_logprobs,
)
from workers.engines.spreading import Named, spread
from workers.ranks import ALONE, Ranks


class HFScorer:
    """A PayloadScorer over a Hugging Face model, one copy of which each of its *ranks* has.

    At most ``batch_size`` sequences and ``batch_tokens`` tokens share a forward pass. Ids from *vocabulary_size* on
    are padding of the LM head: outside every softmax, in no result.
    """

    shard = WHOLE

    def __init__(
        self,
        model: CausalLM,
        *,
        batch_size: int = 256,
        batch_tokens: int | None = None,
        vocabulary_size: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.ranks = ranks
        self.max_length = max_positions(model)
        self.vocabulary_size = min(vocabulary_size or len(model.lm_head.weight), len(model.lm_head.weight))

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", **options: Any) -> HFScorer:
        """A frozen teacher: no parameter takes a gradient."""
        return cls(load_model(path, dtype).requires_grad_(False), **options)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        def run(some: list[Sequence[int]], part: MicroBatch) -> list[Named]:
            ids, mask = pad_right(some, self.model.device)
            scored = token_logprobs(self.model, ids, mask, temperature, self.vocabulary_size).cpu()
            return [{"logprobs": row} for row in _rows(scored, some)]

        return [named["logprobs"] for named in self._spread(sequences, run)]

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        def run(some: list[Sequence[int]], part: MicroBatch) -> list[Named]:
            ids, mask = pad_right(some, self.model.device)
            logits = self.model(input_ids=ids, attention_mask=mask.long()).logits
            shifted = shift_states(real_logits(logits, self.vocabulary_size).float().cpu())
            return [{"logits": row} for row in _rows(shifted, some)]

        return [named["logits"] for named in self._spread(sequences, run)]

    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        def run(some: list[Sequence[int]], part: MicroBatch) -> list[Named]:
            states = shift_states(states_of(self.model, *pad_right(some, self.model.device)))
            return [top._asdict() for top in self._top_k(states, [masks[row] for row in part], k, temperature)]

        return [TopK(**named) for named in self._spread(sequences, run)]

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        def run(some: list[Sequence[int]], part: MicroBatch) -> list[Named]:
            ids, mask = pad_right(some, self.model.device)
            states = states_of(self.model, ids, mask)
            logprobs = logprobs_of(self.model, states, ids, temperature, self.vocabulary_size).cpu()
            found = [{"token_logprobs": row} for row in _rows(logprobs, some)]
            states = shift_states(states)
            if ask.payload is not None:
                for named, row in zip(found, _rows(self._payload(states, ask), some), strict=True):
                    named["payload"] = row
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

    @torch.no_grad()
    def _spread(
        self, sequences: Sequence[Sequence[int]], run: Callable[[list[Sequence[int]], MicroBatch], list[Named]]
    ) -> list[Named]:
        """What *run* makes of (sequences of one forward pass, their rows), for every sequence."""
        return spread(
            list(map(len, sequences)),
            lambda part: run([sequences[row] for row in part], part),
            self.ranks,
            rows=self.batch_size,
            tokens=self.batch_tokens,
        )

    def lm_head(self) -> torch.Tensor:
        """The LM head's weights, padding included; [V, H], without a gradient."""
        head: torch.Tensor = self.model.lm_head.weight.detach()
        return head

    @torch.no_grad()
    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        worst = 0.0
        for start in range(0, len(sequences), self.batch_size):
            ids, mask = pad_right(sequences[start : start + self.batch_size], self.model.device)
            logits = self.model(input_ids=ids, attention_mask=mask.long()).logits[mask].float()
            product = project(states_of(self.model, ids, mask)[mask], self.model.lm_head.weight)
            worst = max(worst, float((logits - product).abs().max() / logits.abs().max()))
        return worst

    def _payload(self, states_BSH: torch.Tensor, ask: Ask) -> torch.Tensor:
        if ask.payload == "logits":
            states_BSH = real_logits(self.model.lm_head(states_BSH), self.vocabulary_size)
        return states_BSH.to(getattr(torch, ask.dtype)).cpu()

    def _top_k(self, states_BSH: torch.Tensor, masks: Masks, k: int, temperature: float) -> list[TopK]:
        """Only the states of tokens in the masks ever meet the LM head, a few at a time."""
        picked = [state[: len(mask)][torch.tensor(mask)] for state, mask in zip(states_BSH, masks, strict=True)]
        rows, head = torch.cat(picked), self.model.lm_head.weight[: self.vocabulary_size]
        parts = [top_k(project(rows[some], head) / temperature, k) for some in blocks(len(rows), len(head))]
        columns = [torch.cat(column).cpu().split(list(map(len, picked))) for column in zip(*parts, strict=True)]
        if not parts:
            return [TopK(torch.zeros(0, k).int(), torch.zeros(0, k), torch.zeros(0)) for _ in picked]
        return [TopK(*row) for row in zip(*columns, strict=True)]


def _rows(padded: torch.Tensor, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Rows of *padded* [B, S, …] without their padding."""
    return [padded[row, : len(sequence)] for row, sequence in enumerate(sequences)]
