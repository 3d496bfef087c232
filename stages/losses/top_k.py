"""Distillation from the teacher's k most likely tokens, in place of the policy-gradient loss.

    loss_t = D over the teacher's k ids and one bucket for all other ids (stages/topk.py), reverse or forward KL

at every trained token, reduced over the global batch as any token loss. The student's log-probs at these ids are
exact: its whole softmax is computed, a chunk of tokens at a time, the LM-head product included, and again in
backward, over all ranks that share the vocabulary. ``captured_mass`` is the teacher's mass on its k ids: what is
missing from 1 is seen only as a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stages.losses.counts import Counts
from stages.losses.projection import blocks, project
from stages.losses.reduce import Loss, reduce_rows
from stages.masking import EPS, trained
from stages.top_columns import TopColumn
from stages.topk import topk_divergence
from stages.vocab_parallel import WHOLE, VocabularyShard, shared_states, vocab_parallel_logprobs, wide


@dataclass(frozen=True)
class TopKBatch:
    """What the loss reads: token_mask [B, S], sample_mask [B], and the teachers' lists."""

    token_mask: Tensor
    sample_mask: Tensor
    teacher: TopColumn


def topk_loss(
    states_BSH: Tensor,
    head_VH: Tensor,
    batch: TopKBatch,
    counts: Counts,
    *,
    direction: Literal["reverse", "forward"] = "reverse",
    temperature: float = 1.0,
    token_level: bool = True,
    shard: VocabularyShard = WHOLE,
) -> Loss:
    """The loss of *batch* as its share of the global batch. Row t of the states predicts token t.

    *head_VH* has no padding; with a *shard* it is this rank's part, which may be empty.
    """
    mask = trained(batch.token_mask, batch.sample_mask)
    ids, teacher = (values.to(states_BSH.device) for values in batch.teacher.at(mask.cpu()))
    student = logprobs_at(states_BSH[mask], head_VH, ids.long(), temperature, shard)
    found = topk_divergence(student, teacher, direction)
    values_BS = torch.zeros(mask.shape, dtype=found.values.dtype, device=mask.device).masked_scatter(mask, found.values)
    rows = reduce_rows(values_BS, mask, counts, token_level)
    per_token = {"divergence": found.values.detach(), "captured_mass": found.captured_mass}
    metrics = {name: float(values.sum() / (counts.num_tokens + EPS)) for name, values in per_token.items()}
    metrics |= {"loss": float(rows.detach().sum()), "num_valid_samples": float(batch.sample_mask.sum())}
    return Loss(rows.sum(), metrics, rows.detach())


def logprobs_at(
    states_NH: Tensor, head_VH: Tensor, ids_NK: Tensor, temperature: float, shard: VocabularyShard = WHOLE
) -> Tensor:
    """Exact log-probs of *ids_NK* under the whole softmax; [N, K], at least float32."""
    width = shard.size or len(head_VH)  # the same on all ranks: each must call the same collectives as often
    parts = [
        checkpoint(_at, states_NH[tokens], head_VH, ids_NK[tokens], temperature, shard, use_reentrant=False)
        for tokens in blocks(len(states_NH), width)
    ]
    if not parts:  # a rank without tokens still needs a graph
        return (states_NH.sum() + 0.0 * head_VH.sum()) * states_NH.new_zeros(ids_NK.shape, dtype=wide(states_NH.dtype))
    return torch.cat(parts)


def _at(states: Tensor, head: Tensor, ids: Tensor, temperature: float, shard: VocabularyShard) -> Tensor:
    logits = project(shared_states(states, shard.group), head) / temperature
    return vocab_parallel_logprobs(logits, ids, shard.first_id, shard.group)
