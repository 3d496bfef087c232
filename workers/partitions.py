"""The partitions and tasks of a run: who waits for which columns."""

from __future__ import annotations

import pyarrow as pa

from dataplane import DataPlane
from schemas.columns import REGISTRY, TRAIN, VALIDATION, schema_of, teacher_logits, written_by
from schemas.config import RunConfig
from stages.base import Stage
from stages.baseline import Baseline
from stages.divergence import Divergence
from stages.generate import Generate
from stages.student import Student
from stages.teacher import Teacher
from stages.train import Train

#: Held-out prompts sampled as in training; they carry ``exact_kl``.
SAMPLED = "validation_sampled"
#: One row per tokenizer, so that SQL can show tokens as text.
VOCABULARY = "vocabulary"

#: Bytes of teacher logits that one measurement of the exact KL may store.
LOGITS_BUDGET = 256 * 2**20


def create_partitions(plane: DataPlane, config: RunConfig, vocabulary_size: int) -> None:
    """Declare every partition and task of the run; declaring them again changes nothing."""
    plane.create_partition(TRAIN, schema_of(name for name in REGISTRY if REGISTRY[name].writer != "divergence"))
    answered = schema_of([*written_by("admit"), *written_by("generate")])
    plane.create_partition(VALIDATION, answered)
    scored = [*answered, *schema_of(["teacher_logprobs", "teacher_index", "exact_kl"]), teacher_logits(vocabulary_size)]
    plane.create_partition(SAMPLED, pa.schema(scored))
    for partition in (TRAIN, VALIDATION, SAMPLED):
        _declare(plane, partition, Generate)
    for stage in (Student, Baseline(config), Train):
        _declare(plane, TRAIN, stage)
    if config.on_policy_distillation.enabled:
        _declare(plane, TRAIN, Teacher)
        plane.declare_task(SAMPLED, Teacher.task, Teacher.reads, [*Teacher.writes, "teacher_logits"])
        _declare(plane, SAMPLED, Divergence)


def _declare(plane: DataPlane, partition: str, stage: Stage | type[Stage]) -> None:
    plane.declare_task(partition, stage.task, stage.reads, stage.writes)


def store_vocabulary(plane: DataPlane, fingerprint: str, tokens: list[str]) -> None:
    """Keep the text of every token id, once per tokenizer."""
    plane.create_partition(VOCABULARY, {"tokens": pa.large_list(pa.string())})
    if not plane.rows(VOCABULARY):
        plane.put(VOCABULARY, [fingerprint], {"tokens": [tokens]})


def exact_kl_rows(wanted: int, vocabulary_size: int, max_length: int) -> int:
    """How many of *wanted* rows fit the logits budget; 0 when not even one does."""
    return min(wanted, LOGITS_BUDGET // (4 * vocabulary_size * max_length))
