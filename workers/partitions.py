"""The partitions and tasks of a run: who waits for which columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dataplane import DataPlane
from schemas.columns import REGISTRY, TRAIN, VALIDATION, payload, schema_of, teacher_logits, written_by
from schemas.config import RunConfig, get_opd_full_config
from stages.base import Stage
from stages.baseline import Baseline
from stages.divergence import Divergence
from stages.generate import Generate
from stages.objectives import objective_of
from stages.payload import measured_shipment, shipment_of
from stages.reference import Reference
from stages.student import Student
from stages.teacher import SCORES, Teacher
from stages.topk_columns import TopKStudent, TopKTeacher
from stages.train import Train
from workers.teachers.payload import payload_width

#: Held-out prompts sampled as in training; they carry ``exact_kl``.
SAMPLED = "validation_sampled"
#: One row per tokenizer, so that SQL can show tokens as text.
VOCABULARY = "vocabulary"

#: Tasks on a sealed step that are repeated when a run goes back to a checkpoint before it.
RETRAINED = ("student", "baseline", "train", "topk_student", "topk_teacher")

#: Bytes of teacher logits that one measurement of the exact KL may store.
LOGITS_BUDGET = 256 * 2**20


def create_partitions(plane: DataPlane, config: RunConfig, vocabulary_size: int) -> None:
    """Declare every partition and task of the run; declaring them again changes nothing."""
    full, width = get_opd_full_config(config), payload_width(config, vocabulary_size)
    trained = [*schema_of(name for name in REGISTRY if REGISTRY[name].writer != "divergence")]
    plane.create_partition(TRAIN, pa.schema([*trained, *([] if full is None else [payload(full, width)])]))
    answered = schema_of([*written_by("admit"), *written_by("generate")])
    plane.create_partition(VALIDATION, answered)
    scored = [*answered, *schema_of([*SCORES, "exact_kl"]), teacher_logits(vocabulary_size)]
    plane.create_partition(SAMPLED, pa.schema(scored))
    for partition in (TRAIN, VALIDATION, SAMPLED):
        _declare(plane, partition, Generate)
    _declare(plane, TRAIN, Student)
    if config.loss_fn.reference_policy_kl_penalty:
        _declare(plane, TRAIN, Reference)
    _declare(plane, TRAIN, Baseline(config))
    plane.declare_task(TRAIN, Train.task, objective_of(config).reads, Train.writes)
    if config.on_policy_distillation.enabled:
        plane.declare_task(TRAIN, Teacher.task, Teacher.reads, [*SCORES, *shipment_of(config, width).columns])
        _declare_diagnostics(plane, config, vocabulary_size)


def _declare_diagnostics(plane: DataPlane, config: RunConfig, vocabulary_size: int) -> None:
    measured = measured_shipment(vocabulary_size)
    plane.declare_task(SAMPLED, Teacher.task, Teacher.reads, [*SCORES, *measured.columns])
    _declare(plane, SAMPLED, Divergence)
    if config.on_policy_distillation.log_topk_stats:
        _declare(plane, TRAIN, TopKStudent)
        _declare(plane, TRAIN, TopKTeacher)


def _declare(plane: DataPlane, partition: str, stage: Stage | type[Stage]) -> None:
    reads: Sequence[str] = stage.reads  # type: ignore[assignment]  # of a dataclass: the default of its field
    plane.declare_task(partition, stage.task, reads, stage.writes)  # type: ignore[arg-type]


def store_vocabulary(plane: DataPlane, fingerprint: str, tokens: list[str]) -> None:
    """Keep the text of every token id, once per tokenizer."""
    plane.create_partition(VOCABULARY, {"tokens": pa.large_list(pa.string())})
    if not plane.rows(VOCABULARY):
        plane.put(VOCABULARY, [fingerprint], {"tokens": [tokens]})


def exact_kl_rows(wanted: int, vocabulary_size: int, max_length: int) -> int:
    """How many of *wanted* rows fit the logits budget; 0 when not even one does."""
    return min(wanted, LOGITS_BUDGET // (4 * vocabulary_size * max_length))
