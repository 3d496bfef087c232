"""``opd show``: one sample in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli.output import ListingFormat


def register(app: typer.Typer) -> None:
    app.command("show", epilog="Example: opd show runs/quickstart 0000300-0")(show)


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a store directory or a redis:// URL.")],
    sample_id: Annotated[
        str, typer.Argument(metavar="SAMPLE_ID", help='One of: opd sql RUN "select sample_id from samples".')
    ],
    partition: Annotated[
        str | None, typer.Option("--partition", help="Where it is. Default: the first partition that has it.")
    ] = None,
    output_format: Annotated[ListingFormat, typer.Option("--format", help="How to print it.")] = ListingFormat.table,
) -> None:
    """Show one sample: prompt, response with its tokens coloured by gap, their numbers, and the sample's history."""
    from dataplane.inspector.sample import find_sample
    from workers.cli.output import to_json
    from workers.cli.sample_view import print_sample
    from workers.cli.stores import open_store

    with open_store(run) as plane:
        found = find_sample(plane, sample_id, partition)
    if output_format is ListingFormat.json:
        typer.echo(to_json(found))
    else:
        print_sample(found)
