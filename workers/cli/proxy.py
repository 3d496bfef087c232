"""``opd build-proxy``: tiny teachers, a student and prompts to try everything with; or a balanced subset of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    example = (
        "Example: opd build-proxy runs/proxy --seed 0; or opd build-proxy runs/rows --from rows.jsonl --per-agent 500"
    )
    app.command("build-proxy", epilog=example)(build_proxy)


def build_proxy(
    directory: Annotated[Path, typer.Argument(help="Where to write; must not exist yet.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides weights and prompts.")] = 0,
    source: Annotated[
        Path | None, typer.Option("--from", help="Instead: take rows of this file, JSON Lines or of NeMo-Gym.")
    ] = None,
    per_agent: Annotated[int | None, typer.Option(min=1, help="Of --from: rows of each agent.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Of --from: only this agent; may be repeated.")] = None,
) -> None:
    """Build two fluent tiny teachers, a sloppy student and prompts; about a minute on one core, nothing downloaded.

    With --from and --per-agent: as many rows of each agent of a prompt file, and a manifest with hashes of both.
    """
    from schemas.errors import InputError

    if directory.exists():
        raise InputError(f"{directory}: exists already; remove it or name another directory")
    if source is not None:
        if per_agent is None:
            raise InputError("--from: say with --per-agent how many rows of each agent to take")
        _subset(source, directory, per_agent, seed, agent or [])
    elif per_agent is not None or agent:
        raise InputError("--per-agent, --agent: only with --from FILE, whose rows they choose")
    else:
        _proxy(directory, seed)
    typer.echo(str(directory))


def _subset(source: Path, directory: Path, per_agent: int, seed: int, agents: list[str]) -> None:
    from workers.proxy.subset import build_subset

    made = build_subset(source, directory, per_agent, seed=seed, agents=agents)
    for line in made.rejected[:10]:
        typer.echo(f"warning: prompt left out: {line}", err=True)
    if len(made.rejected) > 10:
        typer.echo(f"warning: {len(made.rejected) - 10} more prompts left out", err=True)
    counts = ", ".join(f"{agent} {count}" for agent, count in made.taken.items())
    typer.echo(f"{counts}; {made.repeated} repeated rows left out", err=True)


def _proxy(directory: Path, seed: int) -> None:
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
