"""One vLLM engine in this process: requests in, finished requests out, new weights in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from schemas.errors import InputError
from stages.vocabulary import assert_plain_lm_head
from workers.engines.vllm.heads import wide_head, widen_heads
from workers.engines.vllm.settings import engine_arguments, head_dim, prepare_environment, read_model_config


@dataclass(frozen=True)
class Request:
    """Prompt ids and what vLLM is to do with them. Requests of different *salt* share no cached prefix."""

    prompt: Sequence[int]
    #: vllm.SamplingParams
    params: Any
    salt: str | None = None

    def as_prompt(self) -> dict[str, Any]:
        salt = {} if self.salt is None else {"cache_salt": self.salt}
        return {"prompt_token_ids": list(self.prompt), **salt}


class Engine:
    """A ``vllm.LLM`` and what it was made from."""

    def __init__(self, llm: Any, *, max_length: int, vocabulary_size: int, narrow: int, wide: int | None) -> None:
        self.llm = llm
        self.max_length = max_length
        self.vocabulary_size = vocabulary_size
        self.narrow, self.wide = narrow, wide
        self._temperature = 1.0
        llm.collective_rpc("limit_vocabulary", args=(vocabulary_size,))

    @classmethod
    def start(
        cls,
        path: str | Path,
        *,
        dtype: str,
        batch_size: int,
        vocabulary_size: int | None,
        max_length: int | None = None,
        **options: Any,
    ) -> Engine:
        """Start vLLM on the checkpoint at *path*. Raises InputError where it cannot run it, or is not installed."""
        model, cuda = read_model_config(path), torch.cuda.is_available()
        assert_plain_lm_head(model, str(path))
        prepare_environment(cuda)
        positions = int(model["max_position_embeddings"])
        length = min(max_length or positions, positions)
        wide = None if cuda else wide_head(model)
        arguments = engine_arguments(
            path,
            model,
            dtype=dtype,
            max_length=length,
            batch_size=batch_size,
            cuda=cuda,
            wide_head=wide,
            **options,
        )
        size = min(vocabulary_size or int(model["vocab_size"]), int(model["vocab_size"]))
        engine = cls(
            _vllm().LLM(**arguments), max_length=length, vocabulary_size=size, narrow=head_dim(model), wide=wide
        )
        if wide is not None:
            engine.take_weights(read_checkpoint(path))
        return engine

    def params(self, **options: Any) -> Any:
        """``vllm.SamplingParams``: text is none of its business, and only finished requests are told."""
        vllm = _vllm()
        return vllm.SamplingParams(
            **options, detokenize=False, output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        )

    def run(
        self, requests: Mapping[int, Request], temperature: float = 1.0, stop: Callable[[], bool] = lambda: False
    ) -> dict[int, Any]:
        """vLLM's outputs by key, of the model whose logits are divided by *temperature* before anything else.

        When *stop* holds between two steps, what is not finished is dropped and missing.
        """
        self._divide_logits(temperature)
        engine, finished, running = self.llm.llm_engine, {}, {}
        try:
            for key, request in requests.items():
                running[key] = engine.add_request(str(key), request.as_prompt(), request.params)
            while running and not stop():
                for output in engine.step():
                    if output.finished:
                        finished[int(output.request_id)] = output
                        del running[int(output.request_id)]
        finally:
            if running:
                engine.abort_request(list(running.values()), internal=True)
        return finished

    def _divide_logits(self, temperature: float) -> None:
        if temperature != self._temperature:
            self.llm.collective_rpc("divide_logits", args=(temperature, self._temperature))
            self._temperature = temperature

    def take_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute with these weights from now on; nothing cached of the old ones is left."""
        if self.wide is not None:
            tensors = widen_heads(tensors, self.narrow, self.wide)
        self.llm.collective_rpc("take_weights", args=(dict(tensors),))
        self.forget_prefixes()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Raises RuntimeError where vLLM refuses, as it does while requests run."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vllm: its prefix cache could not be reset, so that it still holds old weights' states")


def read_checkpoint(path: str | Path) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint at *path*. Raises InputError if it has no safetensors."""
    files = sorted(Path(path).glob("*.safetensors"))
    if not files:
        raise InputError(f"checkpoint {str(path)!r}: no safetensors there")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _vllm() -> Any:
    try:
        import vllm
    except ImportError as error:
        raise InputError(
            f"engine vllm: cannot be imported here ({error}); install it into an environment of its own "
            "(make test-engines) and name its interpreter, as in generator.python=.venv-engines/bin/python"
        ) from error
    return vllm
