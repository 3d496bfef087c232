"""``opd build-proxy``: tiny teachers, a student and prompts to try everything with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("build-proxy", epilog="Example: opd build-proxy runs/proxy --seed 0")(build_proxy)


def build_proxy(
    directory: Annotated[Path, typer.Argument(help="Where to write; must not exist yet.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides weights and prompts.")] = 0,
) -> None:
    """Build two fluent tiny teachers, a sloppy student and prompts; about a minute on one core, nothing downloaded."""
    from schemas.errors import InputError

    if directory.exists():
        raise InputError(f"{directory}: exists already; remove it or name another directory")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from workers.proxy import build

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def report(what: str, steps: int) -> Callable[[float], None]:
            line = progress.add_task(f"training {what}", total=steps, loss="")
            return lambda loss: progress.update(line, advance=1, loss=f"loss {loss:.3f}")

        build.build_proxy(directory, seed=seed, report=report)
    typer.echo(str(directory))
