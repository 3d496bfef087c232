"""The teacher's k most likely tokens: the loss of stages/losses/top_k.py over stored lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from schemas.batch import Batch
from stages.losses.counts import Counts
from stages.losses.reduce import Loss
from stages.losses.top_k import TopKBatch, topk_loss
from stages.protocols import TrainEngine
from stages.top_columns import read_top
from stages.vocab_parallel import WHOLE, VocabularyShard


@dataclass
class TopKObjective:
    """Ids from *vocabulary* on are padding of the student's head, outside its softmax.

    *shard* says which ids the engine's part of the head is of.
    """

    direction: Literal["reverse", "forward"] = "reverse"
    token_level: bool = True
    temperature: float = 1.0
    vocabulary: int | None = None
    shard: VocabularyShard = WHOLE
    reads: tuple[str, ...] = (
        *("input_ids", "token_mask", "sample_mask", "advantages"),
        *("teacher_topk_ids", "teacher_topk_logprobs"),
    )

    def __call__(self, engine: TrainEngine, batch: Batch, counts: Counts) -> list[Loss]:
        results: list[Loss] = []

        def loss(states_BSH: Tensor, head_VH: Tensor, micro: Batch) -> Tensor:
            columns = TopKBatch(
                token_mask=micro.padded("token_mask").to(states_BSH.device),
                sample_mask=micro.tensor("sample_mask").to(states_BSH.device),
                teacher=read_top(micro, "teacher_topk_ids", "teacher_topk_logprobs", states_BSH.shape[1]),
            )
            results.append(
                topk_loss(
                    states_BSH,
                    head_VH[: self.shard.real(self.vocabulary, len(head_VH))],
                    columns,
                    counts,
                    direction=self.direction,
                    temperature=self.temperature,
                    token_level=self.token_level,
                    shard=self.shard,
                )
            )
            return results[-1].loss

        engine.forward_backward_states(batch, loss)
        return results
