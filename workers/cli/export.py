"""``opd export``: samples, tokens and steps as files, and steps that can be opened again without their run."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class ExportFormat(enum.StrEnum):
    """What samples and steps are written as; tokens are always Parquet."""

    parquet = "parquet"
    jsonl = "jsonl"


def register(app: typer.Typer) -> None:
    app.command("export", epilog="Example: opd export runs/quickstart runs/step3 --step 3 --format jsonl")(export)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a store directory or a redis:// URL.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; must not exist yet.")],
    output_format: Annotated[
        ExportFormat, typer.Option("--format", help="Of samples and steps; tokens are always Parquet.")
    ] = ExportFormat.parquet,
    step: Annotated[
        list[int] | None,
        typer.Option("--step", help="Only this step, in a form that replay, sql and show open too; may be repeated."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="With --step: the student's weights at its start too, if they are left.")
    ] = False,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only samples of this condition over the view samples.")
    ] = None,
) -> None:
    """Write samples, tokens and steps into DIR, for pyarrow, DuckDB, pandas, polars or datasets."""
    from schemas.errors import InputError
    from workers.cli.exporting import Asked, write_export
    from workers.cli.stores import open_store

    if step and where:
        raise InputError("--step exports whole steps; leave --where out, or export without --step")
    if weights and not step:
        raise InputError("--weights are those at the start of a step; name it with --step N")
    asked = Asked(output_format.value, step or [], where, weights=weights)
    with open_store(run) as plane:
        counts = write_export(plane, Path(run), directory, asked)
    for name, rows in counts.items():
        typer.echo(f"{directory / name}: {rows:,} rows")
