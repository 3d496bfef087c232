"""``opd run``: a recipe from zero to its last step."""

from __future__ import annotations

import enum
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from schemas.config import load_recipe, warnings
from schemas.config.recipe import find_recipe


class ExecutorName(enum.StrEnum):
    """Where roles run."""

    inline = "inline"


class Format(enum.StrEnum):
    """How a dry run is printed."""

    table = "table"
    json = "json"


def register(app: typer.Typer) -> None:
    app.command("run", epilog="Example: opd run quickstart run.seed=1 grpo.max_num_steps=20 --run-dir runs/short")(run)


def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a built-in one.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run is kept. Default: runs/NAME-of-recipe.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    executor: Annotated[ExecutorName, typer.Option(help="Where workers run.")] = ExecutorName.inline,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every key with its value, default and meaning.")
    ] = False,
    output_format: Annotated[Format, typer.Option("--format", help="Of --dry-run.")] = Format.table,
) -> None:
    """Run a distillation job."""
    config = load_recipe(recipe, overrides or [])
    if dry_run:
        from workers.cli import dry_run as settings

        settings.show(config, output_format.value)
        return
    for warning in warnings(config):
        typer.echo(f"warning: {warning}", err=True)
    from workers.rundir import RunDir

    target = RunDir(run_dir or Path("runs") / find_recipe(recipe).stem)
    target.check(resume=resume)
    _quiet_libraries()
    from workers.executors.inline import InlineExecutor
    from workers.job import read_inputs, run_job
    from workers.progress import Progress

    inputs = read_inputs(config)
    for line in [*inputs.train.rejected, *inputs.validation.rejected][:10]:
        typer.echo(f"warning: prompt left out: {line}", err=True)
    with Progress(config, target, live=config.logger.progress) as report:
        run_job(config, inputs, target, InlineExecutor(), resume=resume, report=report)


def _quiet_libraries() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.captureWarnings(True)
