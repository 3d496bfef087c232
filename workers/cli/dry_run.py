"""``opd run --dry-run``: every key with its value, default and meaning, and what would be warned about."""

from __future__ import annotations

import json
from typing import Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.config import RunConfig, Setting, describe, warnings

#: Columns of a table that goes into a file or a pipe, where nothing tells how wide it may be.
_PIPE_WIDTH = 160


def show(config: RunConfig, output_format: Literal["table", "json"] = "table") -> None:
    """Print *config*, as a table or as JSON, on stdout, and its warnings on stderr."""
    settings = describe(config)
    if output_format == "json":
        typer.echo(json.dumps([setting._asdict() for setting in settings], indent=2, ensure_ascii=False))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_PIPE_WIDTH)
        console.print(_table(settings))
    for warning in warnings(config):
        typer.echo(f"warning: {warning}", err=True)


def _table(settings: list[Setting]) -> Table:
    """A row a setting below its section's name; what differs from its default stands out."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("key", "value", "default", "meaning"):
        table.add_column(heading, overflow="fold")
    section = ""
    for setting in settings:
        top, _, key = setting.key.partition(".")
        if top != section:
            table.add_row(Text(top, style="bold"))
            section = top
        style = "green" if setting.value != setting.default else ""
        table.add_row(
            Text(f"  {key}"),
            Text(_text(setting.value), style=style),
            Text(_text(setting.default)),
            Text(setting.meaning),
        )
    return table


def _text(value: Any) -> str:
    """*value* as an override writes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
