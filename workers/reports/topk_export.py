"""Top-k statistics of a step as a table: a row a token that was picked, both sides' lists and how they compare.

In the mode ``student_online_teacher_deferred`` the teacher's part comes later, from the stored rows and the
checkpoints that the run recorded: :func:`score_deferred_topk`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import torch
from torch import Tensor

from dataplane import DataPlane
from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.top_columns import read_top
from stages.topk import TopK
from stages.topk_columns import TopKTeacher
from stages.topk_stats import topk_terms
from workers.engines.hf.scorer import HFScorer
from workers.loop import Worker
from workers.teachers.index import recorded_teachers
from workers.tokenizer import HFTokenizer

SIDES = ("student", "teacher")
_READS = ("input_ids", "agent", "teacher_index", *(f"topk_stats_{s}_{x}" for s in SIDES for x in ("ids", "logprobs")))
_LOGSUMEXPS = tuple(f"topk_stats_{side}_logsumexp" for side in SIDES)

#: Terms that are ids, ranks or truths; the others are float32.
_WHOLE = ("intersection_size", "student_rank_of_sampled", "teacher_rank_of_sampled")


def topk_table(plane: DataPlane, step: int) -> pa.Table:
    """The picked tokens of *step*, in its order. Terms of a row whose teacher's part is missing are null."""
    ids = plane.members(step)
    batch = plane.get(TRAIN, ids, [*_READS, *_LOGSUMEXPS], missing="null", copy=False)
    scored = [not missing for missing in batch.array("topk_stats_teacher_ids").is_null().to_pylist()]
    parts = [_rows(batch.take(list(rows)), both) for both, rows in _runs(scored)]
    tables = [part for part in parts if part.num_rows] or parts
    return pa.concat_tables(tables, promote_options="default")


def _runs(scored: Sequence[bool]) -> Iterator[tuple[bool, range]]:
    """Neighbouring rows with, or without, the teacher's part."""
    start = 0
    for row in range(1, len(scored) + 1):
        if row == len(scored) or scored[row] != scored[start]:
            yield scored[start], range(start, row)
            start = row


def _rows(batch: Batch, both: bool) -> pa.Table:
    sides = {side: _top(batch, side) for side in (SIDES if both else SIDES[:1])}
    picked = read_top(batch, "topk_stats_student_ids", "topk_stats_student_logprobs").picked_BS
    row, position = picked.nonzero(as_tuple=True)
    sampled = batch.padded("input_ids")[row, position].long()
    of_row = pa.array(row.numpy())
    columns: dict[str, pa.Array] = {
        "sample_id": pa.array(batch.sample_ids, pa.string()).take(of_row),
        **{name: batch.array(name).take(of_row) for name in ("agent", "teacher_index")},
        "position": pa.array(position.numpy(), pa.int64()),
        "token_id": pa.array(sampled.numpy(), pa.int32()),
    }
    for side, top in sides.items():
        columns[f"{side}_ids"] = pa.array(top.ids.tolist(), pa.list_(pa.int32()))
        columns[f"{side}_logprobs"] = pa.array(top.logprobs.tolist(), pa.list_(pa.float32()))
        columns[f"{side}_logsumexp"] = pa.array(top.logsumexp.numpy(), pa.float32())
    if both:
        terms = topk_terms(sides["student"], sides["teacher"], sampled)
        columns |= {name: _term(name, value) for name, value in terms.items()}
    return pa.table(columns)


def _top(batch: Batch, side: str) -> TopK:
    lists = read_top(batch, f"topk_stats_{side}_ids", f"topk_stats_{side}_logprobs")
    return TopK(lists.ids_NK.long(), lists.logprobs_NK, batch.padded(f"topk_stats_{side}_logsumexp")[lists.picked_BS])


def _term(name: str, values: Tensor) -> pa.Array:
    if values.dtype == torch.bool:
        return pa.array(values.tolist(), pa.bool_())
    return pa.array(values.tolist(), pa.int32() if name in _WHOLE else pa.float32())


def score_deferred_topk(plane: DataPlane, config: RunConfig, step: int) -> int:
    """Fill in the teachers' part of *step* where it is missing; the number of rows filled in.

    Each row's teacher is the one recorded for its ``teacher_index``, whatever *config* names today.
    """
    waiting = plane.rows(TRAIN, have=TopKTeacher.reads, lack=["topk_stats_teacher_ids"], step=step)
    indexes = sorted(set(plane.get(TRAIN, waiting, ["teacher_index"]).values("teacher_index")))
    checkpoints = recorded_teachers(plane)
    vocabulary = len(HFTokenizer(config.policy.tokenizer or config.policy.model).vocabulary)
    for index in indexes:
        engine = HFScorer.load(
            checkpoints[index],
            config.policy.dtype,
            batch_size=config.policy.logprob_batch_size,
            vocabulary_size=vocabulary,
        )
        k, temperature = config.on_policy_distillation.topk_stats_k, config.generator.sampling.temperature
        worker = Worker(plane, TRAIN, TopKTeacher(engine, k, temperature), where={"teacher_index": [index]})
        worker.rows_may_fail = False
        while worker.run_once(step) is not None:
            continue
    return len(waiting)
