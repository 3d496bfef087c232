"""The LM head of a checkpoint on disk, without the rest of its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from schemas.errors import InputError
from stages.losses.memory import HeadShape
from stages.vocabulary import assert_plain_lm_head

#: Names of the head's tensor, and of the embedding that stands in for a tied one.
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def load_head(path: str | Path) -> torch.Tensor:
    """The head [V, H] in its stored type. Raises InputError if it is not there, or logits are more than its product."""
    file, name = _find(path)
    with safe_open(file, framework="pt") as tensors:
        head: torch.Tensor = tensors.get_tensor(name)
    return head


def head_shape(path: str | Path) -> HeadShape:
    """Rows, columns and bytes a number of the head. Reads no weight. Raises InputError as :func:`load_head`."""
    file, name = _find(path)
    with safe_open(file, framework="pt") as tensors:
        part = tensors.get_slice(name)
        vocabulary, hidden = part.get_shape()
        return HeadShape(vocabulary, hidden, _BYTES.get(part.get_dtype(), 4))


def _find(path: str | Path) -> tuple[Path, str]:
    """The file that holds the head, and its tensor's name."""
    directory = Path(path)
    config = _config(directory)
    assert_plain_lm_head(config, str(path))
    where = tensor_files(directory)
    bias = next((name.replace("weight", "bias") for name in HEADS if name.replace("weight", "bias") in where), None)
    if bias is not None:
        raise InputError(
            f"model {str(path)!r}: its LM head has a bias ({bias}), so hidden states cannot stand for its logits; "
            "use on_policy_distillation.full.teacher_payload logits"
        )
    name = next((name for name in (*HEADS, *EMBEDDINGS) if name in where), None)
    if name is None or (name in EMBEDDINGS and not config.get("tie_word_embeddings", True)):
        raise InputError(f"model {str(path)!r}: no LM head among its tensors; looked for {', '.join(HEADS)}")
    return directory / where[name], name


def _config(directory: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint {str(directory)!r}: its config.json cannot be read ({error})") from None
    return config.get("text_config", config)


def tensor_files(directory: Path) -> dict[str, str]:
    """The file of each tensor by name. Raises InputError where there is no safetensors file."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weights: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return weights
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(f"checkpoint {str(directory)!r}: no safetensors file there; convert it with save_pretrained")
    found: dict[str, str] = {}
    for file in (file for file in files if file.name != "optimizer.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            found |= dict.fromkeys(tensors.keys(), file.name)
    return found
