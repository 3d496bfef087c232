"""``run_sql``: one query over a store, as Arrow.

The query is planned over empty views first (:mod:`dataplane.sql.plan`); then the columns that it needs, and only
these, are mapped from the store and the views rebuilt over them; then it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dataplane.sql.engine import Engine
from dataplane.sql.load import Reader
from dataplane.sql.session import Limits


def run_sql(
    reader: Reader,
    query: str,
    parameters: Any = None,
    *,
    attach: Mapping[str, Reader] | None = None,
    limits: Limits | None = None,
) -> pa.Table:
    """The result of one read-only *query* over the views of *reader*.

    *parameters* fill ``?`` or ``$name``. *attach* maps names to other stores, whose views are then ``name.samples``
    and so on. Raises InputError for a query that is wrong, does not only read, or exceeds its *limits*.
    """
    with Engine(reader, attach or {}, limits or Limits()) as engine:
        return _whole_numbers(engine.table(query, parameters))


@contextmanager
def stream_sql(
    reader: Reader,
    query: str,
    parameters: Any = None,
    *,
    attach: Mapping[str, Reader] | None = None,
    limits: Limits | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """The same as record batches, made as they are read, for results larger than memory."""
    with Engine(reader, attach or {}, limits or Limits()) as engine:
        yield engine.batches(query, parameters)


def explain_sql(
    reader: Reader,
    query: str,
    parameters: Any = None,
    *,
    attach: Mapping[str, Reader] | None = None,
) -> pa.Table:
    """What *query* reads of the store: ``source, column, rows, bytes``. The query itself does not run."""
    with Engine(reader, attach or {}, Limits()) as engine:
        reads = engine.reads(query, parameters)
    columns = {"source": pa.string(), "column": pa.string(), "rows": pa.int64(), "bytes": pa.int64()}
    return pa.Table.from_pylist(
        [dict(zip(columns, (r.source, r.column, r.rows, r.size_bytes), strict=True)) for r in reads],
        schema=pa.schema(list(columns.items())),
    )


def _whole_numbers(table: pa.Table) -> pa.Table:
    """DuckDB sums integers in 128 bits, which Arrow holds as decimals: int64 wherever the values fit."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
            except pa.ArrowInvalid:  # larger than 64 bits: stays exact as it is
                continue
    return table
