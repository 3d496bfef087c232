"""Building a Megatron model for a Hugging Face checkpoint, this rank's part of it, and filling it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from schemas.errors import InputError, did_you_mean
from workers.engines.megatron.architecture import Architecture
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.layout import Layout
from workers.engines.megatron.library import (
    TRANSFORMER_ENGINE,
    GPTModel,
    TransformerConfig,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from workers.engines.megatron.mapping import Unit, unit

#: Settings of Megatron's that the checkpoint, the layout or this engine decides.
DECIDED = {
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("gated_linear_unit", "activation_func", "add_bias_linear", "add_qkv_bias", "normalization", "layernorm_epsilon"),
    *("qk_layernorm", "hidden_dropout", "attention_dropout", "tensor_model_parallel_size", "context_parallel_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "pipeline_dtype", "params_dtype"),
    *("bf16", "fp16", "perform_initialization", "use_cpu_initialization"),
}


class StatesOnly(GPTModel):
    """A GPTModel that ends with the last hidden states: the LM head is applied outside, a few tokens at a time."""

    def setup_embeddings_and_output_layer(self) -> None:
        """Nothing to set up: a tied head on another stage is filled from the checkpoint, like everything."""

    def _postprocess(self, hidden_states: Tensor, **rest: Any) -> Tensor:
        return hidden_states

    def head(self) -> Tensor:
        """This rank's part of the LM head, on the last stage; [V / tensor ranks, H]."""
        weight: Tensor = self.output_layer.weight
        return self.embedding.word_embeddings.weight if weight is None else weight


class Tensors(Protocol):
    """Tensors of a checkpoint by name."""

    def __getitem__(self, name: str, /) -> Tensor: ...


class Part(NamedTuple):
    """A parameter of this rank and what it holds."""

    parameter: torch.nn.Parameter
    unit: Unit


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raise InputError for a setting that Megatron does not know, is decided elsewhere, or has another type."""
    known = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    for name, value in overrides.items():
        if name not in known:
            raise InputError(f"megatron setting {name!r}: Megatron has no such setting{did_you_mean(name, known)}")
        if name in DECIDED:
            raise InputError(
                f"megatron setting {name!r}: the checkpoint or the sizes of the ranks decide it; remove it"
            )
        default = known[name].default
        if isinstance(default, bool | int | float | str) and not _fits(value, default):
            raise InputError(
                f"megatron setting {name!r}: expected {type(default).__name__} (by default {default}), got {value!r}"
            )


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float) if isinstance(default, float) else isinstance(value, type(default))


def build(
    architecture: Architecture, layout: Layout, dtype: torch.dtype, overrides: Mapping[str, Any], name: str
) -> StatesOnly:
    """This rank's part of a model, its weights not set. Raises InputError for what Megatron refuses."""
    check_overrides(overrides)
    architecture.assert_divides(layout.tensor.size, name)
    _assert_supported(layout, overrides, name)
    try:
        with megatron_code():
            config = TransformerConfig(**{**_settings(architecture, layout, dtype), **overrides})
            model = StatesOnly(config, _layer(architecture), **_frame(architecture, layout))
    except (AssertionError, ValueError, RuntimeError) as error:
        raise InputError(f"model {name!r}: Megatron refuses these sizes or settings: {error}") from error
    return model.to(layout.device, dtype).eval()


def _assert_supported(layout: Layout, overrides: Mapping[str, Any], name: str) -> None:
    if layout.context.size > 1 and not TRANSFORMER_ENGINE:
        raise InputError(
            f"model {name!r}: context_parallel_size {layout.context.size} needs TransformerEngine's attention, which "
            "is not installed; use 1"
        )
    if overrides.get("expert_model_parallel_size", 1) != 1:
        raise InputError(f"model {name!r}: expert_model_parallel_size is for experts, and it has none; use 1")


def _settings(a: Architecture, layout: Layout, dtype: torch.dtype) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "num_layers": a.layers,
        "hidden_size": a.hidden,
        "ffn_hidden_size": a.ffn,
        "num_attention_heads": a.heads,
        "num_query_groups": a.groups,
        "kv_channels": a.head_dim,
        "gated_linear_unit": True,
        "activation_func": silu,
        "add_bias_linear": False,
        "add_qkv_bias": a.qkv_bias,
        "normalization": "RMSNorm",
        "layernorm_epsilon": a.norm_eps,
        "qk_layernorm": a.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": layout.tensor.size,
        "pipeline_model_parallel_size": layout.pipeline.size,
        "context_parallel_size": layout.context.size,
        "pipeline_dtype": dtype,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "perform_initialization": False,
        "use_cpu_initialization": not cuda,
        "gradient_accumulation_fusion": False,
    }


def _layer(a: Architecture) -> Any:
    if TRANSFORMER_ENGINE and torch.cuda.is_available():
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=a.qk_norm)
    return get_gpt_layer_local_spec(qk_layernorm=a.qk_norm, normalization="RMSNorm")


def _frame(a: Architecture, layout: Layout) -> dict[str, Any]:
    """What surrounds the layers."""
    return {
        "vocab_size": a.rows + -a.rows % layout.tensor.size,
        "max_sequence_length": a.max_length,
        "pre_process": layout.pipeline.first,
        "post_process": layout.pipeline.last,
        "share_embeddings_and_output_weights": a.tied,
        "position_embedding_type": "rope",
        "rotary_base": a.rope_theta,
        "rope_scaling": a.rope_factor is not None,
        "rope_scaling_factor": a.rope_factor or 1.0,
    }


def parts(model: StatesOnly, architecture: Architecture) -> dict[str, Part]:
    """The parameters of this rank by their name in the whole of Megatron's model."""
    layers = model.decoder.layers
    first = layers[0].layer_number - 1 if len(layers) else 0
    return {_in_whole(name, first): Part(p, unit(name, architecture, first)) for name, p in model.named_parameters()}


def _in_whole(name: str, first_layer: int) -> str:
    head, found, rest = name.partition("decoder.layers.")
    if not found:
        return name
    number, _, rest = rest.partition(".")
    return f"{head}{found}{int(number) + first_layer}.{rest}"


@torch.no_grad()
def fill(held: Mapping[str, Part], tensors: Tensors, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Set every parameter from *tensors*; each name, with what it was set to before its type changed."""
    for name, (parameter, of) in held.items():
        value = of.cut.part([tensors[each] for each in of.names], layout.tensor.rank, layout.tensor.size)
        if value.shape != parameter.shape:
            raise InputError(
                f"tensors {', '.join(of.names)}: expected a part of shape {tuple(parameter.shape)}, got "
                f"{tuple(value.shape)}; the config.json is of another model"
            )
        parameter.copy_(value)
        yield name, value


def recompute_activations(model: StatesOnly) -> None:
    """Keep no activation of a layer but its input; the backward pass computes the others again."""

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
        )

    for layer in model.decoder.layers:
        layer.forward = again(layer.forward)
