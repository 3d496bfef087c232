"""``TeacherWorkerGroup``: the ranks of one teacher as one scorer, for Python that drives teachers without a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from schemas.config import RunConfig
from schemas.errors import DeadlinePassed, InputError, JobFailed
from stages.protocols import Ask, Masks, PayloadScorer, Scores
from stages.routing import TeacherConfig, teacher_by_alias, teacher_configs
from stages.topk import TopK
from workers.engines.megatron.packing import row_multiple
from workers.engines.spreading import decode
from workers.teachers.cluster import TeacherCluster
from workers.teachers.rank import TeacherRank
from workers.teachers.resources import TeacherEngine, load_teacher, teacher_engine

#: Seconds that all ranks of all groups may take to load their model.
START_S = 600.0


class TeacherWorkerGroup:
    """A PayloadScorer over the ranks of one teacher: data parallel × tensor, pipeline and context parallel.

    Rows are shared out over the replicas, and a batch that does not divide is filled up by rows that never come back.
    Calls are answered one after the other, so that all ranks meet in the same order.
    """

    def __init__(self, teacher: TeacherConfig, engine: TeacherEngine, cluster: TeacherCluster) -> None:
        self.teacher = teacher
        self.engine = engine
        self.cluster = cluster
        self.max_length = self.vocabulary_size = 0
        self._ranks: list[Any] = []

    # -- what every engine of ours does: rows come as they are, and are padded or packed inside ------------

    @property
    def use_sequence_packing(self) -> bool:
        return True

    @property
    def sequence_length_pad_multiple(self) -> int:
        """What the engine pads a line of tokens to, for the ranks that share it."""
        sizes, overrides = self.engine.parallel, self.engine.parallel.get("overrides", {})
        return row_multiple(
            int(sizes.get("tensor_model_parallel_size", 1)),
            int(sizes.get("context_parallel_size", 1)),
            sequence_parallel=bool(overrides.get("sequence_parallel")),
        )

    # -- scoring --------------------------------------------------------------------------------------

    def get_logprobs(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[torch.Tensor]:
        """Log-probs per sequence: float32, one a token, entry 0 is 0."""
        return [row["value"] for row in self._call("logprobs", sequences, temperature)]

    def get_topk_logits(
        self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float = 1.0
    ) -> list[TopK]:
        """The k most likely ids in place of each token in its mask, as exact log-probs, and the logsumexp there."""
        return [TopK(**row) for row in self._call("top_k", sequences, masks, k, temperature)]

    logprobs = get_logprobs
    top_k = get_topk_logits

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [row["value"] for row in self._call("logits", sequences)]

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        return [_scores(row) for row in self._call("score", sequences, masks, temperature, ask)]

    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        return float(self._call("head_error", sequences)[0]["value"])

    def _call(self, method: str, *arguments: Any) -> list[dict[str, torch.Tensor]]:
        """What the leader answers; every rank does the same."""
        import ray

        asked = [rank.call.remote(method, *arguments) for rank in self._ranks]
        try:
            return decode(ray.get(asked)[0])
        except ray.exceptions.RayError as error:
            raise JobFailed(f"teacher {self.teacher.alias!r}: {_reason(error)}") from error

    # -- life -----------------------------------------------------------------------------------------

    def start(self, load: Callable[..., PayloadScorer], threads: int = 1) -> list[Any]:
        """Start every rank's process and have it ``load(ranks=…)`` the model; what they will say when they have."""
        import ray

        python = self.engine.python
        runtime = {"py_executable": str(Path(python).absolute())} if python else None
        actor = ray.remote(TeacherRank)
        size, here = self.engine.ranks, Path.cwd()
        self._ranks = [
            actor.options(**self.cluster.options(rank), runtime_env=runtime).remote(rank, size, threads, here)
            for rank in range(size)
        ]
        meeting = self._ranks[0].open_meeting.remote() if size > 1 else None
        return [rank.begin.remote(load, meeting) for rank in self._ranks]

    def await_ready(self, begun: Sequence[Any], deadline: float) -> None:
        """Return when every rank has its model. Raises JobFailed, or DeadlinePassed after *deadline* (monotonic)."""
        import ray

        try:
            answers = ray.get(list(begun), timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError as error:
            late = f"teacher {self.teacher.alias!r}: not all of its ranks have started in time"
            raise DeadlinePassed(late) from error
        except ray.exceptions.RayError as error:
            raise JobFailed(f"teacher {self.teacher.alias!r}: cannot start: {_reason(error)}") from error
        self.max_length, self.vocabulary_size = answers[0]

    def alive(self, timeout_s: float = 10.0) -> bool:
        """Whether every rank answers within *timeout_s*."""
        import ray

        asked = [rank.ping.remote() for rank in self._ranks]
        try:
            return all(ray.get(asked, timeout=timeout_s))
        except ray.exceptions.RayError:
            return False

    def stop(self) -> None:
        """End its processes and give its resources back."""
        import ray

        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []
        self.cluster.free()


def create_teacher_worker_groups(
    config: RunConfig,
    vocabulary: int,
    *,
    teacher_clusters: Mapping[str, TeacherCluster],
    start_s: float = START_S,
) -> tuple[dict[str, TeacherWorkerGroup], dict[str, str]]:
    """The groups by their first alias, and the group's alias of every alias.

    Raises InputError when *teacher_clusters* are not those of *config*'s teachers; JobFailed or DeadlinePassed when a
    teacher does not start, and then every group is freed.
    """
    teachers = teacher_configs(config.on_policy_distillation)
    expected, given = [teacher.alias for teacher in teachers], sorted(teacher_clusters)
    if sorted(expected) != given:
        raise InputError(f"teacher_clusters: expected those of {', '.join(expected)}, got {', '.join(given) or 'none'}")
    groups = {
        teacher.alias: TeacherWorkerGroup(teacher, teacher_engine(config, teacher), teacher_clusters[teacher.alias])
        for teacher in teachers
    }
    deadline = time.monotonic() + start_s
    try:
        teacher_seq_pad_multiple(
            groups, row_multiple(config.trainer.tensor_model_parallel_size, config.trainer.context_parallel_size)
        )
        begun = {
            alias: group.start(
                partial(load_teacher, group.teacher.model_name, group.engine, vocabulary),
                config.cluster.threads_per_worker,
            )
            for alias, group in groups.items()
        }
        for alias, group in groups.items():
            group.await_ready(begun[alias], deadline)
    except BaseException:
        for group in groups.values():
            group.stop()
        raise
    return groups, {alias: teacher.alias for alias, teacher in teacher_by_alias(teachers).items()}


class Padded(Protocol):
    """How a group takes sequences."""

    @property
    def use_sequence_packing(self) -> bool: ...
    @property
    def sequence_length_pad_multiple(self) -> int: ...


def teacher_seq_pad_multiple(groups: Mapping[str, Padded], policy_divisor: int) -> int:
    """What to pad sequences to before they go to any of *groups*: 1 where groups pad or pack them inside.

    Else *policy_divisor*, which every group's own multiple must divide. Raises InputError where it does not, or where
    groups differ in whether they pack.
    """
    modes = {group.use_sequence_packing for group in groups.values()}
    if len(modes) > 1:
        packed = [alias for alias, group in groups.items() if group.use_sequence_packing]
        raise InputError(f"teachers: only {', '.join(packed)} pack sequences; have all of them do it, or none")
    if modes != {False}:
        return 1
    for alias, group in groups.items():
        if policy_divisor % group.sequence_length_pad_multiple:
            raise InputError(
                f"teacher {alias!r}: pads sequences to multiples of {group.sequence_length_pad_multiple}, which the "
                f"policy's {policy_divisor} is not; give it parallel sizes that divide the policy's"
            )
    return policy_divisor


def _scores(row: dict[str, torch.Tensor]) -> Scores:
    top = {name.removeprefix("top."): value for name, value in row.items() if name.startswith("top.")}
    return Scores(row["scored"], row.get("payload"), TopK(**top) if top else None)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
