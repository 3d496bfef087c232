"""``plan``: the processes of a recipe, their nodes and memory, the store's size, and what would not fit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from schemas.config import RunConfig, get_opd_full_config
from schemas.errors import ResourceInsufficientError
from stages.losses.memory import ITEMSIZE
from stages.routing import TeacherConfig, teacher_configs
from workers.planning.columns import ColumnPlan, column_plans, tokens_per_step
from workers.planning.limits import too_full, too_large
from workers.planning.memory import Memory, generator_memory, teacher_memory, trainer_memory
from workers.planning.parts import Plan, RolePlan, StorePlan
from workers.planning.shapes import ModelShape, model_shape
from workers.teachers.placement import Bundles, Node, place
from workers.teachers.resources import teacher_engine


def plan(config: RunConfig) -> Plan:
    """What *config* would take. Raises InputError for a checkpoint that is there and cannot be read."""
    teachers = teacher_configs(config.on_policy_distillation)
    paths = dict.fromkeys([config.policy.model, *(teacher.model_name for teacher in teachers)])
    shapes = {path: model_shape(path) for path in paths}
    here = [shape for teacher in teachers if (shape := shapes[teacher.model_name]) is not None]
    columns = column_plans(config, _payload_width(config, shapes[config.policy.model], here))
    nodes, cluster = _nodes(config)
    asked = _asked(config, teachers)
    placed, problems = _place(nodes, asked)
    memory = _memory(config, teachers, shapes, here, columns)
    roles = [
        RolePlan(name, engine, model, asked[name].ranks, asked[name].gpus, dict(placed.get(name, {})), memory[name])
        for name, engine, model in _roles(config, teachers)
    ]
    store = _store(config, shapes[config.policy.model], columns)
    notes = [
        f"checkpoint {path!r} is not on this machine: its bytes are left out" for path in paths if not shapes[path]
    ]
    problems += [*too_large(config, roles), *too_full(config, roles, store)]
    return Plan(cluster, tokens_per_step(config), roles, columns, store, notes, problems)


# -- processes ----------------------------------------------------------------------------------------


def _roles(config: RunConfig, teachers: Sequence[TeacherConfig]) -> Iterator[tuple[str, str, str]]:
    """(name, engine, checkpoint) of every role, all generators being one."""
    yield "generator", config.generator.engine, config.policy.model
    for teacher in teachers:
        yield f"teacher:{teacher.alias}", teacher_engine(config, teacher).engine, teacher.model_name
    yield "trainer", config.trainer.engine, config.policy.model


def _asked(config: RunConfig, teachers: Sequence[TeacherConfig]) -> dict[str, Bundles]:
    """What every role asks of the cluster."""
    apart = {teacher.alias: teacher_engine(config, teacher).bundles for teacher in teachers}
    beside = {f"teacher:{alias}": bundles or Bundles() for alias, bundles in apart.items()}
    generators = Bundles(config.generator.replicas, gpus=config.generator.gpus)
    return {"generator": generators, **beside, "trainer": Bundles(config.trainer.ranks, gpus=config.trainer.gpus)}


def _nodes(config: RunConfig) -> tuple[list[Node], str]:
    """The nodes that are planned for, with room for any number of processes, and in words."""
    cluster = config.cluster
    if cluster.num_nodes is None:
        gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
        return [Node("this machine", _PLENTY, gpus)], f"this machine: {os.cpu_count()} CPUs, {gpus} GPUs"
    size = cluster.segment_size
    nodes = [
        Node(f"node {index}", _PLENTY, cluster.gpus_per_node, None if size is None else f"segment {index // size}")
        for index in range(cluster.num_nodes)
    ]
    return nodes, f"{cluster.num_nodes} nodes of {cluster.gpus_per_node} GPUs with {cluster.gpu_memory_gb:g} GB each"


#: CPUs of a node: a process of ours is not refused for want of them on a machine of one's own.
_PLENTY = 100_000.0


def _place(nodes: Sequence[Node], asked: Mapping[str, Bundles]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Processes by node, by role; or why they cannot be placed."""
    try:
        return {name: Counter(names) for name, names in place(nodes, asked).items()}, []
    except ResourceInsufficientError as error:
        return {}, [str(error)]


# -- bytes --------------------------------------------------------------------------------------------


def _payload_width(config: RunConfig, student: ModelShape | None, teachers: Sequence[ModelShape]) -> int:
    """Numbers in a payload's vectors; 0 where no model says."""
    full = get_opd_full_config(config)
    if full is None:
        return 0
    if full.teacher_payload == "logits":
        return 0 if student is None else student.vocabulary
    return max((teacher.hidden for teacher in teachers), default=0)


def _memory(
    config: RunConfig,
    teachers: Sequence[TeacherConfig],
    shapes: Mapping[str, ModelShape | None],
    here: Sequence[ModelShape],
    columns: Sequence[ColumnPlan],
) -> dict[str, Memory | None]:
    student = shapes[config.policy.model]
    trainer = None if student is None else trainer_memory(config, student, here, columns)
    generator = None if student is None else generator_memory(config, student)
    memory: dict[str, Memory | None] = {"generator": generator, "trainer": trainer}
    for teacher in teachers:
        shape = shapes[teacher.model_name]
        how = teacher_engine(config, teacher)
        memory[f"teacher:{teacher.alias}"] = None if shape is None else teacher_memory(config, how, shape, columns)
    return memory


def _store(config: RunConfig, student: ModelShape | None, columns: Sequence[ColumnPlan]) -> StorePlan:
    light = sum(column.step_bytes for column in columns if not column.heavy)
    heavy = sum(column.step_bytes for column in columns if column.heavy)
    kept, payloads = _kept(config, config.store.retention), _kept(config, config.store.payload_retention)
    checkpoints = 0
    if student is not None:
        weights = student.parameters * ITEMSIZE[config.policy.dtype]
        saved = config.checkpointing.keep or -(-config.grpo.max_num_steps // config.checkpointing.period)
        masters = config.trainer.engine == "megatron" and config.policy.dtype != "float32"
        optimizer = student.parameters * 12 if masters else 2 * weights
        checkpoints = (saved + 1) * (weights + optimizer) + (config.grpo.async_grpo.window + 2) * weights
    return StorePlan(light + heavy, kept, kept * light, payloads, payloads * heavy, checkpoints)


def _kept(config: RunConfig, retention: int | str) -> int:
    """Steps whose rows are there at once: until a checkpoint covers them and *retention* is over."""
    steps = config.grpo.max_num_steps
    if isinstance(retention, str):
        return steps
    return min(steps, retention + config.checkpointing.period + config.grpo.async_grpo.window)
