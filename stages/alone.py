"""One bad row must not take its neighbours with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def each_alone(
    work: Callable[[Sequence[int]], list[Result]], rows: Sequence[int]
) -> tuple[dict[int, Result], dict[int, str]]:
    """``work(rows)``; if that raises, each row again by itself.

    *work* returns one result per row. Returns the results by row, and for the rows that raise even alone the
    error's text.
    """
    if not rows:
        return {}, {}
    try:
        return dict(zip(rows, work(rows), strict=True)), {}
    except Exception as error:  # whatever an engine raises is data on the row it concerns
        if len(rows) == 1:
            return {}, {rows[0]: f"{type(error).__name__}: {error}"}
    results: dict[int, Result] = {}
    errors: dict[int, str] = {}
    for row in rows:
        done, failed = each_alone(work, [row])
        results |= done
        errors |= failed
    return results, errors
