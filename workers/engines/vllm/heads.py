"""vLLM's CPU attention knows heads of 32 and more. Narrower ones are widened here, with zeros, to the same function.

A head of d numbers becomes one of r·d. RoPE turns the pair (i, i + d/2) at the rate theta^(-2i/d), which is that of the
pair (r·i, r·i + r·d/2) in the wide head: queries and keys are spread out so, values are padded at the end. The wide
head divides scores by sqrt(r·d) in place of sqrt(d), and its RMS norms of queries and keys, with all those zeros,
give sqrt(r) times as much: one factor on the queries' projection, or on the keys' norm, makes up for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from schemas.errors import InputError
from workers.engines.vllm.settings import head_dim

#: Head widths of vLLM's attention on a CPU.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
#: Models of which vLLM reads ``head_dim``; of others it divides ``hidden_size`` by the heads.
READ = ("qwen3", "llama", "mistral")


def wide_head(model: Mapping[str, Any]) -> int | None:
    """How wide heads must become on a CPU; None if vLLM knows their width. Raises InputError if none would do."""
    narrow = head_dim(model)
    if narrow in CPU_HEADS:
        return None
    wide = next((size for size in CPU_HEADS if size % narrow == 0), None)
    rope = model.get("rope_parameters") or model.get("rope_scaling") or {}
    if (
        wide is None
        or narrow % 2
        or model.get("model_type") not in READ
        or rope.get("rope_type", rope.get("type", "default")) != "default"
    ):
        raise InputError(
            f"head_dim {narrow}: vllm on a CPU knows {', '.join(map(str, CPU_HEADS))}; only divisors of these can be "
            f"widened, with plain RoPE, in {', '.join(READ)}; use the engine hf"
        )
    return wide


def widen_heads(tensors: Mapping[str, torch.Tensor], narrow: int, wide: int) -> dict[str, torch.Tensor]:
    """*tensors* by their Hugging Face names, every head *wide* instead of *narrow*; they compute the same."""
    ratio = wide // narrow
    normed = any(name.endswith(".k_norm.weight") for name in tensors)
    return {name: _widen(name, tensor, narrow, ratio, normed) for name, tensor in tensors.items()}


def _widen(name: str, tensor: torch.Tensor, narrow: int, ratio: int, normed: bool) -> torch.Tensor:
    parts = name.split(".")
    match parts[-2] if len(parts) > 1 else "":
        case "q_proj":
            return _spread(tensor, narrow, ratio) * (1.0 if normed else math.sqrt(ratio))
        case "k_proj":
            return _spread(tensor, narrow, ratio)
        case "q_norm":
            return _spread(tensor, narrow, ratio)
        case "k_norm":
            return _spread(tensor, narrow, ratio) / math.sqrt(ratio)
        case "v_proj":
            return _padded(tensor, narrow, ratio)
        case "o_proj" if parts[-1] == "weight":
            return _padded(tensor.T, narrow, ratio).T.contiguous()
    return tensor


def _spread(tensor: torch.Tensor, narrow: int, ratio: int) -> torch.Tensor:
    """Row i of each half of a head goes to row ratio · i of that half; [heads · narrow, …]."""
    halves = tensor.reshape(-1, narrow // 2, 1, *tensor.shape[1:])
    wide = halves.new_zeros(len(halves), narrow // 2, ratio, *tensor.shape[1:])
    wide[:, :, :1] = halves
    return wide.reshape(-1, *tensor.shape[1:])


def _padded(tensor: torch.Tensor, narrow: int, ratio: int) -> torch.Tensor:
    """Zeros after the rows of each head; [heads · narrow, …]."""
    heads = tensor.reshape(-1, narrow, *tensor.shape[1:])
    wide = heads.new_zeros(len(heads), narrow * ratio, *tensor.shape[1:])
    wide[:, :narrow] = heads
    return wide.reshape(-1, *tensor.shape[1:])
