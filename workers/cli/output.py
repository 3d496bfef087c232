"""Query results as JSON, CSV, Parquet or a table, batch by batch, to a stream or a file."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from schemas.errors import InputError
from workers.cli.intervals import interval_text, without_intervals
from workers.cli.tables import render, terminal_width

#: Rows of a table on a terminal.
TABLE_ROWS = 100


class ResultFormat(enum.StrEnum):
    """How a result is written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


class ListingFormat(enum.StrEnum):
    """How a listing is written."""

    table = "table"
    json = "json"


def format_of(out: Path | None) -> ResultFormat:
    """The format that a file's ending asks for; a table without one."""
    by_suffix = {".json": ResultFormat.json, ".csv": ResultFormat.csv, ".parquet": ResultFormat.parquet}
    return by_suffix.get(out.suffix.lower(), ResultFormat.table) if out else ResultFormat.table


@contextlib.contextmanager
def destination(out: Path | None, kind: ResultFormat) -> Iterator[IO[bytes]]:
    """Where a result goes: stdout, or the file *out*, which appears whole or not at all. Raises InputError."""
    if out is None:
        if kind is ResultFormat.parquet and sys.stdout.isatty():
            raise InputError("parquet is binary: add --out FILE, or send it through a pipe")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(out)
    except FileNotFoundError:
        raise InputError(f"{out}: the folder {out.parent} does not exist") from None
    finally:
        part.unlink(missing_ok=True)


def write(batches: pa.RecordBatchReader, kind: ResultFormat, sink: IO[bytes]) -> int:
    """Write every batch; of a table, the first rows. How many rows there were."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += len(batch)
            yield batch

    {
        ResultFormat.table: _write_table,
        ResultFormat.json: _write_json,
        ResultFormat.csv: _write_csv,
        ResultFormat.parquet: _write_parquet,
    }[kind](without_intervals(pa.RecordBatchReader.from_batches(batches.schema, counted())), sink)
    return rows


def plain(value: Any) -> Any:
    """*value* as JSON has it: NaN and ±inf as text, times in ISO form, whole decimals as numbers, bytes in hex."""
    if isinstance(value, pa.MonthDayNano):  # inside a list or a struct
        return interval_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def _distinct(names: list[str]) -> list[str]:
    """Names that one object can have: a second ``n`` becomes ``n_1``."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        distinct.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return distinct


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Python values; maps, which Arrow gives as pairs, as dicts."""
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    return column.to_pylist()


def _write_table(batches: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    rows: list[tuple[Any, ...]] = []
    for row in chain.from_iterable(map(_rows, batches)):
        if len(rows) == TABLE_ROWS:
            print(f"the first {TABLE_ROWS} rows; --format csv writes all", file=sys.stderr)
            break
        rows.append(row)
    for line in render(batches.schema.names, rows, terminal_width()):
        sink.write(f"{line}\n".encode())


def _write_json(batches: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    names = _distinct(batches.schema.names)
    before = b"["
    for row in chain.from_iterable(map(_rows, batches)):
        sink.write(before + to_json(dict(zip(names, row, strict=True))).encode())
        before = b",\n "
    sink.write(b"[]\n" if before == b"[" else b"]\n")


def _write_csv(batches: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    """Nested values become JSON; a null is nothing, an empty text is two quotes."""
    from pyarrow import csv

    schema = pa.schema([(f.name, pa.string() if pa.types.is_nested(f.type) else f.type) for f in batches.schema])
    options = csv.WriteOptions(quoting_style="needed")
    with csv.CSVWriter(sink, schema, write_options=options) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([_flat(column) for column in batch.columns], schema=schema))


def _flat(column: pa.Array) -> pa.Array:
    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if value is None else to_json(value) for value in _values(column)], pa.string())


def _write_parquet(batches: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(sink, batches.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
