"""What the loss is divided by: trained tokens and samples of the whole global batch.

Counted once per optimizer update, over all micro-batches and ranks, after quarantine and the sequence-error mask
and before any gate of the loss. Losses of micro-batches and ranks are then *summed*; nobody averages again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from stages.masking import trained


@dataclass(frozen=True)
class Counts:
    """N_tok and N_seq of a global batch."""

    num_tokens: int
    num_samples: int

    @classmethod
    def of(cls, token_mask_BS: Tensor, sample_mask_B: Tensor) -> Counts:
        """Counts of one batch."""
        return cls(int(trained(token_mask_BS, sample_mask_B).sum()), int(sample_mask_B.bool().sum()))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.num_tokens + other.num_tokens, self.num_samples + other.num_samples)

    def over_ranks(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> Counts:
        """The sum over the data-parallel ranks of *group*; every rank must call it."""
        both = torch.tensor([self.num_tokens, self.num_samples], dtype=torch.int64, device=device)
        dist.all_reduce(both, group=group)
        return Counts(*both.tolist())
