"""``opd ls`` and ``opd sql``: what a store holds, and questions to it. No model library is ever imported here."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import InputError
from workers.cli.output import ListingFormat, ResultFormat

_RUN = "A run directory, a store directory or a redis:// URL."


def register(app: typer.Typer) -> None:
    app.command("ls", epilog="Example: opd ls runs/quickstart")(ls)
    app.command(
        "sql",
        epilog='Example: opd sql runs/quickstart "select agent, avg(gap) from tokens where trained group by agent"',
    )(sql)


def ls(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN)],
    output_format: Annotated[ListingFormat, typer.Option("--format", help="How to print it.")] = ListingFormat.table,
) -> None:
    """List what a store holds: partitions, columns, rows by status, bytes, steps and checkpoints."""
    from workers.cli.listing import listing, listing_lines
    from workers.cli.output import to_json
    from workers.cli.stores import open_store
    from workers.rundir import RunDir

    with open_store(run) as plane:
        found = listing(plane, RunDir.around(run))
    lines = [to_json(found)] if output_format is ListingFormat.json else listing_lines(found)
    for line in lines:
        typer.echo(line)


def sql(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN)],
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="One statement that reads; - takes it from standard input; without it, a prompt with a history.",
        ),
    ] = None,
    output_format: Annotated[
        ResultFormat | None, typer.Option("--format", help="Default: by the ending of --out, else a table.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file.")] = None,
    attach: Annotated[
        list[str] | None, typer.Option("--attach", metavar="NAME=RUN", help="Another run's views, as NAME.samples.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="NAME", help="A query of the cookbook, by number or title.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print which columns the query reads, and bytes.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds the query may take.")] = 60.0,
) -> None:
    """Ask a store in SQL: the views samples, tokens, steps, events and blocks (try: show tables, describe samples)."""
    from dataplane.inspector import cookbook
    from dataplane.sql import Limits, explain_sql, stream_sql
    from workers.cli import output
    from workers.cli.stores import open_store

    if recipe is not None and query is not None:
        raise InputError("--recipe is a query itself; leave the other one out")
    query = cookbook.recipe(recipe) if recipe is not None else query
    kind = output_format or output.format_of(out)
    with ExitStack() as opened:
        plane = opened.enter_context(open_store(run))
        others = {name: opened.enter_context(open_store(other)) for name, other in map(_attached, attach or [])}
        limits = Limits(timeout_s=timeout_s)
        if query is None and sys.stdin.isatty():
            from workers.cli.prompt import converse

            converse(plane, others, limits, kind)
            return
        text = sys.stdin.read() if query in (None, "-") else str(query)
        if explain:
            batches = explain_sql(plane, text, attach=others).to_reader()
        else:
            batches = opened.enter_context(stream_sql(plane, text, attach=others, limits=limits))
        with output.destination(out, kind) as sink:
            rows = output.write(batches, kind, sink)
        if out is not None:
            typer.echo(f"{out}: {rows:,} rows, {out.stat().st_size:,} bytes", err=True)


def _attached(option: str) -> tuple[str, str]:
    name, equals, run = option.partition("=")
    if not equals:
        raise InputError(f"--attach {option}: expected NAME=RUN")
    return name, run
