"""What the recipe says about one teacher: its engine, its sizes, its ranks, and where these may go.

A teacher on resources of its own reads its ``TeacherResourceConfig`` and nothing of the student's but the tokenizer
and the lengths. A teacher beside the student (no ``non_colocated_teachers``) is one process of the hf engine with the
student's type and batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.config import RunConfig, TeacherResourceConfig, get_non_colocated_teachers
from stages.routing import TeacherConfig, teacher_configs
from workers.teachers.placement import Bundles

if TYPE_CHECKING:
    from stages.protocols import PayloadScorer
    from workers.ranks import Ranks

#: Rows that a teacher claims at once.
ROWS_A_TURN = 1024

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class TeacherEngine:
    """How one teacher is run. *parallel* is what only Megatron reads: sizes, and overrides of its settings."""

    engine: str
    dtype: str
    batch_size: int
    batch_tokens: int | None = None
    python: str | None = None
    ranks: int = 1
    gpus: float = 0.0
    #: Copies of the model among the ranks.
    replicas: int = 1
    parallel: Mapping[str, Any] = field(default_factory=dict)
    #: Where the ranks may go; None where the teacher shares the student's machine.
    bundles: Bundles | None = None


def teacher_engine(config: RunConfig, teacher: TeacherConfig) -> TeacherEngine:
    """How *teacher* is run."""
    apart = get_non_colocated_teachers(config)
    if apart is None:
        policy = config.policy
        return TeacherEngine("hf", policy.dtype, policy.logprob_batch_size, policy.micro_batch_tokens)
    return _engine(apart.resources(teacher.aliases), config.cluster.segment_size)


def _engine(resources: TeacherResourceConfig, segment_size: int | None) -> TeacherEngine:
    gpus = 1.0 if resources.gpus_per_node else 0.0
    return TeacherEngine(
        resources.engine,
        _DTYPES.get(resources.precision, resources.precision),
        resources.micro_batch_size,
        python=resources.python,
        ranks=resources.ranks,
        gpus=gpus,
        replicas=resources.replicas,
        parallel=_parallel(resources) if resources.engine == "megatron" else {},
        bundles=Bundles(resources.ranks, 1.0, gpus, resources.num_nodes, segment_size),
    )


def _parallel(resources: TeacherResourceConfig) -> dict[str, Any]:
    overrides = dict(resources.megatron_cfg_overrides)
    if resources.expert_model_parallel_size > 1:
        overrides["expert_model_parallel_size"] = resources.expert_model_parallel_size
    return {
        **resources.model_parallel_sizes,
        "sequence_packing": resources.sequence_packing,
        "overrides": overrides,
    }


def placements(config: RunConfig) -> dict[str, Bundles]:
    """What is to be reserved before any model is loaded, by role: the ranks of teachers on resources of their own."""
    engines = {
        f"teacher:{teacher.alias}": teacher_engine(config, teacher)
        for teacher in teacher_configs(config.on_policy_distillation)
    }
    return {role: engine.bundles for role, engine in engines.items() if engine.bundles is not None}


def check_teachers(config: RunConfig) -> None:
    """Raise InputError for settings meant for Megatron that Megatron does not know."""
    for teacher in teacher_configs(config.on_policy_distillation):
        overrides = teacher_engine(config, teacher).parallel.get("overrides")
        if overrides:
            from workers.engines.megatron.model import check_overrides

            check_overrides(overrides)


def load_teacher(path: str, how: TeacherEngine, vocabulary: int, ranks: Ranks) -> PayloadScorer:
    """The scorer of the checkpoint at *path*, on one of its *ranks*."""
    from workers.engines import build_scorer
    from workers.teachers.padding import FullRounds

    options = {} if how.batch_tokens is None else {"batch_tokens": how.batch_tokens}
    scorer = build_scorer(
        path,
        how.engine,
        how.dtype,
        ranks=ranks,
        parallel=how.parallel,
        batch_size=how.batch_size,
        vocabulary_size=vocabulary,
        **options,
    )
    return FullRounds(scorer, how.replicas) if how.replicas > 1 else scorer
