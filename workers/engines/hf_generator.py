"""Batched sampling with a KV cache, in plain PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache

from stages.protocols import Completion, Sampling
from workers.engines.hf_model import CausalLM, load_model, max_positions, real_logits
from workers.engines.hf_scorer import HFScorer
from workers.engines.noise import stream_keys, uniform


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
        done: list[Completion] = []
        for start in range(0, len(prompts), self.batch_size):
            part = slice(start, start + self.batch_size)
            done += self._generate(sample_ids[part], prompts[part], sampling[part])
        return done

    def _generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        keys = stream_keys([how.seed for how in sampling], sample_ids)
        draw = _Draw(sampling, self.model.device)
        budget = torch.tensor([how.max_new_tokens for how in sampling], device=self.model.device)
        alive = torch.ones(len(prompts), dtype=torch.bool, device=self.model.device)
        tokens, logprobs, taken = [], [], []
        for position, (logits, feed) in enumerate(self._decode(prompts, int(budget.max()))):
            alive = alive & (budget > position)
            token, logprob = draw(logits, uniform(keys, position))
            tokens.append(token)
            logprobs.append(logprob)
            taken.append(alive)
            alive = alive & ~torch.isin(token, self.stop_ids)
            if not alive.any():
                break
            feed.append(token)
        return self._completions(torch.stack(tokens, 1), torch.stack(logprobs, 1), torch.stack(taken, 1), alive)

    def _decode(
        self, prompts: Sequence[Sequence[int]], steps: int
    ) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Yield next-token logits [B, V]; the consumer appends the chosen tokens [B] to the list beside them."""
        ids, mask = _pad_left(prompts, self.model.device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = {self.cache_argument: DynamicCache(config=self.model.config), "use_cache": True}
        for _ in range(steps):
            out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, **cache)
            feed: list[torch.Tensor] = []
            yield real_logits(out.logits[:, -1], self.vocabulary_size).float(), feed
            ids = feed[0][:, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            positions = positions[:, -1:] + 1

    def _completions(
        self, tokens: torch.Tensor, logprobs: torch.Tensor, taken: torch.Tensor, alive: torch.Tensor
    ) -> list[Completion]:
        lengths = taken.sum(1).tolist()
        ended = (~alive & torch.isin(tokens, self.stop_ids).logical_and(taken).any(1)).tolist()
        rows = zip(tokens.tolist(), logprobs.tolist(), lengths, ended, strict=True)
        return [
            Completion(ids[:n], lps[:n], "stop" if end else "length", self.version, self.version)
            for ids, lps, n, end in rows
        ]


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
