"""The shape of a model on disk: how many numbers it has and how they are laid out. Reads no weight."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import InputError

_ITEMSIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}
_STORED = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelShape:
    """A dense or sparse decoder. *file_bytes* is what its tensors take on disk."""

    parameters: int
    file_bytes: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def embedding(self) -> int:
        """Numbers of the embedding, and of an LM head of its own."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """Numbers of a token's query, keys and values in one layer."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def cache_numbers(self, tokens: int) -> int:
        """Numbers that a KV cache of *tokens* holds."""
        return tokens * self.layers * 2 * self.kv_heads * self.head_dim


def model_shape(path: str | Path) -> ModelShape | None:
    """The shape of the checkpoint at *path*; None if there is none on this machine. Raises InputError if it is odd."""
    directory = Path(path)
    try:
        text = (directory / "config.json").read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        config = json.loads(text)
        config = config.get("text_config", config)
        heads = int(config["num_attention_heads"])
        fixed = {
            "layers": int(config["num_hidden_layers"]),
            "hidden": int(config["hidden_size"]),
            "intermediate": int(config["intermediate_size"]),
            "heads": heads,
            "kv_heads": int(config.get("num_key_value_heads") or heads),
            "head_dim": int(config.get("head_dim") or config["hidden_size"] // heads),
            "vocabulary": int(config["vocab_size"]),
        }
        parameters, file_bytes = _tensors(directory, config) or _from_config(config, fixed)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, struct.error) as error:
        raise InputError(f"checkpoint {str(path)!r}: cannot be planned for ({type(error).__name__}: {error})") from None
    return ModelShape(parameters, file_bytes, **fixed)


def _tensors(directory: Path, config: dict[str, Any]) -> tuple[int, int] | None:
    """(numbers, bytes) of the tensors, from the files' headers, else from their index; None without either."""
    files = [file for file in sorted(directory.glob("*.safetensors")) if file.name != "optimizer.safetensors"]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        said = json.loads(index.read_text(encoding="utf-8"))
        total = int(said["metadata"]["total_size"])
        missing = {directory / name for name in said["weight_map"].values()} - set(files)
        if missing:
            return int(said["metadata"].get("total_parameters") or total // _stored(config)), total
    tensors = [entry for file in files for name, entry in _header(file).items() if name != "__metadata__"]
    if not tensors:
        return None
    numbers = [(math.prod(tensor["shape"]), _ITEMSIZE[tensor["dtype"]]) for tensor in tensors]
    return sum(count for count, _ in numbers), sum(count * size for count, size in numbers)


def _header(file: Path) -> dict[str, Any]:
    """The JSON at the start of a safetensors file."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header: dict[str, Any] = json.loads(opened.read(length))
        return header


def _from_config(config: dict[str, Any], fixed: dict[str, int]) -> tuple[int, int]:
    """(numbers, bytes) of a dense Llama or Qwen, which is what the settings describe."""
    hidden = fixed["hidden"]
    queries, keys = fixed["heads"] * fixed["head_dim"], fixed["kv_heads"] * fixed["head_dim"]
    layer = hidden * (2 * queries + 2 * keys + 3 * fixed["intermediate"] + 2)
    heads = 1 if config.get("tie_word_embeddings") else 2
    numbers = fixed["layers"] * layer + heads * fixed["vocabulary"] * hidden + hidden
    return numbers, numbers * _stored(config)


def _stored(config: dict[str, Any]) -> int:
    return _STORED[str(config.get("dtype") or config.get("torch_dtype") or "float32")]
