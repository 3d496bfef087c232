"""The five SQL views, declared: their columns, what each column is made of, and what it means.

    samples   a row a sample        tokens   a row a token (prompts included)
    steps     a row a trained step  events   a row a journal record        blocks   a row a written block

``samples`` also shows every column that a partition declares. The SQL text, the columns that a query has to
read and the tables in ``docs/columns.md`` are all rendered from here and from :mod:`schemas.columns`.

A column is an expression over a partition's *base table*: the stored columns under their own names beside the
catalog's state of each row, ``row.error``, ``row.step``, ``row.trained``, ``row.attempt``, ``row.claimed``,
``row.complete`` and ``row.missing`` (no declared column can be called that by accident).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dataplane.catalog.blocktable import LINEAGE_SCHEMA
from dataplane.catalog.events import EVENTS_SCHEMA
from schemas.columns import FAILURE_CODES, REGISTRY

#: Catalog state of a row, as the base table names it.
STATE_PREFIX = "row."

#: The partition that holds the tokenizers' texts; it is no partition of samples.
VOCABULARY = "vocabulary"

#: In ``tokens``: a token's position, and the first generated position of its sample.
POSITION, FIRST = "position", "first"


#: What a row of each view is.
VIEW_DOCS: dict[str, str] = {
    "samples": "a row a sample: every column that describes it, and what became of it",
    "tokens": "a row a token, prompts included",
    "steps": "a row a trained step, with its metrics",
    "events": "a row a record of the journal: what happened, when, by whom",
    "blocks": "a row a written block: lineage",
}


@dataclass(frozen=True)
class ViewColumn:
    """One column of a view: *sql* is an expression over the base columns in *reads*."""

    name: str
    type: pa.DataType
    doc: str
    reads: tuple[str, ...] = ()
    sql: str = ""
    unit: str = ""

    @property
    def expression(self) -> str:
        """The SQL that makes the column; without its own, the one base column it reads."""
        return self.sql or quoted(self.reads[0])


def quoted(name: str) -> str:
    """*name* as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """*text* as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _stored(name: str) -> ViewColumn:
    column = REGISTRY[name]
    return ViewColumn(name, column.type, column.doc, (name,), unit=column.unit)


def _state(name: str, type_: pa.DataType, doc: str) -> ViewColumn:
    return ViewColumn(name, type_, doc, (STATE_PREFIX + name,))


#: The one expression that is not over the base table: the partition's own name.
_PARTITION = ViewColumn("partition", pa.string(), "the partition that holds the sample", sql="{partition}")
_SAMPLE_ID = ViewColumn("sample_id", pa.string(), "key of the sample, unique in its partition", ("sample_id",))
_STEP = _state("step", pa.int32(), "the step that the sample belongs to; null until it is sealed into one")


def _status_sql() -> str:
    """What became of a row. A member of a trained step is in its loss or masked, whatever else befell it."""
    by_code = " ".join(f"when {literal(c)} then {literal(s)}" for c, s in FAILURE_CODES.items() if s != "failed")
    return f"""case
        when "row.trained" then if(coalesce("sample_mask", "row.error" is null), 'trained', 'masked')
        when "row.error" is not null then case split_part("row.error", ':', 1) {by_code} else 'failed' end
        when "row.complete" and "row.step" is null then 'done'
        when "row.claimed" then 'in_flight'
        when "row.step" is not null then 'sealed'
        else 'pending' end"""


_STATUS = ViewColumn(
    "status",
    pa.string(),
    "trained, masked (in a trained step, but not in its loss), failed, empty, quarantined, stale, lost, done "
    "(complete, not for training); before that in_flight, sealed or pending",
    ("row.trained", "row.error", "row.complete", "row.claimed", "row.step", "sample_mask"),
    _status_sql(),
)

#: Columns of ``samples`` in any store; the other declared columns follow.
SAMPLES: tuple[ViewColumn, ...] = (
    _PARTITION,
    _SAMPLE_ID,
    *(_stored(name) for name in ("prompt_id", "group_id", "agent", "teacher")),
    _STATUS,
    _state("error", pa.string(), 'why the sample failed, as "code: detail"; null if it did not'),
    _STEP,
    _stored("weight_version"),
    _stored("weight_version_max"),
    _state("attempt", pa.int32(), "how many times work on the sample began anew"),
    _stored("finish_reason"),
    _stored("reward"),
    _state("missing", pa.list_(pa.string()), "columns that the sample's next task still lacks"),
)


def _masked(name: str, column: str, doc: str) -> ViewColumn:
    sql = f'case when "token_mask" then {quoted(column)} end'
    return ViewColumn(name, pa.float32(), doc, ("token_mask", column), sql, unit="nats")


#: Columns of ``tokens``. Per-token base columns stand for the one entry of this token.
TOKENS: tuple[ViewColumn, ...] = (
    _PARTITION,
    _SAMPLE_ID,
    _stored("agent"),
    _stored("teacher"),
    _STEP,
    ViewColumn("position", pa.int64(), "index into input_ids, from 0", (POSITION,)),
    ViewColumn(
        "response_position",
        pa.int64(),
        "index from the first generated token, tool tokens counted; null in the prompt",
        (POSITION, FIRST),
        'case when "position" >= "first" then "position" - "first" end',
    ),
    ViewColumn("token_id", pa.int32(), "id of the token", ("input_ids",)),
    ViewColumn(
        "token",
        pa.string(),
        "its text; null without a vocabulary",
        ("input_ids", VOCABULARY),
        'case when "input_ids" >= 0 then "vocabulary"["input_ids" + 1] end',
    ),
    ViewColumn(
        "trained",
        pa.bool_(),
        "whether the token was in the loss of a trained step: token_mask and sample_mask; never null",
        ("token_mask", "sample_mask", "row.trained"),
        'coalesce("token_mask" and "sample_mask" and "row.trained", false)',
    ),
    _masked("generation_logprob", "generation_logprobs", "log-prob by the sampler; null where not generated"),
    _masked("student_logprob", "student_logprobs", "log-prob by the training engine; null where not generated"),
    _masked("teacher_logprob", "teacher_logprobs", "log-prob by the teacher; null where not generated"),
    ViewColumn(
        "gap",
        pa.float32(),
        "teacher_logprob - student_logprob",
        ("token_mask", "teacher_logprobs", "student_logprobs"),
        'case when "token_mask" then "teacher_logprobs" - "student_logprobs" end',
        unit="nats",
    ),
    _masked("advantage", "advantages", "the advantage that the loss uses; null where not generated"),
    ViewColumn(
        "finite",
        pa.bool_(),
        "whether gap is a finite number, so that avg(gap) filter (where finite) means something; never null",
        ("token_mask", "teacher_logprobs", "student_logprobs"),
        'coalesce("token_mask" and isfinite("teacher_logprobs" - "student_logprobs"), false)',
    ),
)


def _metric(name: str, doc: str, unit: str = "") -> ViewColumn:
    return ViewColumn(name, pa.float64(), doc, (name,), unit=unit)


#: Columns of ``steps`` in any store; other metrics of the run follow.
STEPS: tuple[ViewColumn, ...] = (
    ViewColumn("step", pa.int64(), "the step, from 1", ("step",)),
    ViewColumn("weight_version", pa.int64(), "weights that the step began from: step - 1", ("weight_version",)),
    ViewColumn("samples", pa.int64(), "samples in the loss", ("samples",)),
    ViewColumn("trained_tokens", pa.int64(), "tokens in the loss", ("trained_tokens",)),
    _metric("loss", "loss of the step's global batch"),
    _metric("gap_mean", "mean over trained tokens of teacher - student log-prob", "nats"),
    _metric("adv_mean", "mean advantage over trained tokens", "nats"),
    _metric("adv_std", "its standard deviation (unbiased)", "nats"),
    _metric("adv_min", "smallest advantage", "nats"),
    _metric("adv_max", "largest advantage", "nats"),
    _metric("reward_mean", "mean reward of the step's samples"),
    _metric("is_oob_ratio", "share dropped or clamped by the importance correction"),
    _metric("generation_kl_error", "divergence of sampler and trainer on the same weights", "nats"),
    _metric("grad_norm", "gradient norm before clipping"),
    _metric("exact_kl", "full-vocabulary reverse KL on held-out prompts, at validation steps", "nats"),
    _metric("wall_s", "wall time of the step", "s"),
    _metric("plane_s", "time in the store and the controller, summed over processes", "s"),
    _metric("staleness_mean", "mean age of the step's samples", "weight versions"),
    _metric("staleness_max", "age of its oldest sample", "weight versions"),
    _metric("buffered_rows", "rows in no step yet, once it was trained"),
    _metric("buffered_bytes", "their bytes", "bytes"),
    _metric("tokens_per_s", "trained tokens a second of the whole step"),
    _metric("generate_tokens_per_s", "response tokens a second of the generators' own time"),
    _metric("teacher_tokens_per_s", "response tokens a second of the teachers' own time"),
    _metric("train_tokens_per_s", "response tokens a second of the trainer's own time"),
)


def _plain(name: str, type_: pa.DataType, doc: str) -> ViewColumn:
    return ViewColumn(name, type_, doc, (name,))


_EVENT_DOCS: dict[str, str] = {
    "seq": "place in the journal, from 0",
    "time": "when, UTC",
    "kind": "what happened: put, claimed, committed, failed, step_sealed, step_trained, checkpointed, …",
    "partition": "the partition it happened in",
    "task": "the task",
    "claim": "the claim (lease) it belongs to",
    "worker": "who did it",
    "attempt": "the attempt it belongs to",
    "epoch": "how many times the run had gone back to a checkpoint",
    "step": "the step it is about",
    "version": "the weights it is about, or was made with",
    "rows": "how many rows it is about",
    "block": "the block it made visible",
    "columns": "the columns in that block",
    "sample_ids": "the rows it is about",
    "failed_ids": "the rows that failed",
    "detail": "its other fields, as JSON",
}

_BLOCK_DOCS: dict[str, str] = {
    "id": "id of the block",
    "partition": "the partition of its rows",
    "columns": "its columns",
    "rows": "rows in it",
    "live_rows": "rows of the store that still need it",
    "bytes": "its size in bytes",
    "task": "the task that wrote it",
    "worker": "the worker that wrote it",
    "attempt": "the attempt that wrote it",
    "time": "when it became visible, UTC",
    "weight_version": "weights used to make it",
    "versions": "packages that made it",
}

EVENTS: tuple[ViewColumn, ...] = tuple(_plain(f.name, f.type, _EVENT_DOCS[f.name]) for f in EVENTS_SCHEMA)
BLOCKS: tuple[ViewColumn, ...] = tuple(_plain(f.name, f.type, _BLOCK_DOCS[f.name]) for f in LINEAGE_SCHEMA)
