"""One query on its way: views over nothing, the plan, the columns it needs, views over these, the result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from dataplane.sql import session
from dataplane.sql.about import about
from dataplane.sql.build import Builder
from dataplane.sql.load import Read, Reader, Source
from dataplane.sql.messages import explained
from dataplane.sql.plan import Planner
from dataplane.sql.session import Limits
from schemas.errors import InputError

#: Rows of a result's record batches; lists inside one have 32-bit offsets.
BATCH_ROWS = 65_536


class Engine:
    """A connection that knows the views of one or several stores: a context manager, for one query."""

    def __init__(self, reader: Reader, attach: Mapping[str, Reader], limits: Limits) -> None:
        self.sources = {"": Source(reader)} | {f"{_schema(name)}.": Source(other) for name, other in attach.items()}
        self.connection = session.connect(limits)
        self.attended = session.Attended(self.connection, limits.timeout_s)
        for name in map(_schema, attach):
            self.connection.execute(f"create schema {name}")
        views = {prefix + view: cs for prefix, source in self.sources.items() for view, cs in source.views.items()}
        self.planner = Planner(self.connection, views)
        session.lock(self.connection)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.attended.close()
        self.connection.close()

    def table(self, query: str, parameters: Any = None) -> pa.Table:
        """The whole result."""
        if (answer := about(self.planner, query)) is not None:
            return answer
        with self._explaining(query):
            return self.attended(lambda: self._relation(query, parameters).to_arrow_table(BATCH_ROWS))

    def batches(self, query: str, parameters: Any = None) -> pa.RecordBatchReader:
        """The result as it is made, to be read while this is open; the time limit includes what the caller does."""
        if (answer := about(self.planner, query)) is not None:
            return answer.to_reader()
        with self._explaining(query):
            made = self.attended(lambda: self._relation(query, parameters).to_arrow_reader(BATCH_ROWS))
        return pa.RecordBatchReader.from_batches(made.schema, self._each(made, query))

    def reads(self, query: str, parameters: Any = None) -> list[Read]:
        """What the query reads of the stores, without running it."""
        if about(self.planner, query) is None:
            with self._explaining(query):
                self._prepare(query, parameters)
        return [read for source in self.sources.values() for read in source.reads]

    def _relation(self, query: str, parameters: Any) -> duckdb.DuckDBPyRelation:
        self._prepare(query, parameters)
        return self.connection.sql(query, params=parameters)

    def _prepare(self, query: str, parameters: Any) -> None:
        needed = self.planner.needed(session.parse(self.connection, query), parameters)
        for prefix, source in self.sources.items():
            of_source = {view: needed[prefix + view] for view in source.views if prefix + view in needed}
            Builder(self.planner, prefix, source).build(of_source)

    def _each(self, made: pa.RecordBatchReader, query: str) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = self.attended(lambda: next(made, None))
            except OSError as error:  # how Arrow passes on what DuckDB raised
                raise explained(error, self._names(), query) from None
            if batch is None:
                return
            yield batch

    @contextmanager
    def _explaining(self, query: str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise explained(error, self._names(), query) from None

    def _names(self) -> dict[str, list[str]]:
        return {name: [column.name for column in columns] for name, columns in self.planner.views.items()}


def _schema(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InputError(f"attached store {name!r}: expected a name of letters, digits and underscores, as in b=RUN")
    return name.lower()
