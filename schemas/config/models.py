"""``policy``, ``generator`` and ``trainer``: the student, and the engines that sample from it and train it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config.base import ContextParallel, ModelParallel, PipelineParallel, Section, TensorParallel


class PolicyConfig(Section):
    """The student."""

    model: str = Field(description="checkpoint that training starts from")
    tokenizer: str | None = Field(None, description="tokenizer folder; null = the model's own")
    max_total_sequence_length: int = Field(512, ge=2, description="tokens of prompt and response together")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="type of the weights")
    logprob_batch_size: int = Field(64, ge=1, description="rows scored at once")
    train_micro_batch_size: int = Field(64, ge=1, description="rows of one forward-backward; changes no result")
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens, padding included, of one forward pass at most, rows by length; null = rows alone count",
    )


class SamplingConfig(Section):
    """How training samples are drawn. Validation is greedy."""

    temperature: float = Field(1.0, gt=0, description="log-probs everywhere are taken at this temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="smallest set of tokens with this mass; 1 = all")
    top_k: int | None = Field(None, ge=1, description="most likely tokens that may be drawn; null = all")
    max_new_tokens: int = Field(64, ge=1, description="tokens of a response at most")


class GeneratorConfig(Section):
    """What samples from the student."""

    engine: Literal["hf", "vllm"] = Field("hf", description="what generates")
    python: str | None = Field(
        None, description="interpreter that the generators run in, for an engine in an environment of its own"
    )
    replicas: int = Field(1, ge=1, description="generators side by side")
    gpus: float = Field(0, ge=0, description="GPUs of a generator")
    batch_size: int = Field(256, ge=1, description="prompts that one generator takes at once")
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw", description="where vllm takes log-probs: before top_p and top_k, or after its own processing"
    )
    weight_update: Literal["drain", "abort"] = Field(
        "drain", description="requests that run when weights are published: finished first, or started again"
    )
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1, description="share of the GPU that vllm takes")
    kv_cache_bytes: int | None = Field(
        None, ge=1, description="KV cache of vllm on a CPU; null = enough for batch_size sequences, 4 GiB at most"
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="how training samples are drawn")


#: What is left of a moment after a step.
Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """The optimizer."""

    name: Literal["adamw"] = Field("adamw", description="which one")
    lr: float = Field(1e-5, gt=0, description="peak learning rate")
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = Field(
        (0.9, 0.999), description="decay of the two moments"
    )
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.0, ge=0, description="decoupled decay a step, times lr")
    clip_grad_norm: float | None = Field(1.0, gt=0, description="bound on the gradient's norm; null = none")


class SchedulerConfig(Section):
    """The learning rate over the run."""

    warmup_steps: int = Field(0, ge=0, description="steps of linear rise from 0")
    decay: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="shape from the peak to the last step"
    )
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="learning rate at the end, as a share of the peak")


class TrainerConfig(Section, ModelParallel):
    """What trains the student."""

    engine: Literal["hf", "megatron"] = Field("hf", description="what trains")
    gpus: float = Field(0, ge=0, description="GPUs of each rank")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="the optimizer")
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig, description="the learning rate over the run")
    data_parallel_size: int = Field(1, ge=1, description="replicas of the model, each on a share of the rows")
    tensor_model_parallel_size: TensorParallel = 1
    pipeline_model_parallel_size: PipelineParallel = 1
    context_parallel_size: ContextParallel = 1
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass: less memory, more time"
    )
    sequence_packing: bool = Field(
        False, description="megatron alone: rows of a micro-batch behind each other in one line, without padding"
    )

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        return self.data_parallel_size * self.replica_ranks
