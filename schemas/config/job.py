"""The sections around the algorithm: the run, its store, data, validation, checkpoints, log, cluster and failures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config.base import Section
from schemas.errors import ConfigError


class RunSection(Section):
    """The run itself."""

    name: str = Field("run", min_length=1, description="names the run directory; default: the recipe's name")
    seed: int = Field(
        0, ge=0, lt=1 << 63, description="decides everything that is drawn: order of prompts, tokens, initial noise"
    )


class StoreConfig(Section):
    """Where the columns live."""

    url: str | None = Field(None, description="folder or memory://; null = plane/ in the run directory")
    durability: Literal["process", "power"] = Field(
        "process", description="what a commit survives: a killed process, or (slower) a power cut too"
    )
    max_buffered_bytes: int | None = Field(
        None, ge=1, description="bytes of rows in no step yet, past which no more are admitted; null = no bound"
    )
    retention: Literal["never"] | Annotated[int, Field(ge=0)] = Field(
        "never", description="steps after which a checkpointed step's rows are cleared; never = keep all"
    )
    payload_retention: Literal["never"] | Annotated[int, Field(ge=0)] = Field(
        0, description="the same for what teachers shipped (hidden states, logits, top-k) alone; never = keep it"
    )


class DataSource(Section):
    """Rows of prompts: a JSON Lines file, or a function that yields them."""

    path: str | None = Field(None, description="JSON Lines file of {prompt or messages, answer, agent}")
    generator: str | None = Field(None, description="module:function that yields such rows, instead of a file")
    answer_field: str = Field("answer", min_length=1, description="key that holds the answer")
    checker: str = Field("exact", min_length=1, description="reward function by name: exact or numeric")
    agent: str | None = Field(None, min_length=1, description="agent of rows that name none")

    @model_validator(mode="after")
    def _one_origin(self) -> DataSource:
        if (self.path is None) == (self.generator is None):
            got = "neither" if self.path is None else "both"
            raise ConfigError(f"give exactly one of path and generator, got {got}")
        return self


class DataConfig(Section):
    """Prompts to train on and to validate with."""

    train: list[DataSource] = Field(min_length=1, description="sources of training prompts")
    validation: list[DataSource] = Field(default_factory=list, description="sources of held-out prompts")


class ValidationConfig(Section):
    """Greedy answers to held-out prompts: at version 0, every period and after the last step."""

    period: int = Field(20, ge=1, description="steps between validations")
    rows: int | None = Field(None, ge=1, description="held-out prompts used; null = all")
    exact_kl_rows: int = Field(
        128, ge=0, description="held-out prompts sampled for the exact KL to the teacher; at most 256 MiB of logits"
    )


class CheckpointingConfig(Section):
    """Resumable states on disk. The last step is always one."""

    period: int = Field(20, ge=1, description="steps between checkpoints")
    keep: int | None = Field(2, ge=1, description="newest checkpoints that stay; null = all")
    metric_name: str | None = Field(
        None, min_length=1, description="metric of a step by which the best checkpoint stays too; null = none"
    )
    higher_is_better: bool = Field(True, description="whether the largest value of that metric is the best")


class LoggerConfig(Section):
    """What one sees; metrics.jsonl is always written."""

    progress: bool = Field(True, description="live display on a terminal")
    tensorboard: bool = Field(False, description="write the metrics for TensorBoard too")


class ClusterConfig(Section):
    """Where Ray runs."""

    address: str | None = Field(None, description="a Ray cluster to join; null = RAY_ADDRESS, else a local one")
    threads_per_worker: int = Field(1, ge=1, description="CPU threads of each worker's arithmetic; changes last bits")
    segment_size: int | None = Field(
        None, ge=1, description="nodes of an NVLink segment at most; a teacher stays inside one; null = anywhere"
    )
    num_nodes: int | None = Field(
        None, ge=1, description="nodes that --dry-run plans for; null = this machine; a run takes what is there"
    )
    gpus_per_node: int = Field(0, ge=0, description="GPUs of each of them")
    gpu_memory_gb: float = Field(80.0, gt=0, description="memory of each GPU in GB, for --dry-run")


class FailuresConfig(Section):
    """How much may go wrong before the job stops."""

    attempts: int = Field(3, ge=1, description="tries of a row at one task before it fails")
    deadline_s: float = Field(600.0, gt=0, description="seconds without any change, or of one stage run, before help")
    lease_s: float = Field(60.0, gt=0, description="seconds after which the rows of a silent worker go back")
    restarts: int = Field(3, ge=0, description="times that a lost worker process is started again before the job stops")
    max_failed_share: float = Field(0.1, ge=0, le=1, description="failed rows, as a share of a step, that are replaced")
    max_quarantined_share: float = Field(0.1, ge=0, le=1, description="quarantined rows of a step before the job stops")
    after_seal: Literal["shrink", "fail"] = Field(
        "shrink", description="rows lost from a sealed step: train on fewer, or stop"
    )
    stop_on_invariant: bool = Field(
        True, description="a failed check before the first update ends the job; false = it is only recorded"
    )
    min_step_fraction: float = Field(0.9, gt=0, le=1, description="smallest share of a step that shrink trains on")
