"""``on_policy_distillation``: the teachers, how a teacher becomes an advantage, and what is written down about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.config.base import ContextParallel, ModelParallel, Pair, PipelineParallel, Section, TensorParallel
from schemas.errors import ConfigError


class TeacherResourceConfig(Section, ModelParallel):
    """Resources of one teacher group. Unknown keys, and only here, are settings for Megatron."""

    engine: Literal["hf", "vllm", "megatron"] = Field("megatron", description="what runs the teacher")
    python: str | None = Field(
        None, description="interpreter that the teacher runs in, for an engine in an environment of its own"
    )
    tensor_model_parallel_size: TensorParallel = 1
    pipeline_model_parallel_size: PipelineParallel = 1
    context_parallel_size: ContextParallel = 1
    expert_model_parallel_size: int = Field(1, ge=1, description="ranks that share the experts")
    num_nodes: int = Field(1, ge=1, description="nodes of this teacher")
    gpus_per_node: int = Field(8, ge=0, description="GPUs on each of them")
    precision: Literal["bf16", "fp16", "fp32", "bfloat16", "float16", "float32"] = Field(
        "bf16", description="weights' type"
    )
    micro_batch_size: int = Field(4, ge=1, description="rows scored at once")
    sequence_packing: bool = Field(
        False, description="put rows behind each other on lines without padding; of megatron only"
    )
    megatron_cfg_overrides: dict[str, Any] = Field(
        default_factory=dict, description="settings for Megatron; unknown keys of this section land here"
    )

    @model_validator(mode="before")
    @classmethod
    def _fold_unknown_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("megatron_cfg_overrides", {}), dict):
            return given
        overrides = given.get("megatron_cfg_overrides", {})
        extra = {key: value for key, value in given.items() if key not in cls.model_fields}
        twice = sorted(extra.keys() & overrides.keys())
        if twice:
            raise ConfigError(f"{twice[0]!r} is given here and in megatron_cfg_overrides; keep one of them")
        known = {key: value for key, value in given.items() if key in cls.model_fields}
        return {**known, "megatron_cfg_overrides": {**overrides, **extra}} if extra else given

    @property
    def ranks(self) -> int:
        """Processes of the teacher: one a GPU; without GPUs one replica of the model."""
        return self.num_nodes * self.gpus_per_node or self.replica_ranks

    @property
    def replicas(self) -> int:
        """Copies of the model among its ranks."""
        return self.ranks // self.replica_ranks

    def laid_over(self, default: TeacherResourceConfig) -> TeacherResourceConfig:
        """*default*, changed where this says something itself."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        overrides = {**default.megatron_cfg_overrides, **self.megatron_cfg_overrides}
        return default.model_copy(update={**said, "megatron_cfg_overrides": overrides})


class NonColocatedTeachersConfig(Section):
    """Teachers on resources of their own."""

    enabled: bool = Field(False, description="own resources for each teacher; false = hf engine beside the student")
    default_teacher_cfg: TeacherResourceConfig = Field(
        default_factory=TeacherResourceConfig, description="resources of a teacher without an override"
    )
    teacher_overrides: dict[str, TeacherResourceConfig] = Field(
        default_factory=dict, description="by teacher alias: what differs from default_teacher_cfg"
    )

    @model_validator(mode="after")
    def _complete_overrides(self) -> NonColocatedTeachersConfig:
        """Each override is kept whole, so that a saved, resolved recipe means the same."""
        default = self.default_teacher_cfg
        complete = {alias: override.laid_over(default) for alias, override in self.teacher_overrides.items()}
        self.__dict__["teacher_overrides"] = complete  # what is read from now on is frozen
        return self

    def resources(self, aliases: Sequence[str]) -> TeacherResourceConfig:
        """What the one teacher that answers to *aliases* runs on. Raises ConfigError where they disagree."""
        said = {alias: self.teacher_overrides[alias] for alias in aliases if alias in self.teacher_overrides}
        first = next(iter(said), None)
        for alias in (alias for alias, resources in said.items() if first is not None and resources != said[first]):
            raise ConfigError(
                f"on_policy_distillation.non_colocated_teachers.teacher_overrides: {first!r} and {alias!r} are one "
                "checkpoint, loaded once, and ask for different resources; make them equal, keep one of them, or set "
                "deduplicate_shared_teacher_checkpoints to false"
            )
        return self.default_teacher_cfg if first is None else said[first]


class OnPolicyDistillationFullConfig(Section):
    """Distillation of the whole next-token distribution, in place of the policy-gradient loss."""

    enabled: bool = Field(False, description="match the teacher's whole distribution instead of sampled tokens")
    teacher_payload: Literal["hidden_states", "logits"] = Field(
        "hidden_states", description="what the teacher ships for each token"
    )
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = Field(
        "reverse_kl", description="distance between student and teacher"
    )
    beta: float = Field(
        0.5, ge=0, le=1, description="of jsd: the teacher's share in the mixture; 0 is forward_kl, 1 reverse_kl"
    )
    payload_dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="type of the payload")
    chunk_size: int | None = Field(None, description="tokens whose logits exist at once; null = chosen by the engine")
    teacher_lm_head_lifecycle: Literal["none", "offload", "evict"] = Field(
        "offload", description="where teacher heads are between steps: kept, on the CPU, or reloaded"
    )
    validate_decomposition: bool = Field(
        False, description="check that teachers' logits are lm_head(hidden states), and the reverse KL its two parts"
    )

    @model_validator(mode="after")
    def validate_positive_sizes(self) -> OnPolicyDistillationFullConfig:
        """Refuse a chunk size that would make the divergence kernels useless."""
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ConfigError(f"chunk_size: expected null or at least 1 token, got {self.chunk_size}")
        return self


class TopKLossConfig(Section):
    """Distillation of the teacher's k most likely tokens and one bucket for the rest, instead of sampled tokens."""

    enabled: bool = Field(False, description="match the teacher at its k most likely tokens")
    k: int = Field(64, ge=1, description="how many tokens the teacher ships at each position")
    direction: Literal["reverse", "forward"] = Field("reverse", description="KL from the student, or from the teacher")


class OnPolicyDistillationConfig(Section):
    """Teachers, advantages and diagnostics of on-policy distillation."""

    enabled: bool = Field(False, description="distil; false = no teacher is loaded and rewards alone train")
    teacher_model_by_agent_name: dict[str, str] = Field(
        default_factory=dict, description="teacher checkpoint by agent; the agent's name is the teacher's alias"
    )
    default_teacher_alias: str | None = Field(None, description="teacher of agents that the map does not name")
    strict_agent_name_match: bool = Field(False, description="refuse an agent that the map does not name")
    deduplicate_shared_teacher_checkpoints: bool = Field(True, description="load a checkpoint once for all its aliases")
    non_colocated_teachers: NonColocatedTeachersConfig | None = Field(
        None, description="teachers on their own resources"
    )
    full: OnPolicyDistillationFullConfig | None = Field(None, description="full-vocabulary distillation")
    topk_loss: TopKLossConfig | None = Field(None, description="distillation from the teacher's top k")

    proximal_teacher_alpha: float = Field(
        1.0, gt=0, le=1, description="share of the teacher in the mixture that the student is pulled to; 1 = plain OPD"
    )
    reward_shaping_scale: float = Field(1.0, gt=0, description="factor on the distillation advantage")
    subtract_global_baseline: bool = Field(False, description="subtract the mean advantage over the whole step")
    use_orm_advantage: bool = Field(False, description="add the group advantage of outcome rewards")
    orm_advantage_weight: float = Field(1.0, description="weight of that advantage")
    advantage_clip: Pair | None = Field(None, description="[low, high] bounds on the final advantage; null = none")
    discount: float | None = Field(
        None, gt=0, le=1, description="discount on later tokens' advantages; null = each alone"
    )
    nonfinite_teacher_keeps_reward: bool = Field(
        False, description="a row without finite teacher scores trains on its reward; false = it is quarantined"
    )

    log_sample_stats: bool = Field(False, description="write a JSON line a sample")
    sample_stats_log_period: int = Field(1, ge=1, description="every how many steps")
    log_sample_responses: bool = Field(False, description="put the response's text into those lines")
    log_token_stats: bool = Field(False, description="write a columnar file with a row a token")
    token_stats_log_period: int = Field(1, ge=1, description="every how many steps")
    log_topk_stats: bool = Field(False, description="store top-k ids and log-probs of student and teacher")
    topk_stats_log_period: int = Field(1, ge=1, description="every how many steps")
    topk_stats_mode: Literal["online", "student_online_teacher_deferred"] = Field(
        "online", description="when the teacher's part is computed: at collection, or later from stored rows"
    )
    topk_stats_k: int = Field(16, ge=1, description="how many ids a token")
    topk_stats_max_tokens: int | None = Field(None, ge=1, description="tokens a step that are kept at most; null = all")

    @property
    def aliases_by_teacher(self) -> list[tuple[str, ...]]:
        """The aliases of each teacher that is loaded, in the order of the map; one checkpoint's together if shared."""
        groups: dict[str, list[str]] = {}
        for alias, model in self.teacher_model_by_agent_name.items():
            groups.setdefault(model if self.deduplicate_shared_teacher_checkpoints else alias, []).append(alias)
        return [tuple(aliases) for aliases in groups.values()]

    @model_validator(mode="after")
    def _clip_in_order(self) -> OnPolicyDistillationConfig:
        if self.advantage_clip is not None and self.advantage_clip[0] >= self.advantage_clip[1]:
            low, high = self.advantage_clip
            raise ConfigError(f"advantage_clip: expected [low, high] with low < high, got [{low}, {high}]")
        return self
