"""Loading a Hugging Face checkpoint, and the forward pass every HF engine shares."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from schemas.errors import InputError
from stages.losses.memory import CHUNK_NUMBERS
from stages.vocabulary import assert_plain_lm_head

#: A transformers model with ``base_model``, ``lm_head`` and ``config``; transformers comes without types.
CausalLM = Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def load_model(path: str | Path, dtype: str = "float32") -> CausalLM:
    """The causal language model at *path*, on the GPU if there is one. Raises InputError if it is not there."""
    import transformers

    if not (Path(path) / "config.json").is_file():
        raise InputError(f"checkpoint {str(path)!r}: no config.json there; expected a directory for transformers")
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint {str(path)!r}: cannot be loaded ({error})") from error
    assert_plain_lm_head(model.config.to_dict(), str(path))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def recompute_activations(model: CausalLM) -> None:
    """Keep no activation of a layer but its input; the backward pass computes the others again.

    transformers does so only in training mode, in which it would also drop out: that is switched off.
    """
    # transformers is renaming this method; older versions know only the second name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def max_positions(model: CausalLM) -> int:
    """Longest sequence the model was made for."""
    return int(model.config.max_position_embeddings)


def pad_right(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, [B, S] each. Filler is id 0 and is never attended to."""
    width = max(map(len, sequences))
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence)
        mask[row, : len(sequence)] = True
    return ids.to(device), mask.to(device)


def states_of(model: CausalLM, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Final hidden states, row t *after* token t; [B, S, H]."""
    return model.base_model(input_ids=ids, attention_mask=mask.long()).last_hidden_state


def token_logprobs(
    model: CausalLM, ids: torch.Tensor, mask: torch.Tensor, temperature: float, vocabulary: int | None = None
) -> torch.Tensor:
    """log p(ids[t] | ids[<t]) at *temperature*, input-position aligned; [B, S], float32, column 0 is 0."""
    return logprobs_of(model, states_of(model, ids, mask), ids, temperature, vocabulary)


def logprobs_of(
    model: CausalLM,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    temperature: float,
    vocabulary: int | None = None,
) -> torch.Tensor:
    """The log-prob of each token given *hidden*, the states after each token; [B, S], float32.

    Ids from *vocabulary* on are padding of the LM head and outside the softmax. Vocabulary-wide logits exist for a
    few positions at a time, in the backward pass too.
    """
    scale = max(temperature, 0.0) or 1.0
    pieces = [
        checkpoint(
            _gather_logprobs,
            model.lm_head,
            hidden[:, start:stop],
            ids[:, start + 1 : stop + 1],
            scale,
            vocabulary,
            use_reentrant=False,
        )
        for start, stop in _chunks(ids.shape[1] - 1, len(ids) * len(model.lm_head.weight))
    ]
    first = hidden.new_zeros(len(ids), 1, dtype=torch.float32)
    return torch.cat([first, *pieces], dim=1)


def _chunks(length: int, numbers_per_position: int) -> Iterator[tuple[int, int]]:
    step = max(1, CHUNK_NUMBERS // numbers_per_position)
    for start in range(0, length, step):
        yield start, min(start + step, length)


def _gather_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, vocabulary: int | None
) -> torch.Tensor:
    logits = real_logits(head(hidden), vocabulary).float() / temperature
    chosen = logits.gather(2, targets[..., None])[..., 0]
    return chosen - torch.logsumexp(logits, dim=-1)


def real_logits(logits: torch.Tensor, vocabulary: int | None) -> torch.Tensor:
    """*logits* [..., V] without those of the head's padding."""
    return logits if vocabulary is None or logits.shape[-1] <= vocabulary else logits[..., :vocabulary]
