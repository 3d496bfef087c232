"""Which columns a query needs, found by planning it over empty tables of the same shape.

Every view exists first as an empty table whose columns have names of their own, ``v<view>_<column>``; DuckDB's
optimizer plans the query over them, and the scans of that plan name exactly what has to be loaded. Mistakes of
binding (a column or function that is not there) show here, before anything is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from dataplane.sql.messages import mentions
from dataplane.sql.session import Statement
from dataplane.sql.views import ViewColumn, quoted

_PLANNED = re.compile(r"\bv(\d+)_(\d+)\b")


class Planner:
    """The views of a connection by qualified name (``samples``, ``b.samples``), empty, ready to be planned over."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, views: Mapping[str, Sequence[ViewColumn]]) -> None:
        self.connection = connection
        self.views = dict(views)
        for index, (name, columns) in enumerate(self.views.items()):
            fields = [(f"v{index}_{place}", column.type) for place, column in enumerate(columns)]
            connection.register(f"plan_{index}", pa.schema(fields).empty_table())
            connection.execute(f"create view {name} as {self.empty(name)}")

    def empty(self, name: str) -> str:
        """A SELECT of the view's columns and types, without rows."""
        index = list(self.views).index(name)
        shown = ", ".join(f"v{index}_{place} as {quoted(c.name)}" for place, c in enumerate(self.views[name]))
        return f"select {shown} from plan_{index}"

    def needed(self, statement: Statement, parameters: Any = None) -> dict[str, list[str]]:
        """View → names of the columns that the statement needs. Raises duckdb.Error when it cannot be planned."""
        if statement.pivots:
            return self._named(statement, parameters)
        return self._scanned(statement.explained, parameters)

    def _scanned(self, query: str, parameters: Any) -> dict[str, list[str]]:
        plan = self.connection.execute(f"explain (format json) {query}", parameters).fetchall()[0][1]
        found = {pair for node in json.loads(plan) for pair in _scans(node)}
        names = list(self.views)
        needed: dict[str, list[str]] = {}
        for view, column in sorted(found):
            needed.setdefault(names[view], []).append(self.views[names[view]][column].name)
        return needed

    def _named(self, statement: Statement, parameters: Any) -> dict[str, list[str]]:
        """A PIVOT over no rows has no columns to show, so what its text names counts as well as what its plan scans."""
        used = {name: columns for name, columns in self.views.items() if mentions(statement.query, name)}
        try:
            scanned = self._scanned(statement.explained, parameters)
        except duckdb.BinderException:  # over no rows there may be nothing left to select
            return {name: [column.name for column in columns] for name, columns in used.items()}
        return {
            name: [c.name for c in columns if c.name in scanned.get(name, ()) or mentions(statement.query, c.name)]
            for name, columns in used.items()
        }


def _scans(node: dict[str, Any]) -> list[tuple[int, int]]:
    own = _PLANNED.findall(json.dumps(node["extra_info"])) if "SCAN" in node["name"] else []
    return [(int(view), int(column)) for view, column in own] + [
        pair for child in node["children"] for pair in _scans(child)
    ]
