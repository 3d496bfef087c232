"""``docs/columns.md``, rendered: every declared column, and every column of the SQL views.

``python -m dataplane.sql.docs > docs/columns.md``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataplane.sql.readable import type_name
from dataplane.sql.views import BLOCKS, EVENTS, SAMPLES, STEPS, TOKENS, VIEW_DOCS, ViewColumn
from schemas.columns import REGISTRY

_VIEWS: dict[str, tuple[ViewColumn, ...]] = {
    "samples": SAMPLES,
    "tokens": TOKENS,
    "steps": STEPS,
    "events": EVENTS,
    "blocks": BLOCKS,
}

_AFTER = {
    "samples": "Every other column that a partition declares follows, users' own included. One called like a column "
    "of the view shows as `NAME_column`.",
    "steps": "Every other metric that the run measured follows.",
}

_HEAD = """\
# Columns and views

<!-- rendered by `python -m dataplane.sql.docs`; a test compares -->

## Stored columns

Declared once, in `schemas/columns.py`. A token column has an entry per token of `input_ids`: entry t describes
token t, entry 0 is 0. Log-probs are float32, at the sampling temperature, over the full vocabulary. A partition may
declare columns of its own beside these."""


def columns_page() -> str:
    """The whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield ""
    stored = [(f"`{c.name}`", f"`{type_name(c.type)}`", c.per, c.writer, c.unit, c.doc) for c in REGISTRY.values()]
    yield from _table(("column", "type", "per", "written by", "unit", "meaning"), stored)
    yield from ("", "## SQL views", "")
    yield "Ask them with `opd sql RUN QUERY` or `plane.sql(query)`. Rows of the partition `vocabulary` are no samples."
    for name, columns in _VIEWS.items():
        yield from ("", f"### `{name}`: {VIEW_DOCS[name]}", "")
        rows = [(f"`{c.name}`", f"`{type_name(c.type)}`", c.unit, c.doc) for c in columns]
        yield from _table(("column", "type", "unit", "meaning"), rows)
        if name in _AFTER:
            yield from ("", _AFTER[name])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for row in rows:
        yield _row([text.replace("|", "\\|") for text in row])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(columns_page(), end="")
