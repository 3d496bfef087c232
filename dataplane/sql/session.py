"""A locked DuckDB connection: one read-only statement, no files, no network, bounded memory and time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from dataplane.sql.messages import explained
from schemas.errors import InputError

#: SHOW, DESCRIBE, SUMMARIZE, VALUES, FROM … and WITH … are SELECTs to the parser; MULTI is a PIVOT without IN,
#: which first collects the values that become columns.
_READ_ONLY = ("SELECT", "EXPLAIN", "MULTI")

_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_EXPLAIN = re.compile(_COMMENTS + r"explain\b(?:\s+analyze\b)?(?:\s*\([^)]*\))?", re.IGNORECASE | re.DOTALL)


T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one query may take; None leaves the choice to the machine (half its memory, all its cores)."""

    timeout_s: float = 60.0
    memory_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Statement:
    """One statement that reads; ``explained`` is what an EXPLAIN explains, else the statement itself."""

    query: str
    explained: str
    pivots: bool


def connect(limits: Limits) -> duckdb.DuckDBPyConnection:
    """An empty in-memory database without extensions; :func:`lock` it before anybody's query runs."""
    memory = limits.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{max(memory // 2**20, 64)}MiB",
        "temp_directory": "",  # nothing spills to disk
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",  # a table name never means a variable of this process
    }
    if limits.threads:
        options["threads"] = str(limits.threads)
    return duckdb.connect(":memory:", config=options)


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on nothing reaches files or the network, and no statement can change that."""
    for setting in ("enable_progress_bar = false", "enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"set {setting}")


def parse(connection: duckdb.DuckDBPyConnection, query: str) -> Statement:
    """The one read-only statement in *query*. Raises InputError."""
    kind = _kind_of(connection, query)
    inner = query
    if kind == "EXPLAIN":
        found = _EXPLAIN.match(query)
        inner = query[found.end() :] if found else ""
        kind = _kind_of(connection, inner)
    if kind == "MULTI" and "pivot" not in query.lower():
        raise _refused(kind)
    return Statement(query, inner, kind == "MULTI")


def _kind_of(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    try:
        kinds = [statement.type.name for statement in connection.extract_statements(query)]
    except duckdb.Error as error:
        raise explained(error, {}) from None
    except ValueError:  # a kind that the Python client has no name for
        raise _refused("such") from None
    if not kinds:
        raise InputError("query: it is empty; expected one statement, as in: select count(*) from samples")
    if len(kinds) != 1:
        raise InputError(f"query: expected one statement, got {len(kinds)}; run them one at a time")
    kind = kinds[0]
    if kind not in _READ_ONLY:
        raise _refused(kind)
    return kind


def _refused(kind: str) -> InputError:
    return InputError(f"query: {kind} statements are not possible, a query only reads; use SELECT, SHOW, DESCRIBE, …")


class Attended:
    """Runs a connection's work in a thread beside the caller's, which can then stop it: at its time, or on Ctrl-C."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._thread = ThreadPoolExecutor(1, "query")

    def __call__(self, work: Callable[[], T]) -> T:
        """The result of *work*. Raises InputError when the time is over."""
        running = self._thread.submit(work)
        try:
            return running.result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            self._stop(running)
            raise InputError(f"query: stopped after {self._timeout_s:g} s; narrow it, or allow it more time") from None
        except KeyboardInterrupt:
            self._stop(running)
            raise

    def _stop(self, running: Future[T]) -> None:
        while not running.done():
            self._connection.interrupt()
            wait([running], timeout=0.05)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
