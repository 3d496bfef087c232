"""One sample whole: its values, its tokens side by side, its siblings, and who wrote what when."""

from __future__ import annotations

import json
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dataplane.sql import run_sql
from dataplane.sql.load import Reader, Source
from dataplane.sql.views import TOKENS, VOCABULARY, quoted
from schemas.errors import InputError, did_you_mean

#: Columns of ``tokens`` that describe one token.
TOKEN_COLUMNS = tuple(
    column.name for column in TOKENS if column.name not in ("partition", "sample_id", "agent", "teacher", "step")
)


class HistoryReader(Reader, Protocol):
    """A Reader whose events can be those of one sample."""

    def events(self, with_ids: bool = False, about: tuple[str, str] | None = None) -> pa.Table: ...


class OneRow:
    """A Reader cut to a few rows of one partition, so that a query about them reads nothing else."""

    def __init__(self, reader: Any, partition: str, ids: list[str]) -> None:
        self.reader, self.partition, self.wanted = reader, partition, ids

    def partitions(self) -> dict[str, pa.Schema]:
        schemas = self.reader.partitions()
        return {name: schemas[name] for name in (self.partition, VOCABULARY) if name in schemas}

    def ids(self, partition: str) -> list[str]:
        return self.wanted if partition == self.partition else self.reader.ids(partition)

    def table(self, partition: str, columns: Any) -> pa.Table:
        if partition != self.partition:
            return self.reader.table(partition, columns)
        table: pa.Table = self.reader.get(partition, self.wanted, list(columns), missing="null").table
        return table

    def row_state(self, partition: str, columns: Any = ()) -> pa.Table:
        if partition != self.partition:
            return self.reader.row_state(partition, columns)
        state = self.reader.row_state(partition)
        return state.take(pc.index_in(pa.array(self.wanted, pa.string()), state["sample_id"]))

    def events(self) -> pa.Table:
        return self.reader.events()

    def blocks(self) -> pa.Table:
        return self.reader.blocks()

    def steps(self) -> Any:
        return self.reader.steps()


def find_sample(plane: Any, sample_id: str, partition: str | None = None) -> dict[str, Any]:
    """Everything about one sample, plain data. Raises InputError naming the nearest id."""
    where = _partition_of(plane, sample_id, partition)
    one = OneRow(plane, where, [sample_id])
    values = run_sql(one, f"select {_own_columns(one)} from samples").to_pylist()[0]
    tokens = run_sql(one, f"select {', '.join(TOKEN_COLUMNS)} from tokens").to_pylist()
    siblings = _siblings(plane, where, values.get("group_id"), sample_id)
    return {
        "partition": where,
        "sample_id": sample_id,
        "values": values,
        "tokens": tokens,
        "siblings": siblings,
        "history": history(plane, where, sample_id),
    }


def _partition_of(plane: Any, sample_id: str, partition: str | None) -> str:
    names = [partition] if partition is not None else [name for name in plane.partitions() if name != VOCABULARY]
    ids = {name: plane.ids(name) for name in names}
    for name, known in ids.items():
        if sample_id in known:
            return name
    for name in names:
        if len(gone := plane.events(about=(name, sample_id))):
            last = gone["time"][-1].as_py().isoformat(" ", "seconds")
            raise InputError(f"sample {sample_id!r} of {name!r} was cleared; its last record is of {last} UTC")
    everything = [each for known in ids.values() for each in known]
    there = f" in partition {partition!r}" if partition is not None else ""
    near = did_you_mean(sample_id, everything[:20_000])
    raise InputError(f'no sample {sample_id!r}{there}{near}; see: opd sql RUN "select sample_id, agent from samples"')


def _own_columns(reader: Reader) -> str:
    """Columns of ``samples`` with one value a sample; what has an entry per token is among the tokens."""
    names = [column.name for column in Source(reader).views["samples"] if not pa.types.is_large_list(column.type)]
    return ", ".join(map(quoted, names))


def _siblings(plane: Any, partition: str, group_id: str | None, sample_id: str) -> list[str]:
    """The samples of the same admission of the same prompt, this one included."""
    if group_id is None or "group_id" not in plane.partitions()[partition].names:
        return [sample_id]
    return list(plane.rows(partition, where={"group_id": group_id}))


def history(plane: HistoryReader, partition: str, sample_id: str) -> list[dict[str, Any]]:
    """The journal's records about one sample, oldest first."""
    events = plane.events(about=(partition, sample_id)).to_pylist()
    return [{name: value for name, value in event.items() if value is not None} for event in map(_spread, events)]


def _spread(event: dict[str, Any]) -> dict[str, Any]:
    detail = event.get("detail")
    return {**event, "detail": json.loads(detail)} if detail else event
