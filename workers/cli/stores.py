"""RUN on the command line: a run directory, a store directory, or the URL of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from dataplane import DataPlane, open_plane
from dataplane.backends.storage import Storage
from dataplane.opening import storage_at
from schemas.errors import InputError


def store_of(run: str) -> str:
    """Where the store of *run* is. Raises InputError when there is nothing there."""
    if "://" in run:
        return run
    directory = Path(run)
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"run {run!r}: {what}; expected a run directory, a store directory or a redis:// URL")
    if (directory / "plane").is_dir():
        return str(directory / "plane")
    return _elsewhere(directory / "config.yaml") or str(directory)


def _elsewhere(config: Path) -> str | None:
    """The store that a run's recipe names, when it is not in the run directory."""
    if not config.is_file():
        return None
    import yaml

    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    store = content.get("store") if isinstance(content, dict) else None
    url = store.get("url") if isinstance(store, dict) else None
    if not url:
        return None
    there = Path(content.get("working_directory") or "") / str(url)  # what a relative path means in a run's recipe
    return str(there) if there.is_dir() else str(url)


def open_store(run: str) -> DataPlane:
    """The store of *run* for reading: a finished one, one that a job writes just now, or what a crash left.

    Says so on stderr when its journal lacks its end.
    """
    plane = open_plane(storage_of(run), mode="r")
    if plane.is_cut():
        said = "its journal lacks its end, and what it shows is what was known before"
        typer.echo(f"warning: run {run!r}: {said}; `opd check {run}` says more", err=True)
    return plane


def storage_of(run: str) -> Storage:
    """The storage of *run*, which has to be there. Raises InputError."""
    store = store_of(run)
    try:
        return storage_at(store, create=False)
    except InputError:
        if "://" in run:
            raise
        raise InputError(f"run {run!r}: there is no store in it; expected a run or a store directory") from None


@contextmanager
def about_condition(condition: str) -> Iterator[None]:
    """An InputError from a query around somebody's *condition* names it, not the query that nobody wrote."""
    try:
        yield
    except InputError as error:
        raise InputError(f"where {condition!r}: {str(error).removeprefix('query: ')}") from error
