"""How vLLM is started: environment variables, which count only before its import, and engine arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import InputError

#: Everywhere. The engine lives in this very process, so that weights are handed over by reference.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # The longest sequence is scored with one token to spare, which is drawn and never fed back.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
#: Without a GPU. Eager mode would still compile helpers, for 15 s; roles that share cores must not be pinned to them.
CPU_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

#: Tokens of a block of the KV cache on a CPU: a sequence takes whole blocks.
CPU_BLOCK = 128
#: Most bytes that the KV cache takes on a CPU, unless one sequence needs more.
CPU_CACHE_LIMIT = 4 * 2**30

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def prepare_environment(cuda: bool) -> None:
    """Set what vLLM reads at its import; what is set already stays, but for the engine's own process."""
    for key, value in {**ENVIRONMENT, **({} if cuda else CPU_ENVIRONMENT)}.items():
        os.environ.setdefault(key, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def read_model_config(path: str | Path) -> dict[str, Any]:
    """``config.json`` of the checkpoint at *path*. Raises InputError if it is not there."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise InputError(f"checkpoint {str(path)!r}: no config.json there; expected a directory for transformers")
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return config


def head_dim(model: Mapping[str, Any]) -> int:
    """Width of an attention head."""
    return int(model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"])


def kv_cache_bytes(model: Mapping[str, Any], dtype: str, width: int, max_length: int, sequences: int) -> int:
    """KV cache on a CPU for *sequences* of *max_length* tokens at once, heads being *width* wide."""
    heads = int(model.get("num_key_value_heads") or model["num_attention_heads"])
    a_token = 2 * int(model["num_hidden_layers"]) * heads * width * _BYTES[dtype]
    blocks = -(-max_length // CPU_BLOCK)
    a_sequence = a_token * CPU_BLOCK * blocks
    # one block is always lost to vLLM's own null block
    return max(min(a_sequence * sequences, CPU_CACHE_LIMIT), a_sequence) + a_token * CPU_BLOCK


def engine_arguments(
    path: str | Path,
    model: Mapping[str, Any],
    *,
    dtype: str,
    max_length: int,
    batch_size: int,
    cuda: bool,
    logprobs_mode: str = "raw",
    cache_bytes: int | None = None,
    gpu_memory_utilization: float = 0.85,
    wide_head: int | None = None,
) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``. With *wide_head* it starts without weights, which are then given to it widened."""
    arguments: dict[str, Any] = {
        "model": str(path),
        "dtype": dtype,
        "max_model_len": max_length + 1,
        "max_num_seqs": batch_size,
        "logprobs_mode": f"{logprobs_mode}_logprobs",
        "worker_extension_cls": "workers.engines.vllm.sync.WeightSync",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # sampling comes from the recipe, not from the checkpoint
        "enable_prefix_caching": True,
        "async_scheduling": False,  # no step may be under way when weights change
        "disable_log_stats": True,
    }
    if cuda:
        arguments["gpu_memory_utilization"] = gpu_memory_utilization
    else:
        width = wide_head or head_dim(model)
        arguments["enforce_eager"] = True
        arguments["kv_cache_memory_bytes"] = cache_bytes or kv_cache_bytes(model, dtype, width, max_length, batch_size)
    if wide_head is not None:
        arguments |= {"load_format": "dummy", "hf_overrides": {"head_dim": wide_head}}
    return arguments
