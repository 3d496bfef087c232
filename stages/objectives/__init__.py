"""What the trainer minimises, as the recipe chooses: each objective reads its columns and runs its loss on an engine.

policy_gradient    sampled tokens and their advantages        loss_fn
full_vocabulary    the teacher's whole distribution           on_policy_distillation.full
top_k              the teacher's k most likely tokens         on_policy_distillation.topk_loss
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.config import get_opd_full_config, get_topk_loss_config
from stages.losses.counts import Counts
from stages.losses.metrics import combine_metrics
from stages.losses.reduce import Loss
from stages.objectives.full_vocabulary import FullVocabularyObjective
from stages.objectives.policy_gradient import PolicyGradient
from stages.objectives.top_k import TopKObjective
from stages.protocols import TrainEngine
from stages.vocab_parallel import WHOLE, VocabularyShard

if TYPE_CHECKING:
    from schemas.config import RunConfig
    from stages.losses.teacher_heads import TeacherHeads


class Objective(Protocol):
    """A loss over stored columns."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    def __call__(self, engine: TrainEngine, batch: Batch, counts: Counts) -> list[Loss]:
        """Add the gradient of *batch* to the engine; what each micro-batch came to, in the order of rows."""
        ...


class Judged(NamedTuple):
    """What a whole batch came to: each row's share of the loss [B], and the metrics."""

    losses_B: Tensor
    metrics: dict[str, float]


def judge(objective: Objective, engine: TrainEngine, batch: Batch, counts: Counts) -> Judged:
    """Run *objective* on *batch*, each replica of *engine* on its rows; the same answer in every process."""
    lengths = batch.lengths().tolist()
    mine = engine.micro_batches(lengths)
    rows = [row for part in mine for row in part]
    results = objective(engine, batch.take(rows), counts) if rows else []
    losses = [loss for result in results for loss in result.row_losses_B.tolist()]
    computed = sum(len(part) * max(lengths[row] for row in part) for part in mine)
    said = _Part(rows, losses, combine_metrics(result.metrics for result in results), computed)
    parts = [msgspec.msgpack.decode(part, type=_Part) for part in engine.gather(msgspec.msgpack.encode(said))]
    losses_B = torch.zeros(len(batch))
    for part in parts:
        losses_B[part.rows] = torch.tensor(part.losses)
    padding = 1 - sum(lengths) / sum(part.computed for part in parts)
    return Judged(losses_B, {**combine_metrics(part.metrics for part in parts), "padding_share": padding})


class _Part(msgspec.Struct, array_like=True):
    """A replica's share of a batch; *computed* counts its tokens, padding included."""

    rows: list[int]
    losses: list[float]
    metrics: dict[str, float]
    computed: int


def objective_of(
    config: RunConfig,
    vocabulary: int | None = None,
    heads: TeacherHeads | None = None,
    shard: VocabularyShard = WHOLE,
) -> Objective:
    """The objective that *config* asks for. *heads* turn stored hidden states into logits, where rows have such.

    Where the engine's LM head is cut over ranks, *shard* says which part is here; *heads* give the same part.
    """
    temperature = config.generator.sampling.temperature
    if (full := get_opd_full_config(config)) is not None:
        return FullVocabularyObjective(full, config.loss_fn.token_level_loss, temperature, vocabulary, heads, shard)
    if (top := get_topk_loss_config(config)) is not None:
        return TopKObjective(top.direction, config.loss_fn.token_level_loss, temperature, vocabulary, shard)
    return PolicyGradient(config.loss_fn, temperature)
