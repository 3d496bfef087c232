"""Useful queries: the page's SQL box offers them, and ``docs/cookbook.md`` is rendered from them.

``python -m dataplane.inspector.cookbook > docs/cookbook.md``
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from schemas.errors import InputError

_HEAD = """\
# Cookbook

<!-- rendered by `python -m dataplane.inspector.cookbook`; a test compares, another runs every query -->

Queries for `opd sql`, for `plane.sql` and for the SQL box of `opd ui`. Each works on a run in progress, a
finished one and what a crash left; `opd sql RUN --recipe 1` runs the first. Views: [columns.md](columns.md).

Means over tokens are sums divided by counts of *finite* numbers, so that one NaN spoils no mean: `gap_sum` and
`num_finite` of `samples`, `avg(…) filter (where finite)` over `tokens`. Scalar columns are cheap at any size; `tokens`
unfolds every token that the filter leaves, so narrow it by `step`. `opd sql RUN --explain QUERY` says what is read.
"""


def cookbook() -> list[dict[str, str]]:
    """``title``, ``about`` and ``query`` of each recipe, in the order of ``cookbook.sql``."""
    text = files("dataplane.inspector").joinpath("cookbook.sql").read_text(encoding="utf-8")
    return [_recipe(part) for part in text.split("\n-- # ")[1:]]


def recipe(name: str) -> str:
    """The query whose number, or the only one whose title, *name* is a part of. Raises InputError."""
    known = cookbook()
    wanted = name.strip().lower()
    found = [each for number, each in enumerate(known, 1) if wanted == str(number)]
    found = found or [each for each in known if wanted == each["title"].lower()]
    found = found or [each for each in known if wanted and wanted in each["title"].lower()]
    if len(found) != 1:
        there = "; ".join(f"{number} {each['title']}" for number, each in enumerate(known, 1))
        raise InputError(f"recipe {name!r}: {len(found) or 'none'} of the cookbook's fits; there are: {there}")
    return found[0]["query"]


def _recipe(part: str) -> dict[str, str]:
    title, _, rest = part.partition("\n")
    lines = rest.strip().splitlines()
    about = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    query = [line for line in lines if not line.startswith("-- ")]
    return {"title": title.strip(), "about": " ".join(about), "query": "\n".join(query).rstrip(";")}


def cookbook_page() -> str:
    """The whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip()
    for number, recipe in enumerate(cookbook(), 1):
        yield from ("", f"## {number}. {recipe['title']}", "", recipe["about"], "", "```sql", recipe["query"], "```")


if __name__ == "__main__":
    print(cookbook_page(), end="")
