"""Engines without a model, for tests of stages: real objects with hand-checkable numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stages.protocols import Completion, Sampling


class PosLM:
    """Scores token t at absolute position p as ``-(p + t / 1000) * factor``: any shift or swap shows."""

    def __init__(self, factor: float = 1.0, max_length: int = 64) -> None:
        self.factor = factor
        self.max_length = max_length
        self.vocabulary_size = 100
        self.calls: list[int] = []

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        self.calls.append(len(sequences))
        return [torch.tensor([0.0, *(self.value(p, t) for p, t in enumerate(ids) if p)]) for ids in sequences]

    def value(self, position: int, token: int) -> float:
        return -(position + token / 1000) * self.factor

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [torch.zeros(len(ids), self.vocabulary_size) for ids in sequences]


class Echo:
    """Answers every prompt with given completions, by sample id; raises for ids in ``broken``."""

    def __init__(self, answers: Mapping[str, Completion], broken: Sequence[str] = (), max_length: int = 32) -> None:
        self.answers = answers
        self.broken = set(broken)
        self.max_length = max_length

    def generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        if self.broken.intersection(sample_ids):
            raise RuntimeError("out of memory")
        return [self.answers[sample_id] for sample_id in sample_ids]


class Letters:
    """A tokenizer with one token a letter: a = 1, b = 2, …"""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [ord(letter) - 96 for message in messages for letter in message["content"]]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token + 96) for token in token_ids)


def completion(
    tokens: Sequence[int], logprobs: Sequence[float | None], finish: str = "stop", version: int = 0
) -> Completion:
    return Completion(tokens, logprobs, finish, version, version)
