"""What teachers on resources of their own must not ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.config.distillation import TeacherResourceConfig
    from schemas.config.run import RunConfig

_OPD = "on_policy_distillation"
_SECTION = f"{_OPD}.non_colocated_teachers"


def assert_teacher_resources_fit(config: RunConfig) -> None:
    """Raise if a teacher's ranks cannot be what its sizes need, or its engine reads nothing of what it is given."""
    opd = config.on_policy_distillation
    apart = opd.non_colocated_teachers
    if not opd.enabled or apart is None or not apart.enabled:
        return
    for aliases in opd.aliases_by_teacher:
        resources = apart.resources(aliases)
        said = next((alias for alias in aliases if alias in apart.teacher_overrides), None)
        where = f"{_SECTION}." + (f"teacher_overrides.{said}" if said else "default_teacher_cfg")
        problems = (
            *_sizes(resources, config.cluster.segment_size),
            *_unread(resources),
            *_beyond_vllm(resources, config),
        )
        for problem in problems:
            raise ConfigError(f"{where}.{problem}")


def _sizes(resources: TeacherResourceConfig, segment_size: int | None) -> Iterator[str]:
    """Ranks that are no whole number of replicas, or of ranks a node."""
    replica, ranks = math.prod(resources.model_parallel_sizes.values()), resources.ranks
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
    for key in resources.megatron_cfg_overrides:
        yield f"{key}: unknown key; it would be a setting for Megatron, but the engine is {resources.engine}"
    if resources.engine == "vllm" and resources.ranks > 1:
        yield f"gpus_per_node: the vllm engine scores in one process; expected 1 or 0, got {resources.gpus_per_node}"


def _beyond_vllm(resources: TeacherResourceConfig, config: RunConfig) -> Iterator[str]:
    """What is asked of a teacher that vLLM cannot give: it scores given tokens at temperature 1, and nothing else."""
    if resources.engine != "vllm":
        return
    opd, temperature = config.on_policy_distillation, config.generator.sampling.temperature
    asked = {
        f"hidden states or logits ({_OPD}.full)": opd.full is not None and opd.full.enabled,
        f"an exact top k ({_OPD}.topk_loss)": opd.topk_loss is not None and opd.topk_loss.enabled,
        f"an exact top k ({_OPD}.log_topk_stats)": opd.log_topk_stats,
        "logits for the exact KL (set validation.exact_kl_rows to 0)": bool(
            config.data.validation and config.validation.exact_kl_rows
        ),
        f"log-probs at temperature {temperature:g} (generator.sampling.temperature)": temperature != 1.0,
    }
    for what in (what for what, is_asked in asked.items() if is_asked):
        yield f"engine: vllm does not give {what}; use hf or megatron, or do without"
