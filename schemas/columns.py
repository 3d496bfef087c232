"""Every column of a run, declared once.

The Arrow schema of a partition, the SQL views and the table in ``docs/columns.md`` are rendered from
``REGISTRY``. Token columns follow one alignment, *input-position*: an entry per token of ``input_ids``,
entry t describing token t, entry 0 being 0. Log-probs are float32, at the sampling temperature, over the
full vocabulary. Entries where ``token_mask`` is false are filler that no result may depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from schemas.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from schemas.config import OnPolicyDistillationFullConfig

SAMPLE_ID = "sample_id"

#: Partitions that a run creates.
TRAIN, VALIDATION = "train", "validation"

#: Codes that open a row's ``error`` ("code: detail"), and the final status each one gives the row.
FAILURE_CODES: dict[str, str] = {
    "timed_out": "failed",
    "engine_error": "failed",
    "reward_error": "failed",
    "teacher_too_long": "failed",
    "prompt_too_long": "failed",
    "stage_error": "failed",
    "bad_logprob": "quarantined",
    "misaligned": "quarantined",
    "corrupt": "lost",
    "lost": "lost",
    "empty_response": "empty",
    "stale": "stale",
}


@dataclass(frozen=True)
class Column:
    """One column: its name, Arrow type, unit, the task that writes it, and what it means."""

    name: str
    type: pa.DataType
    writer: str
    doc: str
    unit: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Heavy payload columns may be cleared before the rest of their row.
    heavy: bool = False

    @property
    def per(self) -> Literal["token", "sample"]:
        """Whether a value describes a token (a list as long as ``input_ids``) or the whole sample."""
        return "token" if pa.types.is_large_list(self.type) else "sample"

    @property
    def field(self) -> pa.Field:
        """The Arrow field, units as its metadata."""
        metadata = {"unit": self.unit, **self.metadata} if self.unit else dict(self.metadata)
        return pa.field(self.name, self.type, metadata=metadata or None)


def token(value_type: pa.DataType) -> pa.DataType:
    """The type of a token column: values and int64 offsets, which is torch's jagged layout."""
    return pa.large_list(value_type)


#: The k most likely ids of a token, or their log-probs; empty where none were taken.
TOP_IDS, TOP_LOGPROBS = pa.list_(pa.int32()), pa.list_(pa.float32())

SAMPLING = pa.struct(
    [
        ("temperature", pa.float32()),
        ("top_p", pa.float32()),
        ("top_k", pa.int32()),
        ("max_new_tokens", pa.int32()),
        ("seed", pa.int64()),
    ]
)

_NATS = "nats"

REGISTRY: dict[str, Column] = {
    column.name: column
    for column in (
        # -- written when the controller admits a prompt: one row per (prompt, generation index)
        Column("prompt_id", pa.string(), "admit", "the data row this sample came from"),
        Column("prompt", pa.string(), "admit", "text of the last user turn"),
        Column("messages", pa.string(), "admit", "the whole chat as JSON, when the data row gave one"),
        Column("answer", pa.string(), "admit", "what the checker compares with"),
        Column("agent", pa.string(), "admit", "the skill or environment; decides the teacher"),
        Column("teacher", pa.string(), "admit", "alias of the teacher that scores this sample"),
        Column("checker", pa.string(), "admit", "name of the reward function"),
        Column("sampling", SAMPLING, "admit", "how to sample; temperature 0 is greedy"),
        Column("group_id", pa.string(), "admit", "one admission of one prompt: its samples form a group"),
        Column("group_index", pa.int32(), "admit", "position inside the group"),
        # -- generate
        Column("input_ids", token(pa.int32()), "generate", "prompt and response token ids", "token id"),
        Column("token_mask", token(pa.bool_()), "generate", "true where the student generated the token"),
        Column(
            "generation_logprobs",
            token(pa.float32()),
            "generate",
            "log-prob of each sampled token by the sampler, at the sampling temperature, full vocabulary",
            _NATS,
        ),
        Column("finish_reason", pa.string(), "generate", "stop, or length when the budget ran out"),
        Column("weight_version", pa.int32(), "generate", "oldest weights that sampled a token of this row", "step"),
        Column("weight_version_max", pa.int32(), "generate", "newest weights that did", "step"),
        Column("reward", pa.float32(), "generate", "the checker's verdict; exact match is 1.0"),
        Column("response_text", pa.string(), "generate", "the response as text; for reading only"),
        # -- teacher
        Column(
            "teacher_logprobs", token(pa.float32()), "teacher", "log-prob of each token by the row's teacher", _NATS
        ),
        Column("teacher_index", pa.int32(), "teacher", "index into the teacher checkpoints recorded by the run"),
        Column(
            "teacher_topk_ids",
            token(TOP_IDS),
            "teacher",
            "the teacher's most likely ids in place of each generated token, when topk_loss distils them",
            "token id",
            heavy=True,
        ),
        Column("teacher_topk_logprobs", token(TOP_LOGPROBS), "teacher", "their exact log-probs", _NATS, heavy=True),
        # -- student
        Column(
            "student_logprobs",
            token(pa.float32()),
            "student",
            "log-prob of each token by the training engine at the start of the step",
            _NATS,
        ),
        # -- reference: only with a KL penalty
        Column(
            "reference_logprobs",
            token(pa.float32()),
            "reference",
            "log-prob of each token by the student that the run started from",
            _NATS,
        ),
        # -- top-k diagnostics, at the tokens that were picked for them
        *(
            column
            for side in ("student", "teacher")
            for column in (
                Column(
                    f"topk_stats_{side}_ids",
                    token(TOP_IDS),
                    f"topk_{side}",
                    f"the {side}'s most likely ids in place of each token picked for top-k statistics",
                    "token id",
                ),
                Column(f"topk_stats_{side}_logprobs", token(TOP_LOGPROBS), f"topk_{side}", "their log-probs", _NATS),
                Column(
                    f"topk_stats_{side}_logsumexp",
                    token(pa.float32()),
                    f"topk_{side}",
                    f"logsumexp of all the {side}'s logits there; 0 where nothing was picked",
                    _NATS,
                ),
            )
        ),
        # -- baseline
        Column("advantages", token(pa.float32()), "baseline", "per-token advantage that the loss uses", _NATS),
        Column("sample_mask", pa.bool_(), "baseline", "whether the row takes part in the step's loss"),
        Column("mask_reason", pa.string(), "baseline", "why sample_mask is false, as 'code: detail'; else null"),
        Column(
            "seq_logprob_error",
            pa.float32(),
            "baseline",
            "mean over trained tokens of exp(|generation - student log-prob|)",
        ),
        Column("gap_sum", pa.float32(), "baseline", "sum over generated tokens of teacher - student log-prob", _NATS),
        Column("gap_mean", pa.float32(), "baseline", "mean of the same", _NATS),
        Column("gap_abs_mean", pa.float32(), "baseline", "mean of its absolute value", _NATS),
        Column(
            "student_entropy",
            pa.float32(),
            "baseline",
            "mean of -exp(student - generation) * student log-prob",
            _NATS,
        ),
        Column(
            "teacher_entropy",
            pa.float32(),
            "baseline",
            "mean of -exp(teacher - generation) * teacher log-prob",
            _NATS,
        ),
        Column("num_tokens", pa.int32(), "baseline", "generated tokens of the row", "tokens"),
        Column("num_finite", pa.int32(), "baseline", "generated tokens whose three log-probs are finite", "tokens"),
        # -- train
        Column("loss", pa.float32(), "train", "the row's share of the step's loss"),
        # -- divergence: held-out prompts, sampled
        Column(
            "exact_kl",
            pa.float32(),
            "divergence",
            "mean over generated tokens of the reverse KL to the teacher over the whole vocabulary",
            _NATS,
        ),
    )
}


def column(name: str) -> Column:
    """The registered column *name*. Raises InputError naming the nearest one."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise InputError(
            f"column {name!r}: not in the registry{did_you_mean(name, REGISTRY)}; give its Arrow type to declare it"
        ) from None


def schema_of(columns: Mapping[str, pa.DataType | pa.Field] | Iterable[str] | pa.Schema) -> pa.Schema:
    """A partition's schema from registered names, or from a mapping of names to Arrow types.

    A registered name must keep its registered type. Raises InputError.
    """
    if isinstance(columns, pa.Schema):
        columns = {f.name: f for f in columns}
    if not isinstance(columns, Mapping):
        return pa.schema([column(name).field for name in columns])
    return pa.schema([_declared(name, given) for name, given in columns.items()])


def refuse_unknown(columns: Iterable[str], schema: pa.Schema, partition: str) -> None:
    """Raises InputError for a column that *partition* does not declare."""
    for name in columns:
        if not isinstance(name, str) or schema.get_field_index(name) < 0:  # the list of all names takes long to make
            raise InputError(f"partition {partition!r} has no column {name!r}{did_you_mean(str(name), schema.names)}")


def _declared(name: str, given: pa.DataType | pa.Field) -> pa.Field:
    if name == SAMPLE_ID:
        raise InputError(f"column {SAMPLE_ID!r} is the key of every partition and cannot be declared")
    declared = given.with_name(name) if isinstance(given, pa.Field) else pa.field(name, given)
    known = REGISTRY.get(name)
    if known is None:
        return declared
    if known.type != declared.type:
        raise InputError(
            f"column {name!r}: expected its registered type {known.type}, got {declared.type}; use another name"
        )
    return known.field


#: Columns with a vector per token; their type depends on a model's width, so a run declares them.
HIDDEN_STATES, PAYLOAD_LOGITS, TEACHER_LOGITS = "payload_hidden_states", "payload_logits", "teacher_logits"

#: What may be cleared before the rest of its row. A commit writes these into a block of their own.
HEAVY = frozenset({HIDDEN_STATES, PAYLOAD_LOGITS, TEACHER_LOGITS, *(c.name for c in REGISTRY.values() if c.heavy)})

#: How a payload's numbers are stored. Arrow has no bfloat16: its bits are kept as uint16, and the field says so.
BFLOAT16 = "bfloat16 as uint16"
_PAYLOAD_TYPES = {"bfloat16": pa.uint16(), "float16": pa.float16(), "float32": pa.float32()}


def teacher_logits(vocabulary_size: int) -> pa.Field:
    """The teacher's next-token logits, a vector per token: entry t is what token t was judged by; entry 0 is 0."""
    return _vectors(TEACHER_LOGITS, "float32", vocabulary_size, "logits, raw")


def opd_full_payload_field(full: OnPolicyDistillationFullConfig) -> str:
    """Name of the column that holds what teachers ship for full-vocabulary distillation."""
    return HIDDEN_STATES if full.teacher_payload == "hidden_states" else PAYLOAD_LOGITS


def opd_full_teacher_index_field(full: OnPolicyDistillationFullConfig) -> str | None:
    """Name of the column that says which teacher's head turns a row's states into logits; None for logits."""
    return "teacher_index" if full.teacher_payload == "hidden_states" else None


def payload(full: OnPolicyDistillationFullConfig, width: int) -> pa.Field:
    """The payload column, a vector of *width* numbers per token: entry t is what token t was predicted from."""
    unit = "final hidden state" if full.teacher_payload == "hidden_states" else "logits, raw"
    return _vectors(opd_full_payload_field(full), full.payload_dtype, width, unit)


def _vectors(name: str, dtype: str, width: int, unit: str) -> pa.Field:
    metadata = {"unit": unit, "encoding": BFLOAT16} if dtype == "bfloat16" else {"unit": unit}
    return pa.field(name, token(pa.list_(_PAYLOAD_TYPES[dtype], width)), metadata=metadata)


def written_by(task: str) -> tuple[str, ...]:
    """Names of the columns that *task* writes, in registry order."""
    return tuple(c.name for c in REGISTRY.values() if c.writer == task)
