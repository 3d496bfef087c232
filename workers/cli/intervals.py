"""Intervals as text: ``0:00:01.5``, ``2 days 01:00:00``. Neither CSV, JSON nor Parquet has a type for them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

_NANOS = {"hour": 3_600_000_000_000, "minute": 60_000_000_000, "second": 1_000_000_000}


def interval_text(value: pa.MonthDayNano) -> str:
    """One interval; months and days stand before the time, each with its own sign."""
    months, days, nanos = value.months, value.days, value.nanoseconds
    parts = [f"{number} {unit}{'' if abs(number) == 1 else 's'}" for number, unit in ((months, "month"), (days, "day"))]
    clock = _clock(nanos)
    said = [part for part, number in zip(parts, (months, days), strict=True) if number]
    return " ".join([*said, clock]) if nanos or not said else " ".join(said)


def _clock(nanos: int) -> str:
    sign, rest = ("-" if nanos < 0 else ""), abs(nanos)
    hours, rest = divmod(rest, _NANOS["hour"])
    minutes, rest = divmod(rest, _NANOS["minute"])
    seconds, fraction = divmod(rest, _NANOS["second"])
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{digits}"


def without_intervals(batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The same batches with text in place of each column of intervals."""
    if not any(map(_is_interval, batches.schema.types)):
        return batches
    fields = [field.with_type(pa.string()) if _is_interval(field.type) else field for field in batches.schema]
    schema = pa.schema(fields)

    def each() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([_as_text(column) for column in batch.columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, each())


def _is_interval(type_: pa.DataType) -> bool:
    return bool(type_ == pa.month_day_nano_interval())


def _as_text(column: pa.Array) -> pa.Array:
    if not _is_interval(column.type):
        return column
    return pa.array([None if value is None else interval_text(value) for value in column.to_pylist()], pa.string())
