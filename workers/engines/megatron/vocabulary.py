"""What the LM head says, where it is cut over tensor-parallel ranks: nowhere does a rank hold all logits of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from stages.losses.memory import CHUNK_NUMBERS
from stages.losses.projection import project
from stages.topk import TopK
from stages.vocab_parallel import VocabularyShard, logsumexp, shared_states, vocab_parallel_logprobs, wide


@dataclass(frozen=True)
class Head:
    """This rank's part of an LM head, [rows, H], of which *real* ids stand for a token; the others are padding."""

    weight: Tensor
    shard: VocabularyShard
    vocabulary: int

    @property
    def real(self) -> Tensor:
        """The part of ids that stand for a token; it may be empty."""
        return self.weight[: self.shard.real(self.vocabulary, len(self.weight))]

    def step(self) -> int:
        """Positions whose logits exist at once; the same on every rank, though parts differ."""
        return max(1, CHUNK_NUMBERS // len(self.weight))

    def logprobs(self, states_BSH: Tensor, ids_BS: Tensor, temperature: float) -> Tensor:
        """The log-prob of each token given the states after each token; [B, S], float32, column 0 is 0."""
        scale = max(temperature, 0.0) or 1.0
        last, step = ids_BS.shape[1] - 1, max(1, self.step() // len(ids_BS))
        pieces = [
            checkpoint(
                self._logprobs,
                states_BSH[:, start : min(start + step, last)],
                self.real,
                ids_BS[:, start + 1 : min(start + step, last) + 1],
                scale,
                use_reentrant=False,
            )
            for start in range(0, last, step)
        ]
        return torch.cat([states_BSH.new_zeros(len(ids_BS), 1, dtype=torch.float32), *pieces], dim=1)

    def _logprobs(self, states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
        states = shared_states(states.flatten(0, 1), self.shard.group)
        logits = linear(states, weight).float() / temperature
        found = vocab_parallel_logprobs(logits, targets.flatten(), self.shard.first_id, self.shard.group)
        return found.view(targets.shape)

    def top_k(self, states_NH: Tensor, k: int, temperature: float) -> TopK:
        """The top k of whole-vocabulary log-probs: each rank's k best are compared, and nothing else."""
        k = min(k, self.vocabulary)
        parts = [self._top_k(some, k, temperature) for some in states_NH.split(self.step())]
        return TopK(*map(torch.cat, zip(*parts, strict=True)))

    def _top_k(self, states: Tensor, k: int, temperature: float) -> TopK:
        logits = project(states, self.real) / temperature
        total = logsumexp(logits.to(wide(logits.dtype)), self.shard.group)
        values, ids = logits.topk(min(k, logits.shape[1]))
        missing = k - values.shape[1]
        values, ids = pad(values, (0, missing), value=-torch.inf), pad(ids, (0, missing)) + self.shard.first_id
        if self.shard.group is not None:
            all_values, all_ids = (torch.cat(gathered(part, self.shard.group), 1) for part in (values, ids))
            values, at = all_values.topk(k)
            ids = all_ids.gather(1, at)
        return TopK(ids, values - total[:, None], total)

    def logits(self, states_NH: Tensor) -> Tensor:
        """All logits of a few tokens, from all ranks; [N, vocabulary]."""
        part = linear(states_NH, self.weight)
        whole = part if self.shard.group is None else torch.cat(gathered(part, self.shard.group), 1)
        return whole[:, : self.vocabulary]


def gathered(part: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Every rank's *part*, of one shape, in order of ranks."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts
