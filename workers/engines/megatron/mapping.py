"""Tensors of a Hugging Face checkpoint to those of one tensor-parallel rank, and back.

Of a layer of two query groups (``a`` query heads each), four hidden columns and two ranks, rank 1 holds

    self_attention.linear_qkv    of group 1: its a query heads, its key, its value      cut by groups
    mlp.linear_fc1               the second halves of gate_proj and up_proj             cut by rows, twice
    self_attention.linear_proj   the columns of o_proj for its heads                    cut by columns
    *_layernorm                  all of it                                              whole

Embedding and head are cut by rows, padded with zeros to a multiple of the ranks. Norms have other names where
TransformerEngine fuses them into the projection that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.engines.megatron.architecture import Architecture


class Cut(Protocol):
    """How some tensors of a checkpoint become one of each rank."""

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        """Of rank *rank* among *size*."""
        ...

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The tensors again, from the parts of all ranks."""
        ...


@dataclass(frozen=True)
class Whole:
    """The same on every rank. Where each applies it to heads of its own (*summed*), their gradients add up."""

    summed: bool = False

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        return tensors[0]

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [parts[0]]


@dataclass(frozen=True)
class Rows:
    """Cut along the vocabulary."""

    rows: int

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        [table] = tensors
        return pad(table, (0, 0, 0, -len(table) % size)).chunk(size)[rank]

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(parts))[: self.rows]]


@dataclass(frozen=True)
class Columns:
    """Cut along the input."""

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        return tensors[0].chunk(size, 1)[rank]

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(parts), 1)]


@dataclass(frozen=True)
class Gated:
    """Two projections, each cut along the output, one under the other."""

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        halves = [part.chunk(2) for part in parts]
        return [torch.cat(list(half)) for half in zip(*halves, strict=True)]


@dataclass(frozen=True)
class Groups:
    """Query, key and value projections, weights or biases, by query groups; *rows* of each in a group."""

    groups: int
    rows: tuple[int, int, int]

    def part(self, tensors: Sequence[Tensor], rank: int, size: int) -> Tensor:
        by_group = [tensor.unflatten(0, (self.groups, -1)) for tensor in tensors]
        return torch.cat(by_group, 1).chunk(size)[rank].flatten(0, 1)

    def whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        by_group = torch.cat(list(parts)).unflatten(0, (self.groups, -1))
        return [tensor.flatten(0, 1) for tensor in by_group.split(list(self.rows), 1)]


@dataclass(frozen=True)
class Unit:
    """One tensor of Megatron's: the *names* in the checkpoint of what it holds, and how it is cut."""

    names: tuple[str, ...]
    cut: Cut


def unit(name: str, architecture: Architecture, first_layer: int = 0) -> Unit:
    """Of Megatron's parameter *name* on a stage that begins with layer *first_layer*."""
    if name == "embedding.word_embeddings.weight":
        return Unit((_EMBEDDING,), Rows(architecture.rows))
    if name == "output_layer.weight":
        return Unit((_EMBEDDING if architecture.tied else "lm_head.weight",), Rows(architecture.rows))
    if name == "decoder.final_layernorm.weight":
        return Unit(("model.norm.weight",), Whole())
    _, _, number, rest = name.split(".", 3)
    prefix = f"model.layers.{int(number) + first_layer}."
    names, cut = _in_layer(rest, architecture)
    return Unit(tuple(prefix + each for each in names), cut)


_EMBEDDING = "model.embed_tokens.weight"

#: Inside a layer: what is the same for every model.
_LAYER: dict[str, tuple[tuple[str, ...], Cut]] = {
    "input_layernorm.weight": (("input_layernorm.weight",), Whole()),
    "self_attention.linear_qkv.layer_norm_weight": (("input_layernorm.weight",), Whole()),
    "pre_mlp_layernorm.weight": (("post_attention_layernorm.weight",), Whole()),
    "mlp.linear_fc1.layer_norm_weight": (("post_attention_layernorm.weight",), Whole()),
    "self_attention.q_layernorm.weight": (("self_attn.q_norm.weight",), Whole(summed=True)),
    "self_attention.k_layernorm.weight": (("self_attn.k_norm.weight",), Whole(summed=True)),
    "self_attention.linear_proj.weight": (("self_attn.o_proj.weight",), Columns()),
    "mlp.linear_fc1.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), Gated()),
    "mlp.linear_fc2.weight": (("mlp.down_proj.weight",), Columns()),
}


def _in_layer(rest: str, architecture: Architecture) -> tuple[tuple[str, ...], Cut]:
    if not rest.startswith("self_attention.linear_qkv.") or rest in _LAYER:
        return _LAYER[rest]
    kind = rest.rpartition(".")[2]  # weight or bias
    each, head_dim = architecture.heads // architecture.groups, architecture.head_dim
    cut = Groups(architecture.groups, (each * head_dim, head_dim, head_dim))
    return tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv"), cut


def shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every parameter of the checkpoint, in the order in which transformers has them; a tied head once."""
    a = architecture
    queries, keys = a.heads * a.head_dim, a.groups * a.head_dim
    attention: dict[str, tuple[int, ...]] = {}
    for part, rows in (("q", queries), ("k", keys), ("v", keys)):
        attention[f"self_attn.{part}_proj.weight"] = (rows, a.hidden)
        if a.qkv_bias:
            attention[f"self_attn.{part}_proj.bias"] = (rows,)
    attention["self_attn.o_proj.weight"] = (a.hidden, queries)
    if a.qk_norm:
        attention |= {f"self_attn.{part}_norm.weight": (a.head_dim,) for part in "qk"}
    layer = attention | {
        "mlp.gate_proj.weight": (a.ffn, a.hidden),
        "mlp.up_proj.weight": (a.ffn, a.hidden),
        "mlp.down_proj.weight": (a.hidden, a.ffn),
        "input_layernorm.weight": (a.hidden,),
        "post_attention_layernorm.weight": (a.hidden,),
    }
    layers = {f"model.layers.{n}.{name}": shape for n in range(a.layers) for name, shape in layer.items()}
    head = {} if a.tied else {"lm_head.weight": (a.rows, a.hidden)}
    return {_EMBEDDING: (a.rows, a.hidden), **layers, "model.norm.weight": (a.hidden,), **head}
