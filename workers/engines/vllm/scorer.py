"""Scoring given tokens with vLLM: ``prompt_logprobs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from schemas.errors import InputError
from stages.protocols import Ask, Masks, Scores
from stages.topk import TopK
from workers.engines.vllm.engine import Engine, Request
from workers.engines.vllm.settings import CPU_BLOCK

#: Keeps what was computed for scores apart from what is sampled from.
SALT = "scores"


class VLLMScorer:
    """A Scorer: log-probs of given tokens, over the whole vocabulary. It ships nothing else."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.max_length = engine.max_length
        self.vocabulary_size = engine.vocabulary_size

    @classmethod
    def load(
        cls,
        path: str | Path,
        dtype: str = "float32",
        *,
        batch_size: int = 64,
        vocabulary_size: int | None = None,
        max_length: int | None = None,
    ) -> VLLMScorer:
        """A frozen teacher."""
        return cls(
            Engine.start(
                path, dtype=dtype, batch_size=batch_size, vocabulary_size=vocabulary_size, max_length=max_length
            )
        )

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        """Raises ValueError if a token has no score."""
        params = self.engine.params(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        requests = {row: Request(sequence, params, SALT) for row, sequence in enumerate(sequences) if len(sequence) > 1}
        outputs = self.engine.run(requests, temperature or 1.0)
        return [
            token_scores(outputs[row].prompt_token_ids, outputs[row].prompt_logprobs, sequence)
            if row in requests
            else torch.zeros(len(sequence))
            for row, sequence in enumerate(sequences)
        ]

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        _refuse("logits")

    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        _refuse("the logsumexp beside its top k")

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        if ask != Ask():
            _refuse(ask.payload or "the logsumexp beside its top k")
        return list(map(Scores, self.logprobs(sequences, temperature)))

    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        _refuse("hidden states")


class SamplingPath(VLLMScorer):
    """Scores along the path that samples: for long sequences through whatever the prefix cache holds.

    ``prompt_logprobs`` never read that cache. So the last token of a sequence longer than a block of it is scored as
    if it had just been sampled, after a prompt that is looked up there.
    """

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        scores = super().logprobs(sequences, temperature)
        params = {
            row: self.engine.params(max_tokens=1, temperature=0.0, logprob_token_ids=[sequence[-1]])
            for row, sequence in enumerate(sequences)
            if len(sequence) > CPU_BLOCK + 1
        }
        requests = {row: Request(sequences[row][:-1], how) for row, how in params.items()}
        outputs = self.engine.run(requests, temperature or 1.0)
        for row, output in outputs.items():
            scores[row][-1] = entry(output.outputs[0].logprobs[0], sequences[row][-1], len(sequences[row]) - 1)
        return scores


def token_scores(
    returned: Sequence[int], entries: Sequence[Mapping[int, Any] | None] | None, sequence: Sequence[int]
) -> torch.Tensor:
    """The log-prob of each token of *sequence*, looked up by its id; entry 0, which nothing predicts, is 0.0.

    Raises ValueError if vLLM answers for other tokens, or has no number for one: that is never taken for 0.
    """
    if list(returned) != list(sequence) or entries is None or len(entries) != len(sequence):
        raise ValueError(
            f"vllm scored {len(returned)} tokens that are not the {len(sequence)} asked for, or gave "
            f"{0 if entries is None else len(entries)} scores; score this sample again"
        )
    found = [entry(given, token, at) for at, (given, token) in enumerate(zip(entries, sequence, strict=True)) if at]
    return torch.tensor([0.0, *found])


def entry(given: Mapping[int, Any] | None, token: int, position: int) -> float:
    """The log-prob of *token* among what vLLM gave for a position. Raises ValueError if it is not there."""
    found = None if given is None else given.get(token)
    if found is None or found.logprob is None:
        raise ValueError(f"vllm gave no log-prob for token {token} at position {position}")
    return float(found.logprob)


def _refuse(what: str) -> NoReturn:
    raise InputError(f"vllm does not give {what.replace('_', ' ')}; use the engine hf or megatron for this teacher")
