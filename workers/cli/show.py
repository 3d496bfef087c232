"""``opd show``: one sample in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import InputError, did_you_mean
from workers.cli.output import ListingFormat

if TYPE_CHECKING:
    from dataplane import DataPlane

#: The recipe of the cookbook that names the samples for ``--worst``.
WORST = "The worst sample of each agent"


def register(app: typer.Typer) -> None:
    app.command("show", epilog="Example: opd show runs/quickstart 0000300-0")(show)


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a store directory or a redis:// URL.")],
    sample_id: Annotated[
        str | None, typer.Argument(metavar="SAMPLE_ID", help='One of: opd sql RUN "select sample_id from samples".')
    ] = None,
    worst: Annotated[
        str | None, typer.Option("--worst", metavar="AGENT", help="This agent's furthest from its teacher lately.")
    ] = None,
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
        found = find_sample(plane, _meant(plane, sample_id, worst), partition)
    if output_format is ListingFormat.json:
        typer.echo(to_json(found))
    else:
        print_sample(found)


def _meant(plane: DataPlane, sample_id: str | None, worst: str | None) -> str:
    """The sample of that id, or the one that the cookbook calls the worst of an agent. Raises InputError."""
    from dataplane.inspector.cookbook import recipe

    if (sample_id is None) == (worst is None):
        raise InputError("show: expected a SAMPLE_ID or --worst AGENT")
    if sample_id is not None:
        return sample_id
    ranked = plane.sql(recipe(WORST)).to_pylist()  # of each agent the worst comes first
    found = {row["agent"]: row["sample_id"] for row in reversed(ranked)}
    if worst not in found:
        there = f"agents of the last trained steps: {', '.join(map(str, found)) or 'none'}"
        raise InputError(f"--worst {worst}: no trained sample{did_you_mean(str(worst), map(str, found))}; {there}")
    return str(found[worst])
