"""The journal as a table: what happened, when, to which rows, by whom."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from dataplane.numbers import Ints, from_runs, in_runs, run_length
from schemas import records

EVENTS_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("time", pa.timestamp("us")),
        ("kind", pa.string()),
        ("partition", pa.string()),
        ("task", pa.string()),
        ("claim", pa.string()),
        ("worker", pa.string()),
        ("attempt", pa.int32()),
        ("epoch", pa.int32()),
        ("step", pa.int32()),
        ("version", pa.int32()),
        ("rows", pa.int64()),
        ("block", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("detail", pa.string()),
    ]
)

#: Ids of the samples a record is about, and of those that failed in it.
IDS = [pa.field("sample_ids", pa.list_(pa.string())), pa.field("failed_ids", pa.list_(pa.string()))]

#: Fields of records that are columns as they are, and those that are shown in another form.
_PLACED = {"partition", "task", "claim", "worker", "attempt", "epoch", "step", "version"}
_SHOWN = {"time", "runs", "block", "ids", "lineage", "arrow_schema", "name", "failed", "errors"}


class About(NamedTuple):
    """A sample."""

    partition: str
    sample_id: str


class History:
    """Walks the journal and remembers what naming its rows needs: ids by number, and the epoch."""

    def __init__(self, with_ids: bool, about: About | None = None) -> None:
        self._with_ids = with_ids
        self._about = about
        self._numbers: list[int] = []  # of the sample that it is about, which may have been cleared and put again
        self._ids: dict[str, dict[int, str]] = {}
        self._epoch = 0

    def concerns(self, record: Any) -> bool:
        """Whether *record* names the sample that this is about; to be asked of every record."""
        self._epoch = getattr(record, "epoch", self._epoch)
        if self._about is None:
            return True
        if getattr(record, "partition", "") != self._about.partition:
            return False
        if isinstance(record, records.Put) and self._about.sample_id in record.ids:
            self._numbers.append(int(_new_numbers(record)[record.ids.index(self._about.sample_id)]))
        failed = getattr(record, "failed", None) or getattr(record, "errors", {})
        runs = getattr(record, "runs", ())
        return any(number in failed or in_runs(runs, number) for number in self._numbers)

    def event(self, record: records.AnyRecord) -> dict[str, Any]:
        """Columns of ``EVENTS_SCHEMA`` for the next record, but for its ``seq``."""
        fields = msgspec.structs.asdict(record)
        if isinstance(record, records.Noted):
            fields |= fields.pop("fields")
        failed = fields.get("failed") or fields.get("errors") or {}
        event = {key: fields[key] for key in fields.keys() & _PLACED}
        event |= {
            "kind": fields.get("name") or type(record).__struct_config__.tag,
            "time": round(record.time * 1e6),
            "epoch": self._epoch,
            "rows": run_length(fields["runs"]) if "runs" in fields else len(failed) or None,
            "detail": _detail(fields, failed),
        }
        event |= _made(fields.get("block"), fields.get("lineage"), event.get("task"))
        return event | self._named(record, failed) if self._with_ids else event

    def _named(self, record: Any, failed: Iterable[int]) -> dict[str, list[str]]:
        if isinstance(record, records.Put):
            named = zip(_new_numbers(record).tolist(), record.ids, strict=True)
            self._ids.setdefault(record.partition, {}).update(named)
        ids = self._ids.get(getattr(record, "partition", ""), {})
        numbers = from_runs(getattr(record, "runs", ())).tolist()
        return {"sample_ids": _names(ids, numbers), "failed_ids": _names(ids, failed)}


def _new_numbers(record: records.Put) -> Ints:
    """Numbers of the rows that a put made: the largest so far."""
    return np.sort(from_runs(record.runs))[run_length(record.runs) - len(record.ids) :]


def _names(ids: dict[int, str], numbers: Iterable[int]) -> list[str]:
    """Ids of rows; ``#number`` for one that is older than the kept journal."""
    return [ids.get(number) or f"#{number}" for number in numbers]


def events_table(
    journal: Iterable[records.AnyRecord], with_ids: bool = False, first_seq: int = 0, about: About | None = None
) -> pa.Table:
    """The journal, a row a record (only those *about* one sample), the first of them number *first_seq*.

    See ``EVENTS_SCHEMA``. ``detail`` holds the other fields as JSON.
    """
    history = History(with_ids, about)
    numbered = enumerate(journal, first_seq)
    rows = [{"seq": seq, **history.event(record)} for seq, record in numbered if history.concerns(record)]
    return pa.Table.from_pylist(rows, schema=pa.schema([*EVENTS_SCHEMA, *(IDS if with_ids else ())]))


def _made(block: records.Block | None, lineage: records.Lineage | None, task: str | None) -> dict[str, Any]:
    """Columns about the block that a record made visible."""
    made: dict[str, Any] = {}
    if block is not None:
        made |= {"block": block.id, "columns": list(block.columns[:-1])}
    if lineage is not None:
        made |= {"worker": lineage.worker or None, "attempt": lineage.attempt or None}
        made |= {"task": task or lineage.task or None, "version": lineage.weight_version}
    return made


def _detail(fields: dict[str, Any], failed: dict[int, str]) -> str | None:
    detail = {key: value for key, value in fields.items() if key not in _PLACED | _SHOWN and value is not None}
    detail |= detail.pop("fields", {})
    if failed:
        detail["errors"] = sorted(set(failed.values()))
    return json.dumps(_finite(detail), default=str) if detail else None


def _finite(value: Any) -> Any:
    """NaN and ±inf as texts: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
