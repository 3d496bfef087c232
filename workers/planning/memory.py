"""Bytes of one process of each role, by what they are for. Upper bounds: sequences are as long as they may be.

What the GPU holds (all of it, where a role has none) is apart from what stays in the memory of the node. Factors of
activations are those of a Llama layer whose inputs, projections and attention are kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.config import RunConfig, get_opd_full_config
from stages.losses.memory import CHUNK_NUMBERS, ITEMSIZE, HeadShape, estimate_full_bytes
from workers.planning.columns import ColumnPlan, tokens_per_step
from workers.planning.shapes import ModelShape
from workers.teachers.resources import ROWS_A_TURN, TeacherEngine

_MIB = 2**20

#: Of a process that holds nothing yet: Python and its libraries; with vLLM; with a CUDA context on its GPU.
RUNTIME, VLLM_RUNTIME, CUDA_RUNTIME = 500 * _MIB, 1200 * _MIB, 1000 * _MIB

#: Held-out logits of the exact KL, at most (validation.exact_kl_rows), on each side of it.
KL_LOGITS = 256 * _MIB

#: Prompt tokens that vLLM computes at once.
VLLM_TOKENS = 8192

#: Tables of vocabulary-wide float32 that exist together while log-probs are taken, and while a token is drawn.
_CHUNK_TABLES, _DRAW_TABLES = 6, 6
#: Copies of a layer's widest tensors that exist together in a forward pass without gradients.
_FORWARD = 4


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose: on the *device* that computes, and on the *host* beside it."""

    device: Mapping[str, int] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())


def trainer_memory(
    config: RunConfig, shape: ModelShape, teachers: Sequence[ModelShape], columns: Sequence[ColumnPlan]
) -> Memory:
    """One rank of the trainer."""
    trainer, policy = config.trainer, config.policy
    size = ITEMSIZE[policy.dtype]
    tensor, pipeline = trainer.tensor_model_parallel_size, trainer.pipeline_model_parallel_size
    mine = _shard(shape, tensor, pipeline)
    masters = trainer.engine == "megatron" and policy.dtype != "float32"
    tokens = _micro_batch(config, policy.train_micro_batch_size) // trainer.context_parallel_size
    kept = _kept(shape, config, tokens, size, on_cpu=not trainer.gpus) // tensor // pipeline * _in_flight(config)
    frozen = mine * size if config.loss_fn.reference_policy_kl_penalty else 0
    scored = _micro_batch(config, policy.logprob_batch_size) // trainer.context_parallel_size
    busy = max(kept, _forward(shape, config, scored, size, on_cpu=not trainer.gpus) // tensor)
    device = {
        "weights": mine * size + frozen,
        "gradients": mine * (4 if masters else size),
        "optimizer": mine * (12 if masters else 2 * size),
        "activations": busy + _loss(shape, tensor, tokens),
        **_full_vocabulary(config, shape, teachers),
    }
    copies = mine * size + device["optimizer"] + shape.file_bytes
    host = {
        "runtime": RUNTIME,
        "checkpoint copy": copies,
        "columns": _columns(columns),
        "exact KL": _measured(config, shape),
    }
    return _together(device, host, bool(trainer.gpus))


def generator_memory(config: RunConfig, shape: ModelShape) -> Memory:
    """One generator."""
    generator = config.generator
    vllm, size = generator.engine == "vllm", 4 if generator.engine == "hf" else ITEMSIZE[config.policy.dtype]
    rows = min(generator.batch_size, config.grpo.num_samples_per_step)
    tokens = rows * config.policy.max_total_sequence_length
    prompts = rows * (config.policy.max_total_sequence_length - generator.sampling.max_new_tokens)
    prompts = min(prompts, VLLM_TOKENS) if vllm else prompts
    device = {
        "weights": shape.parameters * size,
        "kv cache": shape.cache_numbers(tokens) * size,
        "activations": _forward(shape, config, prompts, size, on_cpu=not generator.gpus)
        + rows * shape.vocabulary * 4 * _DRAW_TABLES,
    }
    host = {
        "runtime": VLLM_RUNTIME if vllm else RUNTIME,
        "new weights": shape.parameters * size + shape.file_bytes,
    }
    return _together(device, host, bool(generator.gpus))


def teacher_memory(config: RunConfig, how: TeacherEngine, shape: ModelShape, columns: Sequence[ColumnPlan]) -> Memory:
    """One rank of a teacher: frozen weights, no gradient."""
    size = ITEMSIZE[how.dtype]
    tensor = int(how.parallel.get("tensor_model_parallel_size", 1))
    pipeline = int(how.parallel.get("pipeline_model_parallel_size", 1))
    tokens = how.batch_size * config.policy.max_total_sequence_length
    if how.batch_tokens is not None:
        tokens = min(tokens, max(how.batch_tokens, config.policy.max_total_sequence_length))
    device = {
        "weights": _shard(shape, tensor, pipeline) * size,
        "activations": _forward(shape, config, tokens, size, on_cpu=not how.gpus) // tensor
        + _chunk(shape, tensor, tokens),
    }
    rows = min(ROWS_A_TURN, config.grpo.num_samples_per_step)
    written = [column for column in columns if column.writer == "teacher"]
    share = rows / config.grpo.num_samples_per_step
    host = {
        "runtime": VLLM_RUNTIME if how.engine == "vllm" else RUNTIME,
        "checkpoint file": shape.file_bytes,
        "columns": int(2 * share * _columns(written)),
        "exact KL": 2 * _measured(config, shape),
    }
    return _together(device, host, bool(how.gpus))


def _together(device: dict[str, int], host: dict[str, int], on_gpu: bool) -> Memory:
    """Without a GPU everything is in the memory of the node."""
    if on_gpu:
        return Memory({**device, "runtime": CUDA_RUNTIME}, host)
    return Memory({}, {**device, **host})


def _shard(shape: ModelShape, tensor: int, pipeline: int) -> int:
    """Numbers of the largest rank's part: the pipeline's ends hold an embedding, or the head, beside their layers."""
    layers = shape.parameters - shape.embedding
    return math.ceil((layers / pipeline + shape.embedding) / tensor) if pipeline > 1 else shape.parameters // tensor


def _micro_batch(config: RunConfig, rows: int) -> int:
    """Tokens of one forward pass at most, padding included."""
    longest = config.policy.max_total_sequence_length
    tokens = min(rows, config.grpo.num_samples_per_step) * longest
    limit = config.policy.micro_batch_tokens
    return tokens if limit is None else min(tokens, max(limit, longest))


def _in_flight(config: RunConfig) -> int:
    """Micro-batches whose activations exist together: as many as the pipeline has stages."""
    return config.trainer.pipeline_model_parallel_size


def _layer(shape: ModelShape, config: RunConfig, *, on_cpu: bool) -> int:
    """Numbers a token of what one layer keeps for its backward pass. On a CPU attention keeps its probabilities."""
    probabilities = shape.heads * config.policy.max_total_sequence_length if on_cpu else 0
    return 10 * shape.hidden + 2 * shape.attention + 4 * shape.intermediate + probabilities


def _kept(shape: ModelShape, config: RunConfig, tokens: int, size: int, *, on_cpu: bool) -> int:
    """What *tokens* keep for the backward pass."""
    layer = _layer(shape, config, on_cpu=on_cpu)
    if config.trainer.gradient_checkpointing:
        return tokens * size * (2 * shape.layers * shape.hidden + layer)
    return tokens * size * shape.layers * layer


def _forward(shape: ModelShape, config: RunConfig, tokens: int, size: int, *, on_cpu: bool) -> int:
    """What *tokens* need without a backward pass: one layer at a time."""
    probabilities = shape.heads * config.policy.max_total_sequence_length if on_cpu else 0
    widest = 4 * shape.hidden + shape.attention + 3 * shape.intermediate + probabilities
    return _FORWARD * tokens * size * widest


def _chunk(shape: ModelShape, tensor: int, tokens: int) -> int:
    """Logits that exist at once while log-probs of *tokens* are taken."""
    width = shape.vocabulary // tensor
    return min(tokens * width, max(CHUNK_NUMBERS, width)) * 4 * _CHUNK_TABLES


def _loss(shape: ModelShape, tensor: int, tokens: int) -> int:
    """A chunk of logits, and the LM head's gradient as it grows."""
    return _chunk(shape, tensor, tokens) + 2 * 4 * shape.embedding // tensor


def _full_vocabulary(config: RunConfig, shape: ModelShape, teachers: Sequence[ModelShape]) -> dict[str, int]:
    """Teachers' LM heads and chunks of the exact divergence, where that is the loss."""
    full = get_opd_full_config(config)
    if full is None:
        return {}
    heads = [HeadShape(teacher.vocabulary, teacher.hidden, 2) for teacher in teachers or [shape]]
    needed = estimate_full_bytes(full, tokens_per_step(config), shape.vocabulary, heads)
    return {"teacher heads": needed.heads, "divergence": needed.chunks}


def _measured(config: RunConfig, shape: ModelShape) -> int:
    """Held-out logits of one measurement of the exact KL."""
    if not config.data.validation or not config.on_policy_distillation.enabled:
        return 0
    row = config.policy.max_total_sequence_length * shape.vocabulary * 4
    return min(KL_LOGITS, config.validation.exact_kl_rows * row)


def _columns(columns: Sequence[ColumnPlan]) -> int:
    """Bytes of a step's rows of these columns."""
    return sum(column.step_bytes for column in columns)
