"""What teachers on resources of their own must not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.config.enabled import get_non_colocated_teachers
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.config.distillation import TeacherResourceConfig
    from schemas.config.run import RunConfig

_SECTION = "on_policy_distillation.non_colocated_teachers"


def assert_teacher_resources_fit(config: RunConfig) -> None:
    """Raise if a teacher's ranks cannot be what its sizes need, or its engine reads nothing of what it is given."""
    apart = get_non_colocated_teachers(config)
    if apart is None:
        return
    for aliases in config.on_policy_distillation.aliases_by_teacher:
        resources = apart.resources(aliases)
        said = next((alias for alias in aliases if alias in apart.teacher_overrides), None)
        where = f"{_SECTION}." + (f"teacher_overrides.{said}" if said else "default_teacher_cfg")
        for problem in (*_sizes(resources, config.cluster.segment_size), *_unread(resources)):
            raise ConfigError(f"{where}.{problem}")


def _sizes(resources: TeacherResourceConfig, segment_size: int | None) -> Iterator[str]:
    """Ranks that are no whole number of replicas, or of ranks a node."""
    replica, ranks = resources.replica_ranks, resources.ranks
    product = " × ".join(str(size) for size in resources.model_parallel_sizes.values())
    if ranks % replica:
        yield (
            f"gpus_per_node: {resources.num_nodes} × {resources.gpus_per_node} ranks are no multiple of the {replica} "
            f"that one replica takes (tensor × pipeline × context = {product})"
        )
    if ranks % resources.num_nodes:
        yield f"num_nodes: {ranks} ranks (tensor × pipeline × context = {product}) cannot share {resources.num_nodes}"
    if segment_size is not None and resources.num_nodes > segment_size:
        yield f"num_nodes: {resources.num_nodes} are more than the nodes of a segment (cluster.segment_size)"


def _unread(resources: TeacherResourceConfig) -> Iterator[str]:
    """Settings that only Megatron reads, given to another engine."""
    if resources.engine == "megatron":
        return
    sizes = {**resources.model_parallel_sizes, "expert_model_parallel_size": resources.expert_model_parallel_size}
    for key in (key for key, size in sizes.items() if size > 1):
        yield f"{key}: the {resources.engine} engine holds whole models; use engine megatron, or remove it"
    if resources.sequence_packing:
        yield f"sequence_packing: the {resources.engine} engine pads rows; use engine megatron, or remove it"
    for key in resources.megatron_cfg_overrides:
        yield f"{key}: unknown key; it would be a setting for Megatron, but the engine is {resources.engine}"
    if resources.engine == "vllm" and resources.ranks > 1:
        yield f"gpus_per_node: the vllm engine scores in one process; expected 1 or 0, got {resources.gpus_per_node}"
