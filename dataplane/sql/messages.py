"""DuckDB's errors as one sentence that names the thing, and the nearest thing that does exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from schemas.errors import InputError, did_you_mean

_COLUMN = re.compile(
    r'(?:Referenced column|does not have a column named|Column) "(?P<name>[^"]+)"'
    r"(?: not found| in (?:EXCLUDE|REPLACE)|$)"
)
_TABLE = re.compile(r'Table with name "?(?P<name>[^" ]+)"? does not exist')
_NEAREST = re.compile(r'Did you mean "(?P<name>[^"]+)"')
_POINTER = re.compile(r"\n\nLINE \d+:.*", re.DOTALL)


def explained(error: Exception, views: Mapping[str, Iterable[str]], query: str = "") -> InputError:
    """The InputError that says what DuckDB's *error* says; *views* maps the known views to their columns."""
    text = _POINTER.sub("", str(error)).strip()
    if text.startswith("Out of Memory"):
        return InputError(f"query: needs more memory than it may use; narrow or aggregate it ({_first_line(text)})")
    if found := _COLUMN.search(text):
        return InputError(f"query: no column {found['name']!r}{_nearest_column(found['name'], views, query)}")
    if found := _TABLE.search(text):
        known = ", ".join(views)
        return InputError(f"query: no table {found['name']!r}{did_you_mean(found['name'], views)}; there are {known}")
    nearest = _NEAREST.search(text)
    return InputError(f"query: {_first_line(text)}" + (f" (did you mean {nearest['name']!r}?)" if nearest else ""))


def mentions(query: str, name: str) -> bool:
    """Whether *name* stands in *query* as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE) is not None


def _nearest_column(name: str, views: Mapping[str, Iterable[str]], query: str) -> str:
    used = [view for view in views if mentions(query, view)] or list(views)
    known = list(dict.fromkeys(column for view in used for column in views[view]))
    return f"{did_you_mean(name, known)}; see: describe {used[0]}" if used else ""


def _first_line(text: str) -> str:
    line = text.splitlines()[0].strip()
    return re.sub(r"^[A-Z][\w ]* Error: ", "", line)
