"""``opd doctor``: what must hold before a run, checked with its own models, prompts and recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli.output import ListingFormat


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog="Example: opd doctor quickstart on_policy_distillation.proximal_teacher_alpha=0.5")(
        doctor
    )


def doctor(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a built-in one.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    output_format: Annotated[ListingFormat, typer.Option("--format", help="How to print it.")] = ListingFormat.table,
) -> None:
    """Check a recipe's invariants on a few of its prompts; exit 1 when one does not hold."""
    from schemas.config import load_recipe
    from workers.cli.output import to_json
    from workers.cli.run import quiet_libraries
    from workers.cli.tables import render, terminal_width
    from workers.doctor.diagnose import diagnose

    quiet_libraries()
    checks = diagnose(load_recipe(recipe, overrides or []))
    names = ("check", "value", "expected", "passed", "remedy")
    rows = [
        (
            check.name,
            check.value,
            f"{'>=' if check.at_least else '<='} {check.bound:g}",
            check.passed,
            "" if check.passed else check.remedy,
        )
        for check in checks
    ]
    if output_format is ListingFormat.json:
        typer.echo(to_json([_as_object(check) for check in checks]))
    else:
        for line in render(names, rows, terminal_width()):
            typer.echo(line)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _as_object(check: object) -> dict[str, object]:
    """A check as JSON has it, with its remedy whether it is needed or not."""
    from dataclasses import asdict

    from workers.doctor.invariants import Check

    assert isinstance(check, Check)
    return {**asdict(check), "passed": check.passed}
