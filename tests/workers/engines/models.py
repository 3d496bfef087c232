"""Tiny checkpoints for engines: untrained, but with weights and norms that leave no term of the model unseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

#: Ids that stand for a token. The padded variant's head has more rows.
VOCABULARY = 97
PADDED_ROWS = 128


@dataclass(frozen=True)
class Model:
    """A checkpoint and what plain transformers makes of it."""

    path: Path
    vocabulary: int = VOCABULARY

    @cached_property
    def reference(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(str(self.path), dtype=torch.float32).eval()

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Row t is what token t was drawn from, over real ids; row 0 is 0. [T, V], with a gradient."""
        states = self.states(ids)
        return torch.cat([torch.zeros(1, self.vocabulary), self.head(states)[:-1, : self.vocabulary]])

    def logprobs(self, ids: Sequence[int], temperature: float) -> torch.Tensor:
        """Of each token given those before it; entry 0 is 0. [T], with a gradient."""
        logits = self.logits(ids)[1:] / temperature
        chosen = logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids)[1:].long()]
        return torch.cat([torch.zeros(1), chosen])

    def states(self, ids: Sequence[int]) -> torch.Tensor:
        """Final hidden states, row t after token t. [T, H]"""
        states: torch.Tensor = self.reference.base_model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0]
        return states

    @property
    def head(self) -> Any:
        return self.reference.lm_head


def make_model(directory: Path, variant: str = "tied", seed: int = 0, **changes: Any) -> Model:
    """A two-layer model in *directory*: ``tied``, ``untied`` or ``padded`` (Qwen3), ``llama`` or ``qwen2``."""
    import transformers

    torch.manual_seed(seed)
    kind = {"llama": "Llama", "qwen2": "Qwen2"}.get(variant, "Qwen3")
    rows = PADDED_ROWS if variant == "padded" else VOCABULARY
    config = getattr(transformers, f"{kind}Config")(**{**_SHAPE, **changes}, vocab_size=rows)
    config.tie_word_embeddings = variant != "untied" and changes.get("tie_word_embeddings", True)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.normal_(std=0.2)
        if variant == "padded":  # loud enough to be heard
            model.lm_head.weight[VOCABULARY:] *= 50
    model.save_pretrained(directory)
    return Model(directory)


_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "initializer_range": 0.15,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
