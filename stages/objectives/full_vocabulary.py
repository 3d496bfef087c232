"""The teacher's whole distribution: the loss of stages/losses/full_vocabulary.py over stored payloads.

A micro-batch may mix teachers. Each row says which one judged it (``teacher_index``, into the checkpoints that the
run recorded), and that one's LM head is staged for the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.columns import opd_full_payload_field, opd_full_teacher_index_field
from schemas.config import OnPolicyDistillationFullConfig
from schemas.errors import InputError, JobFailed
from stages.losses.chunked_divergence import FullVocabulary
from stages.losses.counts import Counts
from stages.losses.divergences import divergence_of
from stages.losses.full_vocabulary import FullBatch, decomposition_error, full_vocabulary_loss
from stages.losses.reduce import Loss
from stages.losses.teacher_heads import TeacherHeads
from stages.payload import read_payload
from stages.protocols import TrainEngine
from stages.vocab_parallel import WHOLE, VocabularyShard

#: Largest |cross-entropy − entropy − reverse KL| of a token, in nats, that float32 rounding explains.
DECOMPOSITION_TOLERANCE = 1e-2


@dataclass
class FullVocabularyObjective:
    """Hidden states are compared at temperature 1, logits at the sampling temperature.

    *shard* says which ids the engine's part of the head is of; *heads* are cut at the same ids.
    """

    full: OnPolicyDistillationFullConfig
    token_level: bool = True
    temperature: float = 1.0
    vocabulary: int | None = None
    heads: TeacherHeads | None = None
    shard: VocabularyShard = WHOLE

    @property
    def payload(self) -> str:
        return opd_full_payload_field(self.full)

    @property
    def reads(self) -> tuple[str, ...]:
        index = opd_full_teacher_index_field(self.full)
        tagged = (index,) if index is not None else ()
        # The advantages are not in the loss; a row that has them has passed the baseline.
        return ("input_ids", "token_mask", "sample_mask", "advantages", self.payload, *tagged)

    @property
    def how(self) -> FullVocabulary:
        return FullVocabulary(
            divergence_of(self.full.divergence, self.full.beta),
            temperature=1.0 if self.full.teacher_payload == "hidden_states" else self.temperature,
            chunk_size=self.full.chunk_size,
            vocabulary=self.vocabulary,
            first_id=self.shard.first_id,
            group=self.shard.group,
        )

    def __call__(self, engine: TrainEngine, batch: Batch, counts: Counts) -> list[Loss]:
        if opd_full_teacher_index_field(self.full) is None:
            return self._run(engine, batch, counts, [], [])
        if self.heads is None:
            raise InputError("full-vocabulary distillation of hidden states needs the teachers' LM heads, got none")
        wanted = sorted(set(batch.tensor("teacher_index").tolist()))
        with self.heads.staged(wanted) as heads:
            return self._run(engine, batch, counts, wanted, heads)

    def _run(
        self, engine: TrainEngine, batch: Batch, counts: Counts, wanted: list[int], heads: Sequence[Tensor]
    ) -> list[Loss]:
        results: list[Loss] = []
        how = self.how

        def loss(states_BSH: Tensor, head_VH: Tensor, micro: Batch) -> Tensor:
            columns = self._columns(micro, states_BSH.device, wanted, heads)
            result = full_vocabulary_loss(states_BSH, head_VH, columns, counts, how, token_level=self.token_level)
            if self.full.validate_decomposition:
                result.metrics["decomposition_error_max"] = self._checked(states_BSH, head_VH, columns)
            results.append(result)
            return result.loss

        engine.forward_backward_states(batch, loss)
        return results

    def _columns(self, micro: Batch, device: torch.device, wanted: list[int], heads: Sequence[Tensor]) -> FullBatch:
        """*wanted* are the indexes of *heads*, ascending; rows are counted over them."""
        index = torch.searchsorted(torch.tensor(wanted), micro.tensor("teacher_index").long()) if wanted else None
        return FullBatch(
            token_mask=micro.padded("token_mask").to(device),
            sample_mask=micro.tensor("sample_mask").to(device),
            payload=self._payload(micro).to(device),
            teacher_index=None if index is None else index.to(device),
            heads=heads,
        )

    def _payload(self, micro: Batch) -> Tensor:
        vectors = read_payload(micro, self.payload)
        return self.shard.cut(vectors, dim=2) if self.full.teacher_payload == "logits" else vectors

    def _checked(self, states_BSH: Tensor, head_VH: Tensor, columns: FullBatch) -> float:
        error = decomposition_error(states_BSH, head_VH, columns, self.how)
        if error > DECOMPOSITION_TOLERANCE:
            raise JobFailed(
                f"full-vocabulary distillation: cross-entropy - entropy is off the reverse KL by {error:.3g} nats at "
                f"a token, more than rounding ({DECOMPOSITION_TOLERANCE:g}); the payload or a head is damaged"
            )
        return error
