"""A table for the terminal: columns that fit its width, long lists shortened, nothing a model wrote can act on it."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from rich.cells import cell_len, set_cell_size

#: Entries of a list that are shown, and characters of a text in a record.
LIST_ENTRIES, TEXT_CELLS = 4, 300

_GAP = "  "


def terminal_width() -> int | None:
    """Cells to fit a table into; None where the output is no terminal and may be as wide as it is."""
    fits = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return shutil.get_terminal_size().columns if fits else None


def render(names: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> Iterator[str]:
    """The lines of a table; a record per row where its columns do not fit *width* side by side."""
    numeric = [all(_is_number(row[k]) or row[k] is None for row in rows) and bool(rows) for k in range(len(names))]
    cells = [[cell(value) for value in row] for row in rows]
    heads = [clean(name) for name in names]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    room = _fitted(widths, [cell_len(head) for head in heads], width)
    if room is None and not rows:
        yield from wrap(f"no rows of {', '.join(heads)}", width or TEXT_CELLS)
        return
    if room is None:
        yield from _records(heads, cells, width)
        return
    yield _line(heads, room, numeric)
    yield _GAP.join("─" * size for size in room)
    for row in cells:
        yield _line(row, room, numeric)


def cell(value: Any) -> str:
    """One value in one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return _listed(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{clean(str(key))}: {cell(item)}" for key, item in value.items()) + "}"
    return clean(str(value))


def clean(text: str) -> str:
    """*text* without line breaks and control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(cell(value) for value in values[:LIST_ENTRIES])
    more = len(values) - LIST_ENTRIES
    return f"[{shown}, … {more} more]" if more > 0 else f"[{shown}]"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fitted(widths: list[int], heads: list[int], width: int | None) -> list[int] | None:
    """Column widths cut, the widest first, until all fit; None if a column's name would have to be cut."""
    room = list(widths)
    spare = (width - len(_GAP) * (len(room) - 1) if width is not None else sum(room)) - sum(room)
    while spare < 0:
        widest = max(room)
        cuttable = [k for k, size in enumerate(room) if size == widest]
        target = max([0, *(size for size in room if size < widest)])
        step = max(1, min(widest - target, -spare // len(cuttable)))
        for k in cuttable:
            room[k] -= step
            spare += step
        if any(size < max(head, 8) and size < full for size, head, full in zip(room, heads, widths, strict=True)):
            return None
    return room


def _line(cells: Sequence[str], room: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = [_padded(text, size, right) for text, size, right in zip(cells, room, numeric, strict=True)]
    return _GAP.join(parts).rstrip()


def _padded(text: str, size: int, right: bool) -> str:
    fill = size - cell_len(text)
    if fill < 0:
        return set_cell_size(text, size - 1) + "…"
    return " " * fill + text if right else text + " " * fill


def _records(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    label = max(map(cell_len, heads))
    room = max((width or TEXT_CELLS) - label - len(_GAP), 20)
    for number, row in enumerate(rows, 1):
        yield f"── {number} " + "─" * max(0, label + len(_GAP) - len(str(number)) - 4)
        for head, text in zip(heads, row, strict=True):
            yield (_padded(head, label, False) + _GAP + _padded(text, min(room, cell_len(text)), False)).rstrip()
