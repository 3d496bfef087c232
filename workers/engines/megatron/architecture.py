"""What the config.json of a dense checkpoint says about its model, and which models are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from stages.vocabulary import assert_plain_lm_head

#: Types of models that are known, and whether they have a bias in their query, key and value projections.
QKV_BIAS = {"llama": False, "qwen2": True, "qwen3": False}

#: Llama 3's scaling of rotary frequencies, whose factor alone is free.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of a model. *rows* are those of the embedding, padding of the vocabulary included."""

    model_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    rows: int
    max_length: int
    norm_eps: float
    rope_theta: float
    rope_factor: float | None
    tied: bool

    @property
    def qkv_bias(self) -> bool:
        return QKV_BIAS[self.model_type]

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"

    @classmethod
    def read(cls, path: str | Path) -> Architecture:
        """Of the checkpoint at *path*. Raises InputError if it is not there or is none that is known."""
        file = Path(path) / "config.json"
        if not file.is_file():
            raise InputError(f"checkpoint {str(path)!r}: no config.json there; expected a directory for transformers")
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
        if kind not in QKV_BIAS:
            raise InputError(
                f"model {str(path)!r}: the megatron engine knows dense {', '.join(QKV_BIAS)} models, got {kind!r}; "
                "use engine hf"
            )
        from transformers import AutoConfig  # a config.json may leave out what its class has as default

        return cls.of(AutoConfig.from_pretrained(str(path)).to_dict(), str(path))

    @classmethod
    def of(cls, config: dict[str, Any], name: str) -> Architecture:
        """What *config* says of the model *name*."""
        assert_plain_lm_head(config, name)
        for problem in _unknown(config):
            raise InputError(f"model {name!r}: {problem}, which the megatron engine does not know; use engine hf")
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        rope = _rope(config)
        return cls(
            config["model_type"],
            layers=config["num_hidden_layers"],
            hidden=hidden,
            ffn=config["intermediate_size"],
            heads=heads,
            groups=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            rows=config["vocab_size"],
            max_length=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            rope_theta=float(rope.get("rope_theta", 10000.0)),
            rope_factor=float(rope["factor"]) if rope["rope_type"] == "llama3" else None,
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def assert_divides(self, tensor: int, name: str) -> None:
        """Raise InputError if *tensor* ranks cannot share each layer evenly."""
        shared = {"num_attention_heads": self.heads, "num_key_value_heads": self.groups, "intermediate_size": self.ffn}
        for key, count in shared.items():
            if count % tensor:
                raise InputError(
                    f"model {name!r}: its {key} {count} cannot be shared by {tensor} tensor-parallel ranks; "
                    "choose a size that divides it"
                )


def _unknown(config: dict[str, Any]) -> Iterator[str]:
    """Settings that change what the model computes in a way that is not built here."""
    if config.get("hidden_act") != "silu":
        yield f"hidden_act is {config.get('hidden_act')!r}"
    for switch in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(switch):
            yield f"{switch} is true"
    rope = _rope(config)
    if rope["rope_type"] not in ("default", "llama3"):
        yield f"rope_type is {rope['rope_type']!r}"
    elif rope["rope_type"] == "llama3":
        for key, value in _LLAMA3.items():
            if rope.get(key, value) != value:
                yield f"{key} of llama3 rope is {rope[key]}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor is {rope['partial_rotary_factor']}"


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of the rotary embedding, which older checkpoints keep in two places."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope
