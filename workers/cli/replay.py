"""``opd replay``: stored rows through a stage again, beside what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workers.cli.output import ListingFormat

#: Exit codes by verdict.
_EXIT = {"identical": 0, "within_tolerance": 0, "different": 1, "not_run": 2}


def register(app: typer.Typer) -> None:
    app.command(
        "replay",
        epilog="Example: opd replay runs/quickstart --step 3 --set on_policy_distillation.proximal_teacher_alpha=0.5",
    )(replay)


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, an export, a store or a redis:// URL.")],
    step: Annotated[int | None, typer.Option("--step", help="Replay the members of this step.")] = None,
    sample: Annotated[
        list[str] | None, typer.Option("--sample", metavar="ID", help="Only this sample; may be repeated.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only samples of this condition over the view samples.")
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="teacher, student, baseline, train, or generate (re-scored); may be repeated. Default: the first "
            "four; with --set, baseline and train.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What if the recipe had said this; may be repeated."),
    ] = None,
    output_format: Annotated[ListingFormat, typer.Option("--format", help="How to print it.")] = ListingFormat.table,
    pdb: Annotated[bool, typer.Option("--pdb", help="Stop inside the stage, with its batch at hand.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="The run's config.yaml, where it is not beside the store.")
    ] = None,
) -> None:
    """Rebuild stored rows, run stages on them again and compare; nothing is written to the run.

    Exit 0: identical, or within the stated tolerance. 1: different. 2: a stage could not run, and why.
    """
    from workers.cli.output import to_json
    from workers.cli.run import quiet_libraries
    from workers.cli.tables import terminal_width
    from workers.replay import replay as replaying

    quiet_libraries()
    with replaying(run, step, sample_ids=sample, where=where, config=config) as rows:
        report = rows.run(*(stage or ()), overrides=settings or (), debug=pdb)
    if output_format is ListingFormat.json:
        typer.echo(to_json(report.as_dict()))
        if report.reason is not None:
            typer.echo(f"opd: {report.reason}", err=True)
    else:
        for line in report.lines(terminal_width()):
            typer.echo(line)
    raise typer.Exit(_EXIT[report.verdict])
