"""The whole model's tensors under their Hugging Face names, from the parts of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from workers.engines.megatron.layout import Layout
from workers.engines.megatron.mapping import Unit
from workers.engines.megatron.model import Part
from workers.engines.megatron.vocabulary import gathered


class Exporter:
    """Brings parts together on the leader, one tensor at a time. Every rank must take part, in the same order.

    *shapes* are those of the whole tensors, in the order in which they come out.
    """

    def __init__(self, held: Mapping[str, Part], layout: Layout, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.held, self.layout, self.shapes = held, layout, shapes
        mine = [(name, part.unit.names) for name, part in held.items()]
        stages = [json.loads(said) for said in layout.ranks.gather(json.dumps(mine).encode())]
        #: Stage and names of every unit, by its first name; a tied head's second copy is left out.
        self.owners: dict[str, tuple[int, str, tuple[str, ...]]] = {}
        for stage in range(layout.pipeline.size):
            for name, names in stages[layout.world_rank(pipeline=stage)]:
                self.owners.setdefault(names[0], (stage, name, tuple(names)))

    def __call__(self, value: Callable[[str], Tensor], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """(Name, whole tensor on the CPU) on the leader, nothing elsewhere.

        ``value(name)`` is this rank's part of what is wanted of Megatron's parameter *name*, of type *dtype*.
        """
        if self.layout.data.rank or self.layout.context.rank:
            return  # the first replica has all of it
        for first in (name for name in self.shapes if name in self.owners):
            stage, name, names = self.owners[first]
            mine = self._together(self.held[name].unit, value(name)) if stage == self.layout.pipeline.rank else []
            if stage and self.layout.tensor.first:
                mine = self._to_leader(stage, names, mine, dtype)
            if self.layout.ranks.leader:
                yield from zip(names, mine, strict=True)

    def ordered(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """*named* in the order of the shapes."""
        return {name: named[name] for name in self.shapes if name in named}

    def _together(self, unit: Unit, part: Tensor) -> list[Tensor]:
        """The whole tensors of *unit*, copies on the CPU, on the first of the ranks that share it."""
        part = part.detach()
        parts = gathered(part, self.layout.tensor.group) if self.layout.tensor.size > 1 else [part]
        if not self.layout.tensor.first:
            return []
        return [tensor.to("cpu", copy=True).contiguous() for tensor in unit.cut.whole(parts)]

    def _to_leader(self, stage: int, names: tuple[str, ...], tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """*tensors* of another *stage*, on the leader."""
        group = self.layout.ranks.group
        if stage == self.layout.pipeline.rank:
            for tensor in tensors:
                dist.send(tensor, 0, group=group)
        elif self.layout.ranks.leader:
            tensors = [torch.empty(self.shapes[name], dtype=dtype) for name in names]
            for tensor in tensors:
                dist.recv(tensor, self.layout.world_rank(pipeline=stage), group=group)
        return tensors
