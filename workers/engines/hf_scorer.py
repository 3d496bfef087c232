"""Scoring given tokens with a frozen Hugging Face model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from stages.losses.full_vocabulary import shift_states
from stages.losses.projection import blocks, project
from stages.protocols import Ask, Masks, Scores
from stages.topk import TopK, top_k
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


class HFScorer:
    """A PayloadScorer over a Hugging Face model; ``batch_size`` consecutive sequences share one forward pass.

    Ids from *vocabulary_size* on are padding of the LM head: outside every softmax, in no result.
    """

    def __init__(self, model: CausalLM, *, batch_size: int = 256, vocabulary_size: int | None = None) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_length = max_positions(model)
        self.vocabulary_size = min(vocabulary_size or len(model.lm_head.weight), len(model.lm_head.weight))

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", **options: int) -> HFScorer:
        """A frozen teacher: no parameter takes a gradient."""
        return cls(load_model(path, dtype).requires_grad_(False), **options)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        out: list[torch.Tensor] = []
        for part in self._parts(len(sequences)):
            ids, mask = pad_right(sequences[part], self.model.device)
            scored = token_logprobs(self.model, ids, mask, temperature, self.vocabulary_size).cpu()
            out += _rows(scored, sequences[part])
        return out

    @torch.no_grad()
    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        out: list[torch.Tensor] = []
        for part in self._parts(len(sequences)):
            ids, mask = pad_right(sequences[part], self.model.device)
            logits = self.model(input_ids=ids, attention_mask=mask.long()).logits
            out += _rows(shift_states(real_logits(logits, self.vocabulary_size).float().cpu()), sequences[part])
        return out

    @torch.no_grad()
    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        out: list[TopK] = []
        for part in self._parts(len(sequences)):
            ids, mask = pad_right(sequences[part], self.model.device)
            out += self._top_k(shift_states(states_of(self.model, ids, mask)), masks[part], k, temperature)
        return out

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        out: list[Scores] = []
        for part in self._parts(len(sequences)):
            ids, mask = pad_right(sequences[part], self.model.device)
            states = states_of(self.model, ids, mask)
            logprobs = logprobs_of(self.model, states, ids, temperature, self.vocabulary_size).cpu()
            states = shift_states(states)
            payload = [None] * len(ids) if ask.payload is None else _rows(self._payload(states, ask), sequences[part])
            tops = [None] * len(ids) if ask.top_k is None else self._top_k(states, masks[part], ask.top_k, temperature)
            out += map(Scores, _rows(logprobs, sequences[part]), payload, tops)
        return out

    def lm_head(self) -> torch.Tensor:
        """The LM head's weights, padding included; [V, H], without a gradient."""
        head: torch.Tensor = self.model.lm_head.weight.detach()
        return head

    @torch.no_grad()
    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        worst = 0.0
        for part in self._parts(len(sequences)):
            ids, mask = pad_right(sequences[part], self.model.device)
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

    def _parts(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self.batch_size) for start in range(0, count, self.batch_size))


def _rows(padded: torch.Tensor, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Rows of *padded* [B, S, …] without their padding."""
    return [padded[row, : len(sequence)] for row, sequence in enumerate(sequences)]
