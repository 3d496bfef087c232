"""``opd sql RUN`` without a query: a prompt that remembers, completes names, and follows a live run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dataplane import DataPlane
from dataplane.sql import Limits, run_sql, stream_sql
from schemas.errors import OpdError
from workers.cli import output
from workers.cli.output import ResultFormat

HELP = """\
A statement ends with a semicolon or an empty line.
  show tables;              the views
  describe tokens;          a view's columns, units and meanings
  .help  .quit              this text; leave (Ctrl-D leaves too)"""

_WORDS = ("select", "from", "where", "group by", "order by", "limit", "filter", "count(*)", "avg(", "sum(", "describe")


def history_file() -> Path:
    """Where queries are remembered."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "opd" / "sql_history"


def converse(
    plane: DataPlane,
    others: Mapping[str, DataPlane],
    limits: Limits,
    kind: ResultFormat,
    ask: Callable[[str], str] = input,
) -> None:
    """Answer one statement after another until the end; a mistake is told and the prompt comes back."""
    with_history = _Remembered(history_file(), _names(plane))
    print(f"{plane.url}: .help for help, .quit to leave", file=sys.stderr)
    try:
        for query in statements(ask):
            plane.refresh()
            _answer(plane, others, limits, kind, query)
    finally:
        with_history.save()


def statements(ask: Callable[[str], str]) -> Iterator[str]:
    """What is typed, a statement at a time; commands with a dot are obeyed here. Ctrl-C drops what was begun."""
    lines: list[str] = []
    while True:
        try:
            line = ask("...> " if lines else "opd> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            lines = []
            continue
        if not lines and line.strip() in (".quit", ".exit", "quit", "exit"):
            return
        if not lines and line.strip() == ".help":
            print(HELP)
            continue
        if line.strip():
            lines.append(line)
        if lines and (not line.strip() or line.rstrip().endswith(";")):
            yield "\n".join(lines)
            lines = []


def _answer(plane: DataPlane, others: Mapping[str, DataPlane], limits: Limits, kind: ResultFormat, query: str) -> None:
    try:
        with stream_sql(plane, query, attach=others, limits=limits) as batches:
            output.write(batches, kind, sys.stdout.buffer)
    except OpdError as error:
        print(f"opd: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("opd: stopped", file=sys.stderr)
    sys.stdout.buffer.flush()


def _names(plane: DataPlane) -> list[str]:
    views = [row["name"] for row in run_sql(plane, "show tables").to_pylist()]
    columns = {row["column_name"] for view in views for row in run_sql(plane, f"describe {view}").to_pylist()}
    return [*_WORDS, *views, *sorted(columns)]


class _Remembered:
    """Line editing, completion and a history in a file, where this Python has readline."""

    def __init__(self, path: Path, words: list[str]) -> None:
        self.path, self.words = path, words
        try:
            import readline
        except ImportError:  # a Python built without it: plain lines
            self.readline = None
            return
        self.readline = readline
        if path.is_file():
            readline.read_history_file(path)
        readline.set_history_length(1000)
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")

    def _complete(self, text: str, state: int) -> str | None:
        found = [word for word in self.words if word.startswith(text.lower())]
        return found[state] if text and state < len(found) else None

    def save(self) -> None:
        if self.readline is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.readline.write_history_file(self.path)
