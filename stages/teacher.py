"""teacher: every token of a sample, scored by the teacher its agent is routed to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from schemas.arrays import ColumnData
from schemas.batch import Batch
from stages.alone import each_alone
from stages.base import Output
from stages.protocols import Scorer


@dataclass
class Teacher:
    """Score whole sequences: the teacher conditions on prompt, tool and response tokens alike.

    A row longer than the teacher accepts fails as ``teacher_too_long`` and is never clipped; one on which the
    engine raises is tried alone and then fails as ``engine_error``; a non-finite log-prob at a generated token
    fails as ``bad_logprob``.
    """

    engine: Scorer
    #: Alias -> index of its checkpoint in the list the run recorded.
    index_of_alias: dict[str, int] = field(default_factory=dict)
    temperature: float = 1.0
    #: Also write ``teacher_logits``, the whole distribution at every token.
    ship_logits: bool = False
    task: str = "teacher"
    reads: tuple[str, ...] = ("input_ids", "token_mask", "teacher")
    writes: tuple[str, ...] = ("teacher_logprobs", "teacher_index")

    def __call__(self, batch: Batch) -> Output:
        scored, failed = score(batch, self.engine, self.temperature)
        aliases = batch.values("teacher")
        columns: dict[str, ColumnData] = {
            "teacher_logprobs": list(scored.values()),
            "teacher_index": [self.index_of_alias[aliases[row]] for row in scored],
        }
        if self.ship_logits:
            sequences = batch.values("input_ids")
            columns["teacher_logits"] = self.engine.logits([sequences[row] for row in scored])
        return Output([batch.sample_ids[row] for row in scored], columns, failed)


def score(batch: Batch, engine: Scorer, temperature: float) -> tuple[dict[int, torch.Tensor], dict[str, str]]:
    """Log-probs [length] by row, and the rows that could not be scored with their reason."""
    sequences: list[list[int]] = batch.values("input_ids")
    failed = {
        sample_id: f"teacher_too_long: {len(ids)} tokens exceed the {engine.max_length} that this model accepts"
        for sample_id, ids in zip(batch.sample_ids, sequences, strict=True)
        if len(ids) > engine.max_length
    }
    rows = [row for row, sample_id in enumerate(batch.sample_ids) if sample_id not in failed]

    def work(some: Sequence[int]) -> list[torch.Tensor]:
        return engine.logprobs([sequences[row] for row in some], temperature)

    scored, errors = each_alone(work, rows)
    failed |= {batch.sample_ids[row]: f"engine_error: {error}" for row, error in errors.items()}
    masks: list[list[bool]] = batch.values("token_mask")
    bad = {row: reason for row, logprobs in scored.items() if (reason := _bad(logprobs, masks[row], sequences[row]))}
    failed |= {batch.sample_ids[row]: reason for row, reason in bad.items()}
    return {row: logprobs for row, logprobs in scored.items() if row not in bad}, failed


def _bad(logprobs: torch.Tensor, mask: Sequence[bool], sequence: Sequence[int]) -> str | None:
    """Why these log-probs cannot be trained on, if they cannot."""
    if len(logprobs) != len(sequence):
        return f"misaligned: expected {len(sequence)} log-probs, one per token, got {len(logprobs)}"
    wrong = torch.as_tensor(mask) & ~torch.isfinite(logprobs)
    if not wrong.any():
        return None
    position = int(wrong.nonzero()[0])
    return f"bad_logprob: {float(logprobs[position])} at position {position}"
