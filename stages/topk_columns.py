"""topk_student, topk_teacher: the most likely tokens of both sides, for statistics.

The student's part is taken at the trained tokens of a sealed step, with the weights that the step starts from, and
decides which tokens: all, or ``max_tokens`` of them spread evenly. The teacher's part follows at the same tokens,
in the run (``online``) or whenever somebody asks (``student_online_teacher_deferred``): it needs stored rows and the
row's teacher, nothing else. Tokens that are not picked never meet an LM head.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.arrays import ColumnData
from schemas.batch import Batch
from schemas.columns import written_by
from stages.base import Output
from stages.masking import trained
from stages.protocols import Masks, TopKScorer
from stages.top_columns import ids_column, logprobs_column, logsumexp_column
from stages.topk_stats import subsample


@dataclass
class TopKStudent:
    """The student's top k at the tokens that this picks."""

    engine: TopKScorer
    k: int
    max_tokens: int | None = None
    temperature: float = 1.0
    task: str = "topk_student"
    reads: tuple[str, ...] = ("input_ids", "token_mask", "sample_mask")
    writes: tuple[str, ...] = written_by("topk_student")

    def __call__(self, batch: Batch) -> Output:
        picked = subsample(trained(batch.padded("token_mask", False), batch.tensor("sample_mask")), self.max_tokens)
        masks = [row[:length].tolist() for row, length in zip(picked, batch.lengths().tolist(), strict=True)]
        columns = top_columns("student", self.engine, batch, masks, self.k, self.temperature)
        return Output(batch.sample_ids, columns)


@dataclass
class TopKTeacher:
    """The teacher's top k at the tokens where the student's was taken. All rows must be this teacher's."""

    engine: TopKScorer
    k: int
    temperature: float = 1.0
    task: str = "topk_teacher"
    reads: tuple[str, ...] = ("input_ids", "teacher_index", "topk_stats_student_ids")
    writes: tuple[str, ...] = written_by("topk_teacher")

    def __call__(self, batch: Batch) -> Output:
        masks = [[bool(ids) for ids in row] for row in batch.values("topk_stats_student_ids")]
        columns = top_columns("teacher", self.engine, batch, masks, self.k, self.temperature)
        return Output(batch.sample_ids, columns)


def top_columns(
    side: str, engine: TopKScorer, batch: Batch, masks: Masks, k: int, temperature: float
) -> dict[str, ColumnData]:
    """``topk_stats_SIDE_ids``, ``…_logprobs`` and ``…_logsumexp`` of *batch*."""
    tops = engine.top_k(batch.values("input_ids"), masks, k, temperature)
    return {
        f"topk_stats_{side}_ids": ids_column(tops, masks),
        f"topk_stats_{side}_logprobs": logprobs_column(tops, masks),
        f"topk_stats_{side}_logsumexp": logsumexp_column(tops, masks),
    }
