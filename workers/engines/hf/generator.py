"""Batched sampling with a KV cache, in plain PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache

from stages.protocols import Completion, Sampling
from workers.engines.hf.model import CausalLM, load_model, max_positions, real_logits
from workers.engines.hf.scorer import HFScorer
from workers.engines.noise import stream_keys, uniform

#: Ended rows are left out when no larger share of the rows is still being sampled: that copies the cache.
LEAVE_OUT = 0.75


class HFGenerator:
    """A Generator over a Hugging Face model.

    A response ends with an end token (kept, as the last one) or after ``max_new_tokens``. Tokens are drawn by
    inverting the cumulative distribution at a counter-based uniform number.
    """

    def __init__(
        self,
        model: CausalLM,
        stop_ids: Sequence[int],
        *,
        max_length: int,
        batch_size: int = 256,
        version: int = 0,
        vocabulary_size: int | None = None,
    ) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size
        # transformers is renaming this argument; older versions know only the second name.
        known = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in known else "past_key_values"
        self.stop_ids = torch.tensor(list(stop_ids), dtype=torch.long, device=model.device)
        self.max_length = min(max_length, max_positions(model))
        self.batch_size = batch_size
        self.version = version

    @classmethod
    def load(cls, path: str | Path, stop_ids: Sequence[int], **options: int) -> HFGenerator:
        return cls(load_model(path), stop_ids, **options)

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Sample from these weights from now on."""
        self.model.load_state_dict(tensors, strict=False)
        self.version = version

    def scorer(self) -> HFScorer:
        """Scores under the weights that sample."""
        return HFScorer(self.model, vocabulary_size=self.vocabulary_size)

    @torch.no_grad()
    def generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        done: dict[int, Completion] = {}
        by_length = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for start in range(0, len(prompts), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            part = self._generate(
                [sample_ids[row] for row in rows], [prompts[row] for row in rows], [sampling[row] for row in rows]
            )
            done |= zip(rows, part, strict=True)
        return [done[row] for row in range(len(prompts))]

    def _generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        """One batch. A row that has ended is computed along until enough others have, then all of them are left out."""
        written = _Written(len(prompts), max(how.max_new_tokens for how in sampling))
        keys, budget = stream_keys([how.seed for how in sampling], sample_ids), [how.max_new_tokens for how in sampling]
        decoding, draw = _Decoding(self, prompts), _Draw(sampling, self.model.device)
        rows, alive = np.arange(len(prompts)), np.ones(len(prompts), dtype=bool)
        for position in range(max(budget)):
            token, logprob = draw(decoding.logits(), uniform(keys[rows], position))
            ended = torch.isin(token, self.stop_ids).cpu().numpy()
            written.add(rows[alive], position, token.cpu().numpy()[alive], logprob.cpu().numpy()[alive], ended[alive])
            alive &= ~ended & (np.array(budget)[rows] > position + 1)
            if not alive.any():
                break
            if alive.mean() <= LEAVE_OUT:
                kept = torch.from_numpy(np.flatnonzero(alive)).to(self.model.device)
                token, rows, alive = token[kept], rows[alive], alive[alive]
                decoding.keep(kept)
                draw = _Draw([sampling[row] for row in rows.tolist()], self.model.device)
            decoding.feed(token)
        return written.completions(self.version)


class _Written:
    """What has been sampled so far; [B, S]."""

    def __init__(self, rows: int, width: int) -> None:
        self.tokens = np.zeros((rows, width), dtype=np.int64)
        self.logprobs = np.zeros((rows, width), dtype=np.float32)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.ended = np.zeros(rows, dtype=bool)

    def add(self, rows: np.ndarray, position: int, tokens: np.ndarray, logprobs: np.ndarray, ended: np.ndarray) -> None:
        self.tokens[rows, position], self.logprobs[rows, position] = tokens, logprobs
        self.lengths[rows], self.ended[rows] = position + 1, ended

    def completions(self, version: int) -> list[Completion]:
        rows = zip(self.tokens, self.logprobs, self.lengths, self.ended, strict=True)
        return [
            Completion(ids[:n].tolist(), lps[:n].tolist(), "stop" if ended else "length", version, version)
            for ids, lps, n, ended in rows
        ]


class _Decoding:
    """Prompts, and what was sampled after them, in a KV cache."""

    def __init__(self, engine: HFGenerator, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.vocabulary_size = engine.model, engine.vocabulary_size
        self.ids, self.mask = _pad_left(prompts, self.model.device)
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        self.cache = DynamicCache(config=self.model.config)
        self.options = {engine.cache_argument: self.cache, "use_cache": True, "logits_to_keep": 1}

    def logits(self) -> torch.Tensor:
        """Of the next token; [B, V], float32."""
        out = self.model(input_ids=self.ids, attention_mask=self.mask, position_ids=self.positions, **self.options)
        return real_logits(out.logits[:, -1], self.vocabulary_size).float()

    def keep(self, rows: torch.Tensor) -> None:
        """Leave all other rows out."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]

    def feed(self, tokens: torch.Tensor) -> None:
        """Go on after *tokens* [B]."""
        self.ids = tokens[:, None]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        self.positions = self.positions[:, -1:] + 1


class _Draw:
    """One token per row from logits [B, V], and its full-vocabulary log-prob at the row's temperature."""

    def __init__(self, sampling: Sequence[Sampling], device: torch.device) -> None:
        temperature = torch.tensor([how.temperature for how in sampling], device=device)[:, None]
        self.greedy = temperature[:, 0] == 0
        self.temperature = torch.where(temperature == 0, torch.ones_like(temperature), temperature)
        self.top_k = [how.top_k for how in sampling]
        self.top_p = torch.tensor([how.top_p for how in sampling], device=device)[:, None]
        self.truncated = any(self.top_k) or any(how.top_p < 1.0 for how in sampling)

    def __call__(self, logits: torch.Tensor, noise: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.log_softmax(logits / self.temperature, dim=-1)
        drawable = logprobs.double().exp()
        if self.truncated:
            drawable = torch.where(self._kept(logprobs), drawable, 0.0)
        cumulative = drawable.cumsum(-1)
        target = torch.from_numpy(noise).to(logits.device)[:, None] * cumulative[:, -1:]
        sampled = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
        token = torch.where(self.greedy, logits.argmax(-1), sampled)
        return token, logprobs.gather(1, token[:, None])[:, 0]

    def _kept(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Which tokens top-k and top-p leave: the fewest most likely ones that reach top_p; [B, V], bool."""
        ordered, order = logprobs.sort(-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        rank = torch.arange(logprobs.shape[1], device=logprobs.device)
        limit = torch.tensor([k or logprobs.shape[1] for k in self.top_k], device=logprobs.device)[:, None]
        keep = (before < self.top_p) & (rank < limit)
        return torch.zeros_like(keep).scatter(1, order, keep)


def _pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.as_tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
