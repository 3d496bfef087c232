"""Sampling with vLLM: every prompt of a call is in flight at once, and a place that falls free is filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from schemas.config import RunConfig
from schemas.errors import InputError
from stages.protocols import Completion, Sampling
from workers.engines.noise import stream_keys
from workers.engines.vllm.engine import Engine, Request
from workers.engines.vllm.scorer import SamplingPath, entry

#: Engine steps between two looks for newer weights.
LOOK_STEPS = 8


class VLLMGenerator:
    """A generator whose weights follow the trainer's.

    A response ends with an end token (kept, as the last one) or after ``max_new_tokens``. The same seed, sample id and
    weights draw the same response, whatever else is in flight.

    Log-probs are those of the whole vocabulary at the sampling temperature. vLLM's *raw* ones are taken before its own
    temperature, top-p and top-k: so the model's logits are divided by the temperature instead, and vLLM samples at 1.
    Its *processed* ones are taken after all three: a cut vocabulary is refused.
    """

    def __init__(
        self, engine: Engine, stop_ids: Sequence[int], *, logprobs_mode: str = "raw", version: int = 0
    ) -> None:
        self.engine = engine
        self.stop_ids = list(stop_ids)
        self.logprobs_mode = logprobs_mode
        self.version = version
        self.max_length = engine.max_length
        self._newest: Callable[[], int] | None = None
        self._load_newest: Callable[[], None] = lambda: None

    @classmethod
    def load(
        cls,
        path: str | Path,
        stop_ids: Sequence[int],
        *,
        max_length: int,
        batch_size: int,
        vocabulary_size: int,
        config: RunConfig,
    ) -> VLLMGenerator:
        """Start vLLM as *config* says."""
        how = config.generator
        engine = Engine.start(
            path,
            dtype=config.policy.dtype,
            max_length=max_length,
            batch_size=batch_size,
            vocabulary_size=vocabulary_size,
            logprobs_mode=how.logprobs_mode,
            cache_bytes=how.kv_cache_bytes,
            gpu_memory_utilization=how.gpu_memory_utilization,
        )
        # No version yet: the first published one is loaded too, and proving it leaves a prompt in the prefix cache, by
        # which a later sync that forgets the cache shows.
        return cls(engine, stop_ids, logprobs_mode=how.logprobs_mode, version=-1)

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Sample from these weights from now on."""
        self.engine.take_weights(tensors)
        self.version = version

    def scorer(self) -> SamplingPath:
        """Scores under the weights, and through the caches, that sample."""
        return SamplingPath(self.engine)

    def follow(self, newest: Callable[[], int], load_newest: Callable[[], None]) -> None:
        """Do not finish requests under old weights.

        When *newest* tells of another version while requests run, those are dropped, *load_newest* is called, and they
        start again from their prompts: no sample mixes versions.
        """
        self._newest, self._load_newest = newest, load_newest

    def generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        seeds = stream_keys([how.seed for how in sampling], sample_ids)
        groups: dict[float, dict[int, Request]] = {}
        for row, (prompt, how, seed) in enumerate(zip(prompts, sampling, seeds, strict=True)):
            divided = how.temperature or 1.0 if self.logprobs_mode == "raw" else 1.0
            request = Request(prompt, self._params(how, how.temperature / divided, int(seed)))
            groups.setdefault(divided, {})[row] = request
        done: dict[int, Completion] = {}
        for divided, requests in groups.items():
            done |= self._finish(requests, divided)
        return [done[row] for row in range(len(prompts))]

    def _finish(self, requests: dict[int, Request], temperature: float) -> dict[int, Completion]:
        """All of them, each under one version of the weights."""
        done: dict[int, Completion] = {}
        while requests:
            finished = self.engine.run(requests, temperature, _every(LOOK_STEPS, self._is_stale))
            done |= {row: self._completion(output) for row, output in finished.items()}
            requests = {row: request for row, request in requests.items() if row not in finished}
            if requests:
                self._load_newest()
        return done

    def _is_stale(self) -> bool:
        return self._newest is not None and self._newest() != self.version

    def _params(self, how: Sampling, temperature: float, seed: int) -> Any:
        self._assert_exact(how)
        return self.engine.params(
            max_tokens=how.max_new_tokens,
            temperature=temperature,
            top_p=how.top_p,
            top_k=how.top_k,
            seed=seed % 2**63,
            logprobs=0,
            stop_token_ids=self.stop_ids,
            ignore_eos=True,  # the stop ids above are all there are
        )

    def _assert_exact(self, how: Sampling) -> None:
        if self.logprobs_mode == "processed" and how.temperature > 0 and (how.top_p != 1 or how.top_k):
            raise InputError(
                f"vllm's processed log-probs are those of the tokens that top_p {how.top_p:g} and top_k {how.top_k} "
                "leave, not of the whole vocabulary; use raw ones"
            )

    def _completion(self, output: Any) -> Completion:
        answer = output.outputs[0]
        if answer.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vllm ended a request with {answer.finish_reason!r}; expected stop or length")
        tokens = list(answer.token_ids)
        logprobs = [
            entry(given, token, at) for at, (given, token) in enumerate(zip(answer.logprobs, tokens, strict=True))
        ]
        return Completion(tokens, logprobs, str(answer.finish_reason), self.version, self.version)


def _every(steps: int, ask: Callable[[], bool]) -> Callable[[], bool]:
    """*ask*, but only at every so many calls."""
    calls = 0

    def asked() -> bool:
        nonlocal calls
        calls += 1
        return calls % steps == 0 and ask()

    return asked
