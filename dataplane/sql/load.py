"""A store as SQL sees it: its views, and the base tables that they stand on, loaded column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dataplane.sql.readable import as_readable, readable
from dataplane.sql.steps import steps_columns, steps_table
from dataplane.sql.views import BLOCKS, EVENTS, SAMPLES, STATE_PREFIX, TOKENS, VOCABULARY, ViewColumn
from schemas.columns import REGISTRY, SAMPLE_ID
from schemas.errors import StoreError
from schemas.messages import Step

#: How often a snapshot is tried while rows are being cleared.
_ATTEMPTS = 10


class Reader(Protocol):
    """What SQL needs of a plane, live or read-only. Rows come in row order, missing values as null."""

    def partitions(self) -> dict[str, pa.Schema]: ...
    def ids(self, partition: str) -> list[str]: ...
    def table(self, partition: str, columns: Sequence[str]) -> pa.Table: ...
    def row_state(self, partition: str, columns: Sequence[str] = ...) -> pa.Table: ...
    def events(self) -> pa.Table: ...
    def blocks(self) -> pa.Table: ...
    def steps(self) -> list[Step]: ...


@dataclass(frozen=True)
class Read:
    """One column that a query read."""

    source: str
    column: str
    rows: int
    size_bytes: int


class Source:
    """One store: the columns of its views, and the tables behind them. Nothing is read until it is asked for."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.partitions = {name: schema for name, schema in reader.partitions().items() if name != VOCABULARY}
        self.types = {name: column.type for name, column in REGISTRY.items()}
        for schema in self.partitions.values():
            self.types |= {field.name: readable(field.type) for field in schema}
        self.own = {name: f"own.{k}" for k, name in enumerate(n for n in self.types if n not in REGISTRY)}
        self.steps = [step for step in reader.steps() if step.trained_at is not None]
        self.views: dict[str, tuple[ViewColumn, ...]] = {
            "samples": self._samples(),
            "tokens": TOKENS,
            "steps": steps_columns(self.steps),
            "events": EVENTS,
            "blocks": BLOCKS,
        }
        self.reads: list[Read] = []

    def base(self, partition: str, reads: Iterable[str]) -> pa.Table:
        """The base table of *partition* with its ids and the columns in *reads*, null where it has no such column."""
        reads = list(dict.fromkeys(reads))
        schema = self.partitions[partition]
        stored = [name for name in reads if name in schema.names]
        of_state = [name.removeprefix(STATE_PREFIX) for name in reads if name.startswith(STATE_PREFIX)]
        ids, table, state = self._snapshot(partition, stored, of_state)
        self._account(partition, table)
        columns = {SAMPLE_ID: pa.array(ids, pa.string())}
        for name in reads:
            if name in stored:
                columns[self.own.get(name, name)] = as_readable(table.column(name), self.types[name])
            elif name in self.types:
                columns[self.own.get(name, name)] = pa.nulls(len(ids), self.types[name])
        for name in of_state:
            columns[STATE_PREFIX + name] = state.column(name)
        return pa.table(columns)

    def _snapshot(
        self, partition: str, stored: Sequence[str], of_state: Sequence[str]
    ) -> tuple[list[str], pa.Table, pa.Table]:
        """Ids, stored columns and state of the same rows, though others may put and clear meanwhile.

        New rows come last, so they are cut off; after a clear rows have moved or gone, and all is read again.
        """
        for _ in range(_ATTEMPTS):
            ids = self.reader.ids(partition)
            table = self.reader.table(partition, stored) if stored else pa.table({})
            state = self.reader.row_state(partition, of_state) if of_state else pa.table({})
            if self.reader.ids(partition)[: len(ids)] == ids:
                return ids, table.slice(0, len(ids)), state.slice(0, len(ids))
        raise StoreError(f"partition {partition!r}: rows are cleared faster than they can be read; ask again")

    def vocabulary(self) -> pa.Table:
        """One row: ``vocabulary``, the texts of the newest tokenizer; null where none is stored."""
        if VOCABULARY not in self.reader.partitions() or not self.reader.ids(VOCABULARY):
            return pa.table({"vocabulary": pa.nulls(1, pa.large_list(pa.string()))})
        table = self.reader.table(VOCABULARY, ["tokens"])
        self._account(VOCABULARY, table)
        return table.slice(len(table) - 1).rename_columns(["vocabulary"])

    def whole(self, view: str) -> pa.Table:
        """The rows of ``steps``, ``events`` or ``blocks``."""
        if view == "steps":
            return steps_table(self.steps)
        table = self.reader.events() if view == "events" else self.reader.blocks()
        self._account(view, table)
        return table

    def _account(self, source: str, table: pa.Table) -> None:
        for name in table.column_names:
            column = table.column(name)
            self.reads.append(Read(source, name, len(column), column.nbytes))

    def _samples(self) -> tuple[ViewColumn, ...]:
        """Every store's columns, then what the partitions declare: the registry's in its order, users' own last.

        A user's column called like one of the view's own, or like another but for capitals, which SQL does not
        tell apart, shows as ``NAME_column``.
        """
        columns = list(SAMPLES)
        taken = {column.name.lower() for column in columns}
        there = {column.name for column in SAMPLES if column.reads == (column.name,)}
        declared = {name for schema in self.partitions.values() for name in schema.names} - there
        for name in [name for name in self.types if name in declared]:
            shown = name if name.lower() not in taken else f"{name}_column"
            taken.add(shown.lower())
            registered = REGISTRY.get(name)
            doc, unit = (registered.doc, registered.unit) if registered else ("declared by this store", "")
            sql = f'"{self.own[name]}"' if name in self.own else ""
            columns.append(ViewColumn(shown, self.types[name], doc, (name,), sql, unit))
        return tuple(columns)
