"""Scoring given tokens with a frozen Hugging Face model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stages.losses.projection import blocks, project
from stages.topk import TopK, top_k
from stages.vocab_parallel import WHOLE
from workers.engines.batching import MicroBatch
from workers.engines.hf.model import (
    CausalLM,
    load_model,
    logprobs_of,
    max_positions,
    pad_right,
    real_logits,
    states_of,
)
from workers.engines.scoring import Run, Sequences, StatesScorer
from workers.engines.spreading import Named, spread
from workers.ranks import ALONE, Ranks


class HFScorer(StatesScorer):
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

    @torch.no_grad()
    def _spread(self, sequences: Sequences, run: Run) -> list[Named]:
        def forward(part: MicroBatch) -> list[Named]:
            rows = [sequences[row] for row in part]
            return run(rows, part, states_of(self.model, *pad_right(rows, self.model.device)))

        return spread(list(map(len, sequences)), forward, self.ranks, rows=self.batch_size, tokens=self.batch_tokens)

    def _logprobs(self, rows: Sequences, states_BSH: torch.Tensor, temperature: float) -> torch.Tensor:
        ids, _ = pad_right(rows, self.model.device)
        return logprobs_of(self.model, states_BSH, ids, temperature, self.vocabulary_size)

    def _logits(self, states_TH: torch.Tensor) -> torch.Tensor:
        return real_logits(self.model.lm_head(states_TH), self.vocabulary_size)

    def _best(self, states_NH: torch.Tensor, k: int, temperature: float) -> TopK:
        head = self.model.lm_head.weight[: self.vocabulary_size]
        some = [*blocks(len(states_NH), len(head))] or [slice(0)]
        parts = [top_k(project(states_NH[part], head) / temperature, k) for part in some]
        return TopK(*map(torch.cat, zip(*parts, strict=True)))

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
