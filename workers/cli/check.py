"""``opd check``: whether a store is what its journal says, and putting it right."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli.output import ListingFormat


def register(app: typer.Typer) -> None:
    app.command("check", epilog="Example: opd check runs/quickstart --repair")(check)


def check(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a store directory or a redis:// URL.")],
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be; keep everything whole.")] = False,
    output_format: Annotated[ListingFormat, typer.Option("--format", help="How to print it.")] = ListingFormat.table,
) -> None:
    """Compare journal, catalog and blocks of a store. Exit 0 when it is clean, 1 with problems."""
    from dataplane.upkeep.check import check as look
    from dataplane.upkeep.repair import repair as put_right
    from workers.cli.output import to_json
    from workers.cli.stores import storage_of

    done = put_right(lambda: storage_of(run)) if repair else []
    storage = storage_of(run)
    found = look(storage)
    storage.close()
    if output_format is ListingFormat.json:
        problems = [problem._asdict() for problem in found.problems]
        counts = {"records": found.records, "blocks": found.blocks, "bytes": found.size_bytes, "live": found.live}
        typer.echo(to_json({**counts, "clean": found.clean, "problems": problems, "repaired": done}))
    else:
        for line in done:
            typer.echo(f"repaired: {line}")
        for problem in found.problems:
            note = " (the next writer removes it)" if problem.harmless else ""
            typer.echo(f"{problem.kind.replace('_', ' ')}: {problem.where}: {problem.detail}{note}")
        seen = f"{found.records:,} records, {found.blocks:,} blocks, {found.size_bytes:,} bytes"
        beside = ", beside its writer" if found.live else ""
        typer.echo(f"{seen}{beside}: {'clean' if found.clean else 'NOT clean'}")
    if not found.clean:
        raise typer.Exit(1)
