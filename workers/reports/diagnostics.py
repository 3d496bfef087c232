"""A run's ``diagnostics/``: files about single steps, each the result of a query over stored columns.

    samples_step_NNNNNN.jsonl     a line a sample       log_sample_stats
    tokens_step_NNNNNN.parquet    a row a token         log_token_stats
    topk_step_NNNNNN.parquet      a row a picked token  log_topk_stats (topk_export.py)

Nothing is kept for these files' sake, so any of them can be written again from the store.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from dataplane import DataPlane
from dataplane.sql import run_sql
from schemas.columns import TRAIN
from schemas.config import OnPolicyDistillationConfig, RunConfig
from stages.routing import teacher_configs
from workers.reports.step_reader import StepReader
from workers.reports.topk_export import topk_table

#: Runs a method of a role: ``call(role, method, *arguments, what=…)``.
CallRole = Callable[..., Any]

#: Columns of a sample's line, and the SQL over ``samples`` that makes each.
SAMPLE_COLUMNS: dict[str, str] = {
    **{name: name for name in ("sample_id", "prompt_id", "group_id", "group_index", "agent", "teacher")},
    **{name: name for name in ("teacher_index", "step", "status", "weight_version", "finish_reason", "reward")},
    "prompt_tokens": "len(input_ids) - num_tokens",
    "num_tokens": "num_tokens",
    "num_finite": "num_finite",
    "mask_before_sequence_error": "sample_mask or coalesce(mask_reason like 'seq_logprob_error:%', false)",
    "sample_mask": "sample_mask",
    "mask_reason": "mask_reason",
    **{name: name for name in ("seq_logprob_error", "gap_sum", "gap_mean", "gap_abs_mean")},
    **{name: name for name in ("student_entropy", "teacher_entropy", "loss")},
}

#: What a line has besides when responses are asked for.
RESPONSE_COLUMNS: dict[str, str] = {name: name for name in ("prompt", "answer", "response_text")}

#: Columns of the token file, and the SQL over ``tokens``.
TOKEN_COLUMNS: dict[str, str] = {
    **{name: name for name in ("sample_id", "agent", "teacher", "step", "position", "response_position")},
    **{name: name for name in ("token_id", "token", "trained")},
    **{name: name for name in ("generation_logprob", "student_logprob", "teacher_logprob", "gap", "advantage")},
    "student_entropy": "-exp(student_logprob - generation_logprob) * student_logprob",
    "teacher_entropy": "-exp(teacher_logprob - generation_logprob) * teacher_logprob",
}


class Diagnostics:
    """Writes the files that are due once a step is trained."""

    def __init__(self, config: RunConfig, plane: DataPlane, directory: Path) -> None:
        self.config = config
        self.plane = plane
        self.directory = directory

    def write(self, step: int, call: CallRole) -> None:
        """Every file that *step* is due; *call* reaches the teachers, for their part of the top k."""
        opd = self.config.on_policy_distillation
        if opd.enabled and opd.log_sample_stats and step % opd.sample_stats_log_period == 0:
            write_samples(self.plane, step, self.directory, responses=opd.log_sample_responses)
        if opd.enabled and opd.log_token_stats and step % opd.token_stats_log_period == 0:
            write_tokens(self.plane, step, self.directory)
        if takes_topk(opd, step):
            if opd.topk_stats_mode == "online":
                for teacher in teacher_configs(opd):
                    call(f"teacher:{teacher.alias}", "score_topk", step, what=f"step {step}: the teachers' top k")
            write_topk(self.plane, step, self.directory)


def takes_topk(opd: OnPolicyDistillationConfig, step: int) -> bool:
    """Whether top-k statistics are taken of *step*."""
    return opd.enabled and opd.log_topk_stats and step % opd.topk_stats_log_period == 0


def write_samples(plane: DataPlane, step: int, directory: Path, *, responses: bool = False) -> Path:
    """A JSON line for each member of *step*, in its sealed order."""
    columns = SAMPLE_COLUMNS | (RESPONSE_COLUMNS if responses else {})
    rows = _ask(plane, step, columns, "samples").to_pylist()
    lines = [json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False) for row in rows]
    return _appear(
        directory / f"samples_step_{step:06d}.jsonl", lambda part: part.write_text("\n".join([*lines, ""]), "utf-8")
    )


def write_tokens(plane: DataPlane, step: int, directory: Path) -> Path:
    """A Parquet row for each generated token of *step*."""
    table = _ask(plane, step, TOKEN_COLUMNS, "tokens", "generation_logprob is not null")
    return _write_table(table, directory / f"tokens_step_{step:06d}.parquet")


def write_topk(plane: DataPlane, step: int, directory: Path) -> Path:
    """A Parquet row for each token of *step* at which a top k was taken; terms where both sides are there."""
    return _write_table(topk_table(plane, step), directory / f"topk_step_{step:06d}.parquet")


def _ask(plane: DataPlane, step: int, columns: Mapping[str, str], view: str, where: str = "true") -> pa.Table:
    picked = ", ".join(f"{sql} as {name}" for name, sql in columns.items())
    query = f"select {picked} from {view} where partition = '{TRAIN}' and step = {step} and {where}"
    return run_sql(StepReader(plane, step), query)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _write_table(table: pa.Table, path: Path) -> Path:
    return _appear(path, lambda part: parquet.write_table(table, part, compression="zstd"))


def _appear(path: Path, write: Callable[[Path], Any]) -> Path:
    """The file is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
    return path
