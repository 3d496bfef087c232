"""SQL text of ``samples`` and ``tokens`` over one partition's base table.

Columns that a query does not need are not loaded; their place is held by an expression that fails loudly if it
is ever evaluated, so that names and positions stay what ``describe`` says and nothing can be silently null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dataplane.sql.views import FIRST, POSITION, TOKENS, VOCABULARY, ViewColumn, literal, quoted
from schemas.columns import REGISTRY

#: The list that says how many tokens a sample has.
TOKENS_OF_ROW = "input_ids"


def samples_select(columns: Sequence[ViewColumn], needed: Iterable[str], partition: str, base: str) -> str:
    """A SELECT with every column of ``samples``, a row a row of *base*."""
    return f"select {_outputs(columns, needed, partition)} from {quoted(base)}"


def tokens_select(needed: Iterable[str], partition: str, base: str, texts: str) -> str:
    """A SELECT with every column of ``tokens``, a row a token of *base*; *texts* is the vocabulary's table.

    DuckDB drops unread columns of a scan but computes every UNNEST it is given and performs joins whose columns
    nobody reads; so the inner SELECT lists what *needed* asks for and no more. Looking a text up in the vocabulary's
    one row is three times faster than joining on the id, and keeps tokens in their order.
    """
    needed = set(needed)
    reads = dict.fromkeys(read for column in TOKENS if column.name in needed for read in column.reads)
    inner = ", ".join(dict.fromkeys(_inner(read) for read in [TOKENS_OF_ROW, *reads] if read != VOCABULARY))
    beside = f", {quoted(texts)}" if VOCABULARY in reads else ""
    return f"select {_outputs(TOKENS, needed, partition)} from (select {inner} from {quoted(base)}){beside}"


def base_reads(view: str, columns: Sequence[ViewColumn], needed: Iterable[str]) -> list[str]:
    """Base columns, and the vocabulary, that the *needed* columns of ``samples`` or ``tokens`` are made of."""
    needed = set(needed)
    made_of = [read for column in columns if column.name in needed for read in column.reads]
    reads = ["token_mask" if read == FIRST else read for read in made_of if read != POSITION]
    return list(dict.fromkeys([TOKENS_OF_ROW, *reads] if view == "tokens" and needed else reads))


def plain_select(columns: Sequence[ViewColumn], base: str) -> str:
    """A SELECT of a view whose rows are those of *base* as they are."""
    shown = ", ".join(f"{column.expression} as {quoted(column.name)}" for column in columns)
    return f"select {shown} from {quoted(base)}"


def texts_of(prefix: str) -> str:
    """Name of a store's table with its ``vocabulary``, one row."""
    return f"{prefix}base_vocabulary"


def _is_per_token(read: str) -> bool:
    """Whether a base column holds a list with an entry per token."""
    return read in REGISTRY and REGISTRY[read].per == "token"


def _outputs(columns: Sequence[ViewColumn], needed: Iterable[str], partition: str) -> str:
    needed = set(needed)
    shown = [(_output(column, column.name in needed, partition), quoted(column.name)) for column in columns]
    return ", ".join(f"{expression} as {name}" for expression, name in shown)


def _output(column: ViewColumn, needed: bool, partition: str) -> str:
    if column.sql == "{partition}":
        return literal(partition)
    return column.expression if needed else f"error({literal(f'column {column.name} was not loaded')})"


def _inner(read: str) -> str:
    if read == POSITION:
        return f'unnest(range(len("{TOKENS_OF_ROW}"))) as {quoted(POSITION)}'
    if read == FIRST:  # list_position counts from 1; a row without generated tokens has none
        return f"list_position({_aligned('token_mask')}, true) - 1 as {quoted(FIRST)}"
    if _is_per_token(read):
        return f"unnest({_aligned(read)}) as {quoted(read)}"
    return quoted(read)


def _aligned(name: str) -> str:
    """A token column, null for a row where it is not as long as the tokens: never a value beside the wrong token."""
    if name == TOKENS_OF_ROW:
        return quoted(name)
    return f'case when len({quoted(name)}) = len("{TOKENS_OF_ROW}") then {quoted(name)} end'
