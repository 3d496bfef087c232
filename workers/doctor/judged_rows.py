"""A few rows as if the student itself, or a bent copy of it, had been their teacher: what the invariants run on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from schemas.arrays import to_arrow
from schemas.batch import Batch
from schemas.columns import payload
from schemas.config import RunConfig, get_opd_full_config
from stages.baseline import Baseline
from stages.losses.teacher_heads import TeacherHeads
from stages.objectives import Objective, objective_of
from stages.payload import shipment_of
from stages.protocols import Scores
from stages.top_columns import ids_column, logprobs_column
from workers.engines import Trainer

#: Columns that a loss reads and whose masked entries are filler.
_FILLED = ("generation_logprobs", "student_logprobs", "advantages")


class JudgedRows:
    """Makes the columns of a sealed step that the loss reads. A bent teacher likes every other token less."""

    def __init__(self, engine: Trainer, config: RunConfig, rows: Batch) -> None:
        self.engine = engine
        self.config = plain(config)
        self.rows = rows
        self.sequences: list[list[int]] = rows.values("input_ids")
        self.masks: list[list[bool]] = rows.values("token_mask")
        self.temperature = config.generator.sampling.temperature

    def __call__(self, *, bent: bool, junk: bool = False) -> Batch:
        """The rows with all columns; with *junk*, what no result may depend on is NaN."""
        student = self.engine.logprobs(self.sequences, self.temperature)
        scored = self.rows.with_columns(
            {
                "student_logprobs": student,
                "teacher_logprobs": [_bent(logprobs, bent) for logprobs in student],
                "teacher_index": [0] * len(self.rows),
                "reward": [float(bent and row % 2) for row in range(len(self.rows))],
                "group_id": ["all"] * len(self.rows),
            }
        )
        made = Baseline(self.config)(scored).columns
        batch = scored.with_columns({name: made[name] for name in ("advantages", "sample_mask")})
        if junk:
            batch = batch.with_columns({name: self._junk(batch.values(name)) for name in _FILLED})
        return self._with_shipped(batch, bent, junk)

    def _junk(self, rows: list[list[float]]) -> list[list[float]]:
        pairs = zip(rows, self.masks, strict=True)
        return [[x if kept else math.nan for x, kept in zip(row, mask, strict=True)] for row, mask in pairs]

    def _with_shipped(self, batch: Batch, bent: bool, junk: bool) -> Batch:
        """*batch* with what teachers ship for a loss over distributions, if the recipe has one."""
        ask = shipment_of(self.config, 0).ask
        if ask.payload is None and ask.top_k is None:
            return batch
        scores = self.engine.score(self.sequences, self.masks, self.temperature, ask)
        if ask.top_k is not None:
            tops = [score.top._replace(logprobs=_bent(score.top.logprobs, bent)) for score in scores if score.top]
            ids, logprobs = ids_column(tops, self.masks), logprobs_column(tops, self.masks)
            return batch.with_columns({"teacher_topk_ids": ids, "teacher_topk_logprobs": logprobs})
        vectors = [self._vectors(*pair, bent, junk) for pair in zip(scores, self.masks, strict=True)]
        full = get_opd_full_config(self.config)
        assert full is not None
        field = payload(full, vectors[0].shape[1])
        table = batch.table.append_column(field, to_arrow(vectors, field, batch.sample_ids))
        return Batch(batch.sample_ids, table)

    def _vectors(self, scores: Scores, mask: list[bool], bent: bool, junk: bool) -> Tensor:
        assert scores.payload is not None
        vectors = _bent(scores.payload, bent)
        return torch.where(torch.tensor(mask)[:, None], vectors, math.nan) if junk else vectors


def _bent(values: Tensor, bent: bool) -> Tensor:
    """Every second number of the last dimension lower by a half, if *bent*."""
    return values - 0.5 * (torch.arange(values.shape[-1]) % 2).to(values.dtype) if bent else values


def objective_against_itself(engine: Trainer, config: RunConfig, vocabulary: int) -> Objective:
    """The recipe's objective, with the student's own LM head in the teacher's place."""
    head = engine.lm_head()
    heads = TeacherHeads(["the student"], lambda path: head, "none", head.device)
    return objective_of(plain(config), vocabulary, heads, engine.shard)


def plain(config: RunConfig) -> RunConfig:
    """*config* without what acts though teacher and student agree: rewards beside the teacher, a KL penalty."""
    changes: dict[str, dict[str, Any]] = {
        "on_policy_distillation": {"use_orm_advantage": False},
        "loss_fn": {"reference_policy_kl_penalty": 0.0},
        "failures": {"max_quarantined_share": 1.0},
    }
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=update) for name, update in changes.items()}
    )
