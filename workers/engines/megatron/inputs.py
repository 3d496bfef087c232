"""The rows of one forward pass as Megatron takes them, and its states as rows again.

padded   [B, S]: each row in a line of its own, filled up behind its end; causal attention never looks there
packed   [1, T]: all rows in one line; nobody sees another row

What a line is filled up with, to its longest row or to a multiple that the ranks need, is in no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.engines.megatron.context import places_here, whole_line
from workers.engines.megatron.layout import Place
from workers.engines.megatron.library import TRANSFORMER_ENGINE, PackedSeqParams
from workers.engines.megatron.packing import block_causal_mask, padded_length, places, starts


@dataclass(frozen=True)
class Inputs:
    """Rows of *lengths* tokens. ``ids_BS`` and ``positions_BS`` are lines; *multiple* is what they are padded to.

    Context-parallel ranks each hold some places of every line.
    """

    lengths: tuple[int, ...]
    ids_BS: Tensor
    positions_BS: Tensor
    packed: bool
    multiple: int
    context: Place | None = None

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        device: torch.device,
        *,
        packed: bool,
        multiple: int = 1,
        context: Place | None = None,
    ) -> Inputs:
        lengths = tuple(map(len, rows))
        if packed:
            at = places(lengths, multiple)
            ids, positions = torch.zeros(2, 1, starts(lengths, multiple)[-1], dtype=torch.long)
            ids[0, at] = torch.cat([torch.as_tensor(row, dtype=torch.long) for row in rows])
            positions[0, at] = torch.cat([torch.arange(length) for length in lengths])
        else:
            width = padded_length(max(lengths), multiple)
            ids = torch.zeros(len(rows), width, dtype=torch.long)
            for line, row in zip(ids, rows, strict=True):
                line[: len(row)] = torch.as_tensor(row, dtype=torch.long)
            positions = torch.arange(width).expand_as(ids)
        shared = context if context is not None and context.size > 1 else None
        return cls(lengths, ids.to(device), positions.to(device), packed, multiple, shared)

    @property
    def shape(self) -> tuple[int, int]:
        """Places of this rank, and lines: the first two dimensions of Megatron's states, [S, B, H]."""
        return self.ids_BS.shape[1] // (self.context.size if self.context else 1), self.ids_BS.shape[0]

    @property
    def _bounds(self) -> list[int]:
        """Where the rows of a line start, and its end."""
        return starts(self.lengths, self.multiple) if self.packed else [0, self.ids_BS.shape[1]]

    @property
    def _places(self) -> list[Tensor]:
        """The places of each context rank."""
        assert self.context is not None
        return places_here(self._bounds, self.context)

    def arguments(self) -> dict[str, Any]:
        """What the model is called with."""
        ids, positions = self.ids_BS, self.positions_BS
        if self.context is not None:
            here = self._places[self.context.rank].to(ids.device)
            ids, positions = ids[:, here], positions[:, here]
        given = {"input_ids": ids, "position_ids": positions}
        if TRANSFORMER_ENGINE and torch.cuda.is_available():
            return {**given, "attention_mask": None, "packed_seq_params": self._packing() if self.packed else None}
        line = self.ids_BS.shape[1]
        mask = (
            block_causal_mask(self.lengths, self.multiple)
            if self.packed
            else torch.ones(line, line, dtype=torch.bool).triu(1)
        )
        return {**given, "attention_mask": mask[None, None].to(self.ids_BS.device)}

    def _packing(self) -> Any:
        """What TransformerEngine's attention needs to know of a line."""
        bounds = torch.tensor(self._bounds, dtype=torch.int32, device=self.ids_BS.device)
        longest = padded_length(max(self.lengths), self.multiple)
        return PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )

    def rows(self, states_SBH: Tensor) -> Tensor:
        """*states_SBH* of the lines as rows, zeros behind the end of each; [rows, longest row, H]."""
        if self.context is not None:
            states_SBH = whole_line(states_SBH, self._places, self.context)
        longest = max(self.lengths)
        real = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        real = real.to(states_SBH.device)
        if not self.packed:
            return torch.where(real[..., None], states_SBH.transpose(0, 1)[:, :longest], 0.0)
        tokens = states_SBH[places(self.lengths, self.multiple).to(states_SBH.device), 0]
        empty = states_SBH.new_zeros(len(self.lengths), longest, states_SBH.shape[-1])
        return empty.masked_scatter(real[..., None], tokens)
