"""``opd``: the verbs, and what becomes of an error.

A verb's module is imported when the verb is asked for, so that ``opd sql`` starts without what ``opd run`` needs.
Exit codes: 0 done; 1 the job or the store failed, or it was interrupted; 2 the input is wrong.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import version
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from schemas.errors import InputError, OpdError, did_you_mean

#: Verb → the module whose ``register(app)`` adds it, in the order of the help.
VERBS = {
    "run": "workers.cli.run",
    "doctor": "workers.cli.doctor",
    "build-proxy": "workers.cli.proxy",
    "ls": "workers.cli.inspect",
    "sql": "workers.cli.inspect",
    "check": "workers.cli.check",
    "show": "workers.cli.show",
    "replay": "workers.cli.replay",
    "export": "workers.cli.export",
    "ui": "workers.cli.ui",
}

FAILED, BAD_INPUT = 1, 2

#: What typer makes of Ctrl-C.
TYPER_INTERRUPTED = 130


class Verbs(TyperGroup):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            raise InputError(f"no verb {cmd_name!r}{did_you_mean(cmd_name, VERBS)}; verbs: {', '.join(VERBS)}")
        verbs = typer.Typer(rich_markup_mode=None)
        import_module(VERBS[cmd_name]).register(verbs)
        return get_group(verbs).get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # typer leaves in it how its own parser says it
            error.message = error.message.replace("Value error, ", "", 1)
            raise


app = typer.Typer(
    cls=Verbs,
    name="opd",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"opd-plane {version('opd-plane')}")
        raise typer.Exit


@app.callback(epilog="Example: opd run quickstart --dry-run")
def opd(
    show_version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", envvar="OPD_DEBUG", help="Show the traceback of an error."),
) -> None:
    """Multi-teacher on-policy distillation on a column store: run it, ask it, replay it."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit. Every error of ours is one clear line on stderr, and its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # a query may begin with a comment, which is no option
    arguments = [f" {text}" if text.startswith(("-- ", "--\n")) else text for text in arguments]
    try:
        app(args=arguments, prog_name="opd")
    except InputError as error:
        _leave(error, BAD_INPUT, arguments)
    except SystemExit as left:
        if left.code == TYPER_INTERRUPTED:
            typer.echo("opd: interrupted", err=True)
            sys.exit(FAILED)
        raise
    except Exception as error:
        _leave(error, FAILED, arguments)


def _leave(error: Exception, code: int, arguments: list[str]) -> None:
    if _debugging(arguments):
        traceback.print_exception(error)
    elif isinstance(error, OpdError):
        typer.echo(f"opd: {error}", err=True)
    else:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        typer.echo(f"opd: unexpected {what} (opd --debug … shows where)", err=True)
    sys.exit(code)


def _debugging(arguments: list[str]) -> bool:
    return "--debug" in arguments[:1] or os.environ.get("OPD_DEBUG", "0") not in ("", "0")


if __name__ == "__main__":
    main()
