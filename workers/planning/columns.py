"""Bytes of each column of a run: by token, by sample, and by step. Text is taken at a few bytes a token."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from schemas.columns import HEAVY, REGISTRY, Column, payload
from schemas.config import RunConfig, get_opd_full_config, get_topk_loss_config

#: Bytes of text that a token stands for, and of a short name or id.
TEXT, NAME = 4, 20

#: Text columns about as long as a sample.
_LONG = ("prompt", "messages", "response_text")


@dataclass(frozen=True)
class ColumnPlan:
    """A column: bytes of *per_token* for each token and *per_sample* for each sample that has it, and of a step."""

    name: str
    writer: str
    per_token: float
    per_sample: float
    step_bytes: int
    heavy: bool


def tokens_per_step(config: RunConfig) -> int:
    """Tokens of a step at most, prompts included."""
    return config.grpo.num_samples_per_step * config.policy.max_total_sequence_length


def column_plans(config: RunConfig, payload_width: int) -> list[ColumnPlan]:
    """Every column that a training row of *config* gets, in the order in which they are written."""
    opd = config.on_policy_distillation
    writers = {"admit", "generate", "student", "baseline", "train"}
    writers |= {"teacher"} if opd.enabled else set()
    writers |= {"reference"} if config.loss_fn.reference_policy_kl_penalty else set()
    writers |= {"topk_student", "topk_teacher"} if opd.enabled and opd.log_topk_stats else set()
    columns = [column for column in REGISTRY.values() if column.writer in writers]
    top = get_topk_loss_config(config)
    columns = [column for column in columns if top is not None or not column.name.startswith("teacher_topk_")]
    full = get_opd_full_config(config)
    if full is not None:
        field = payload(full, payload_width)
        columns.append(Column(field.name, field.type, "teacher", "what teachers ship", heavy=True))
    return [_plan(config, column) for column in columns]


def _plan(config: RunConfig, column: Column) -> ColumnPlan:
    rows = config.grpo.num_samples_per_step
    tokens, period = tokens_per_step(config), 1
    opd = config.on_policy_distillation
    k = 0
    if column.name.startswith("topk_stats_"):
        k, period = opd.topk_stats_k, opd.topk_stats_log_period
        tokens = min(tokens, opd.topk_stats_max_tokens or tokens)
    elif column.name.startswith("teacher_topk_"):
        k = opd.topk_loss.k if opd.topk_loss is not None else 0
    per_token = _width(column.type.value_type, k) if column.per == "token" else 0.0
    per_sample = 8.0 if column.per == "token" else _width(column.type, 0)
    if column.name in _LONG:
        per_sample = float(TEXT * config.policy.max_total_sequence_length)
    step_bytes = int((tokens * per_token + rows * per_sample) / period)
    return ColumnPlan(column.name, column.writer, per_token, per_sample, step_bytes, column.name in HEAVY)


def _width(kind: pa.DataType, k: int) -> float:
    """Bytes of one value; *k* values where it is a list of no fixed length."""
    if pa.types.is_string(kind):
        return float(NAME)
    if pa.types.is_struct(kind):
        return sum(_width(field.type, k) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * _width(kind.value_type, k)
    if pa.types.is_list(kind):
        return 4 + k * _width(kind.value_type, k)
    return float(kind.bit_width) / 8
