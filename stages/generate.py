"""generate: prompts become token ids, a mask of what the student said, the sampler's log-probs and a reward."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from schemas.batch import Batch
from schemas.columns import written_by
from stages.alone import each_alone
from stages.base import Output
from stages.protocols import ChatTokenizer, Completion, Generator, Sampling

#: ``reward(checker, response_text, answer) -> float``
Reward = Callable[[str, str, str], float]


def chat(prompt: str, messages: str | None) -> list[dict[str, str]]:
    """What a row asks, as messages; *messages* is JSON, None where the prompt is the user's only one."""
    return json.loads(messages) if messages else [{"role": "user", "content": prompt}]


@dataclass
class Generate:
    """Sample a response for every row.

    A response without a token fails its row as ``empty_response``, one with a log-prob that is missing or not
    finite as ``bad_logprob``; a prompt that leaves no room fails as ``prompt_too_long``; a row on which the engine
    raises fails alone, as ``engine_error``, or as ``reward_error`` when its checker does. Nothing of a failed row is
    written. A truncated response (finish_reason ``length``) earns no reward.
    """

    engine: Generator
    tokenizer: ChatTokenizer
    reward: Reward
    task: str = "generate"
    reads: tuple[str, ...] = ("prompt", "messages", "answer", "checker", "sampling")
    writes: tuple[str, ...] = written_by("generate")

    def __call__(self, batch: Batch) -> Output:
        prompts = [
            self.tokenizer.encode_chat(chat(prompt, messages))
            for prompt, messages in zip(batch.values("prompt"), batch.values("messages"), strict=True)
        ]
        sampling = [Sampling(**{f.name: row[f.name] for f in fields(Sampling)}) for row in batch.values("sampling")]
        failed = self._too_long(batch.sample_ids, prompts, sampling)
        rows = [row for row, sample_id in enumerate(batch.sample_ids) if sample_id not in failed]

        def sample(some: Sequence[int]) -> list[Completion]:
            return self.engine.generate(
                [batch.sample_ids[i] for i in some], [prompts[i] for i in some], [sampling[i] for i in some]
            )

        completions, errors = each_alone(sample, rows)
        failed |= {batch.sample_ids[row]: f"engine_error: {error}" for row, error in errors.items()}
        unusable = {row: reason for row, completion in completions.items() if (reason := _unusable(completion))}
        failed |= {batch.sample_ids[row]: reason for row, reason in unusable.items()}
        good = {row: completion for row, completion in completions.items() if row not in unusable}
        texts = {row: self.tokenizer.decode(completion.token_ids) for row, completion in good.items()}
        rewards, errors = self._rewards(batch, good, texts)
        failed |= {batch.sample_ids[row]: f"reward_error: {error}" for row, error in errors.items()}
        return self._output(batch, prompts, {row: good[row] for row in rewards}, texts, rewards, failed)

    def _rewards(
        self, batch: Batch, completions: dict[int, Completion], texts: dict[int, str]
    ) -> tuple[dict[int, float | None], dict[int, str]]:
        answers, checkers = batch.values("answer"), batch.values("checker")

        def judge(row: int) -> float | None:
            if answers[row] is None:
                return None
            stopped = completions[row].finish_reason == "stop"
            return self.reward(checkers[row], texts[row], answers[row]) if stopped else 0.0

        return each_alone(lambda rows: [judge(row) for row in rows], list(completions))

    def _too_long(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> dict[str, str]:
        return {
            sample_id: f"prompt_too_long: {len(prompt)} prompt tokens and {how.max_new_tokens} new ones exceed "
            f"max_total_sequence_length {self.engine.max_length}"
            for sample_id, prompt, how in zip(sample_ids, prompts, sampling, strict=True)
            if len(prompt) + how.max_new_tokens > self.engine.max_length
        }

    def _output(
        self,
        batch: Batch,
        prompts: Sequence[Sequence[int]],
        completions: dict[int, Completion],
        texts: dict[int, str],
        rewards: dict[int, float | None],
        failed: dict[str, str],
    ) -> Output:
        columns = {
            "input_ids": [[*prompts[row], *c.token_ids] for row, c in completions.items()],
            "token_mask": [[False] * len(prompts[row]) + [True] * len(c.token_ids) for row, c in completions.items()],
            "generation_logprobs": [[0.0] * len(prompts[row]) + list(c.logprobs) for row, c in completions.items()],
            "finish_reason": [c.finish_reason for c in completions.values()],
            "weight_version": [c.weight_version for c in completions.values()],
            "weight_version_max": [c.weight_version_max for c in completions.values()],
            "reward": [rewards[row] for row in completions],
            "response_text": [texts[row] for row in completions],
        }
        return Output([batch.sample_ids[row] for row in completions], columns, failed)


def _unusable(completion: Completion) -> str | None:
    """Why nothing can be learnt from this completion, if so."""
    if not completion.token_ids:
        return "empty_response: no token was sampled"
    if len(completion.logprobs) != len(completion.token_ids):
        return f"misaligned: expected {len(completion.token_ids)} log-probs, got {len(completion.logprobs)}"
    for position, logprob in enumerate(completion.logprobs):
        if logprob is None or not math.isfinite(logprob):
            return f"bad_logprob: {logprob} at response position {position}"
    return None
