"""``opd run``: a recipe from zero to its last step."""

from __future__ import annotations

import enum
import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.config import RunConfig, describe, load_recipe, warnings
from schemas.config.recipe import find_recipe
from schemas.config.resumed import changes, fixed
from workers.rundir import RunDir

if TYPE_CHECKING:
    from workers.executors import Executor


class ExecutorName(enum.StrEnum):
    """Where roles run."""

    ray = "ray"
    inline = "inline"


class Format(enum.StrEnum):
    """How a dry run is printed."""

    table = "table"
    json = "json"


def register(app: typer.Typer) -> None:
    app.command("run", epilog="Example: opd run quickstart run.seed=1 grpo.max_num_steps=20 --run-dir runs/short")(run)


def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a built-in one.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run is kept. Default: runs/NAME-of-recipe.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    executor: Annotated[
        ExecutorName, typer.Option(help="ray: a process a role; inline: all in one thread, repeatable bit for bit.")
    ] = ExecutorName.ray,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every key with its value, default and meaning, and plan the run.")
    ] = False,
    output_format: Annotated[Format, typer.Option("--format", help="Of --dry-run.")] = Format.table,
) -> None:
    """Run a distillation job."""
    target = RunDir(run_dir or Path("runs") / find_recipe(recipe).stem)
    config = load_recipe(recipe, overrides or [])
    if resume and target.config.exists():
        config = _stored(target, config, overrides or [])
    if dry_run:
        from workers.cli import dry_run as settings

        settings.show(config, output_format.value)
        return
    for warning in warnings(config):
        typer.echo(f"warning: {warning}", err=True)
    target.check(resume=resume)
    _run(config, target, executor, resume=resume)


def _stored(target: RunDir, recipe: RunConfig, overrides: list[str]) -> RunConfig:
    """What a resumed run goes on with: the settings it has, and the overrides given now; a line about each change."""
    kept = load_recipe(str(target.config), overrides)
    for line in changes(load_recipe(str(target.config)), kept):
        typer.echo(line, err=True)
    now = {setting.key: setting.value for setting in describe(kept)}
    for key, value in ((setting.key, setting.value) for setting in describe(recipe)):
        if now.get(key) != value and key != "run.name":
            change = "" if fixed(key) else f"; add {key}={value!r} to change it"
            typer.echo(f"warning: {key}: the run keeps {now.get(key)!r}{change}", err=True)
    return kept


def _run(config: RunConfig, target: RunDir, executor: ExecutorName, *, resume: bool) -> None:
    quiet_libraries()
    signal.signal(signal.SIGTERM, _interrupt)
    from workers.job import read_inputs, run_job
    from workers.reports.progress import Progress
    from workers.reports.report import Reports, TensorBoard

    inputs = read_inputs(config)
    for line in (*inputs.train.left_out("data.train"), *inputs.validation.left_out("data.validation")):
        typer.echo(f"warning: {line}", err=True)
    try:
        with Progress(config, target, live=config.logger.progress) as report:
            reports = Reports(report, TensorBoard(target.tensorboard)) if config.logger.tensorboard else report
            run_job(config, inputs, target, _executor(executor, config, target), resume=resume, report=reports)
    except KeyboardInterrupt:
        typer.echo("the same command with --resume goes on from here", err=True)
        raise


def _executor(name: ExecutorName, config: RunConfig, target: RunDir) -> Executor:
    if name is ExecutorName.inline:
        from workers.executors.inline import InlineExecutor

        return InlineExecutor(config.cluster.threads_per_worker)
    from workers.executors.host import HostSettings
    from workers.executors.ray import RayExecutor

    settings = HostSettings(
        log_directory=target.logs.absolute(),
        working_directory=Path.cwd(),
        threads=config.cluster.threads_per_worker,
        lease_s=config.failures.lease_s,
    )
    return RayExecutor(settings, address=config.cluster.address, restarts=config.failures.restarts)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def quiet_libraries() -> None:
    """Nothing on stderr but what is ours."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.captureWarnings(True)
