"""What is used of Megatron-core, imported once and without its warnings about optional parts that are not there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from schemas.errors import InputError

if find_spec("megatron") is None or find_spec("megatron.core") is None:
    raise InputError(
        "the megatron engine needs megatron-core, which is not installed; pip install 'opd-plane[megatron]'"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings: Megatron's are about its own future and parts of it that are not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel import random as random_states
    from megatron.core.transformer.transformer_config import TransformerConfig

#: Whether attention and norms come from TransformerEngine, which needs CUDA; else from Megatron's own PyTorch code.
TRANSFORMER_ENGINE = find_spec("transformer_engine") is not None

__all__ = [
    "TRANSFORMER_ENGINE",
    "GPTModel",
    "PackedSeqParams",
    "TransformerConfig",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "parallel_state",
    "quiet",
    "random_states",
    "tensor_parallel",
]
