"""SHOW TABLES and DESCRIBE of a view, answered with what the registry knows: units and meanings."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa

from dataplane.sql.plan import Planner
from dataplane.sql.views import VIEW_DOCS

_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*(?:describe|desc|show)\s+(?:table\s+|view\s+)?(?P<view>[\w.]+)\s*;?\s*", re.IGNORECASE)


def about(planner: Planner, query: str) -> pa.Table | None:
    """The answer to a query about the views themselves; None for any other query."""
    if _SHOW_TABLES.fullmatch(query):
        names = list(planner.views)
        return pa.table({"name": names, "doc": [VIEW_DOCS[name.rpartition(".")[2]] for name in names]})
    found = _DESCRIBE.fullmatch(query)
    if not found or found["view"].lower() not in planner.views:
        return None
    return _described(planner, found["view"].lower())


def _described(planner: Planner, view: str) -> pa.Table:
    columns = planner.views[view]
    return pa.table(
        {
            "column_name": [column.name for column in columns],
            "column_type": _types(planner.connection, view),
            "unit": [column.unit for column in columns],
            "doc": [column.doc for column in columns],
        }
    )


def _types(connection: duckdb.DuckDBPyConnection, view: str) -> list[str]:
    return [row[1] for row in connection.execute(f"describe {view}").fetchall()]
