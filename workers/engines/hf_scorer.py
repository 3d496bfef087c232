"""Scoring given tokens with a frozen Hugging Face model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from workers.engines.hf_model import load_model, max_positions, pad_right, token_logprobs


class HFScorer:
    """A Scorer over a Hugging Face model; ``batch_size`` consecutive sequences share one forward pass."""

    def __init__(self, model: torch.nn.Module, *, batch_size: int = 256) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_length = max_positions(model)
        self.vocabulary_size = int(model.config.vocab_size)

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", **options: int) -> HFScorer:
        """A frozen teacher: no parameter takes a gradient."""
        return cls(load_model(path, dtype).requires_grad_(False), **options)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        out: list[torch.Tensor] = []
        for part in _parts(sequences, self.batch_size):
            ids, mask = pad_right(part, self.model.device)
            scored = token_logprobs(self.model, ids, mask, temperature).cpu()
            out += [scored[row, : len(sequence)] for row, sequence in enumerate(part)]
        return out

    @torch.no_grad()
    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        out: list[torch.Tensor] = []
        for part in _parts(sequences, self.batch_size):
            ids, mask = pad_right(part, self.model.device)
            logits = self.model(input_ids=ids, attention_mask=mask.long()).logits.float().cpu()
            shifted = torch.cat([torch.zeros_like(logits[:, :1]), logits[:, :-1]], dim=1)
            out += [shifted[row, : len(sequence)] for row, sequence in enumerate(part)]
        return out


def _parts(sequences: Sequence[Sequence[int]], size: int) -> Iterator[Sequence[Sequence[int]]]:
    for start in range(0, len(sequences), size):
        yield sequences[start : start + size]
