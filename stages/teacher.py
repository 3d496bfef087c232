"""teacher: every token of a sample, scored by the teacher its agent is routed to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from schemas.arrays import ColumnData
from schemas.batch import Batch
from schemas.errors import JobFailed
from stages.alone import each_alone
from stages.base import Output
from stages.payload import Shipment, widened
from stages.protocols import Ask, PayloadScorer, Scorer, Scores
from stages.top_columns import ids_column, logprobs_column

#: What every teacher writes.
SCORES = ("teacher_logprobs", "teacher_index")

#: Largest ``head_error`` that rounding explains, by type of the weights.
HEAD_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass
class Teacher:
    """Score whole sequences: the teacher conditions on prompt, tool and response tokens alike.

    A row longer than the teacher accepts fails as ``teacher_too_long`` and is never clipped; one on which the
    engine raises is tried alone and then fails as ``engine_error``; a non-finite value at a generated token fails as
    ``bad_logprob``, unless ``keep_nonfinite`` leaves it to ``baseline``, which may still train the row's reward.
    """

    engine: Scorer | PayloadScorer
    #: Alias -> index of its checkpoint in the list the run recorded.
    index_of_alias: dict[str, int] = field(default_factory=dict)
    temperature: float = 1.0
    #: What to write beside log-probs.
    ships: Shipment = field(default_factory=Shipment)
    keep_nonfinite: bool = False
    #: Type of the weights, to check on every batch that logits are ``lm_head(hidden states)``; None checks nothing.
    check_head: str | None = None
    task: str = "teacher"
    reads: tuple[str, ...] = ("input_ids", "token_mask", "teacher")

    @property
    def writes(self) -> tuple[str, ...]:
        return (*SCORES, *self.ships.columns)

    def __call__(self, batch: Batch) -> Output:
        scored, failed = self._score(batch)
        rows, scores = list(scored), list(scored.values())
        if self.check_head and rows:
            self._check_head(batch, rows)
        aliases = batch.values("teacher")
        columns: dict[str, ColumnData] = {
            "teacher_logprobs": [score.logprobs for score in scores],
            "teacher_index": [self.index_of_alias[aliases[row]] for row in rows],
            **self._payload(scores),
            **self._top(batch, rows, scores),
        }
        return Output([batch.sample_ids[row] for row in rows], columns, failed)

    def _payload(self, scores: Sequence[Scores]) -> dict[str, ColumnData]:
        shipped = [score.payload for score in scores if score.payload is not None]
        return {self.ships.column: [widened(payload, self.ships.width) for payload in shipped]} if shipped else {}

    def _top(self, batch: Batch, rows: Sequence[int], scores: Sequence[Scores]) -> dict[str, ColumnData]:
        masks: list[list[bool]] = batch.values("token_mask")
        tops = [score.top for score in scores if score.top is not None]
        if not tops:
            return {}
        at = [masks[row] for row in rows]
        return {"teacher_topk_ids": ids_column(tops, at), "teacher_topk_logprobs": logprobs_column(tops, at)}

    def _score(self, batch: Batch) -> tuple[dict[int, Scores], dict[str, str]]:
        """Scores by row, and the rows that could not be scored with their reason."""
        sequences: list[list[int]] = batch.values("input_ids")
        masks: list[list[bool]] = batch.values("token_mask")
        failed = {
            sample_id: f"teacher_too_long: {len(ids)} tokens exceed the {self.engine.max_length} that this model "
            "accepts"
            for sample_id, ids in zip(batch.sample_ids, sequences, strict=True)
            if len(ids) > self.engine.max_length
        }
        rows = [row for row, sample_id in enumerate(batch.sample_ids) if sample_id not in failed]

        def work(some: Sequence[int]) -> list[Scores]:
            return self._ask([sequences[row] for row in some], [masks[row] for row in some])

        scored, errors = each_alone(work, rows)
        failed |= {batch.sample_ids[row]: f"engine_error: {error}" for row, error in errors.items()}
        bad = {row: why for row, score in scored.items() if (why := self._bad(score, masks[row], len(sequences[row])))}
        failed |= {batch.sample_ids[row]: reason for row, reason in bad.items()}
        return {row: score for row, score in scored.items() if row not in bad}, failed

    def _ask(self, sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]]) -> list[Scores]:
        if self.ships.ask == Ask():
            return list(map(Scores, self.engine.logprobs(sequences, self.temperature)))
        return self._shipping.score(sequences, masks, self.temperature, self.ships.ask)

    def _check_head(self, batch: Batch, rows: Sequence[int]) -> None:
        sequences = batch.values("input_ids")
        error = self._shipping.head_error([sequences[row] for row in rows])
        if error > HEAD_TOLERANCE[str(self.check_head)]:
            raise JobFailed(
                f"teacher: its logits are not lm_head(hidden states): they differ by {error:.2g} of the largest one; "
                "use on_policy_distillation.full.teacher_payload logits"
            )

    @property
    def _shipping(self) -> PayloadScorer:
        return cast("PayloadScorer", self.engine)

    def _bad(self, score: Scores, mask: Sequence[bool], tokens: int) -> str | None:
        """Why these scores cannot be trained on, if they cannot."""
        if len(score.logprobs) != tokens:
            return f"misaligned: expected {tokens} log-probs, one per token, got {len(score.logprobs)}"
        generated = torch.as_tensor(mask)
        wrong = generated & ~torch.isfinite(score.logprobs)
        if wrong.any() and not self.keep_nonfinite:
            position = int(wrong.nonzero()[0])
            return f"bad_logprob: {float(score.logprobs[position])} at position {position}"
        if score.payload is None:
            return None
        infinite = ~score.payload[generated].isfinite().all(1)
        if not infinite.any():
            return None
        position = int(generated.nonzero()[infinite.nonzero()[0]])
        return f"bad_logprob: a number in its payload is not finite at position {position}"
