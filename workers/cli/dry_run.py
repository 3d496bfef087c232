"""``opd run --dry-run``: every key with its value, default and meaning, what the run would take, and warnings."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.config import RunConfig, Setting, describe, warnings
from workers.planning.limits import sized
from workers.planning.parts import Plan, RolePlan
from workers.planning.plan import plan

#: Columns of a table that goes into a file or a pipe, where nothing tells how wide it may be.
_PIPE_WIDTH = 160


def show(config: RunConfig, output_format: Literal["table", "json"] = "table") -> None:
    """Print *config* and its plan, as tables or as JSON, on stdout, and its warnings on stderr.

    JSON is an array of settings; the last one, ``plan``, holds the plan.
    """
    settings, planned = describe(config), plan(config)
    if output_format == "json":
        meaning = "what the run would take, in bytes"
        rows = [*settings, Setting("plan", asdict(planned), None, meaning)]
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2, ensure_ascii=False))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_PIPE_WIDTH)
        console.print(_settings(settings))
        for part in (_processes(planned), _columns(planned), _summary(planned)):
            console.print()
            console.print(part)
    for warning in warnings(config):
        typer.echo(f"warning: {warning}", err=True)


def _settings(settings: list[Setting]) -> Table:
    """A row a setting below its section's name; what differs from its default stands out."""
    table = _table("key", "value", "default", "meaning")
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


def _processes(planned: Plan) -> Table:
    """A row a role: where its processes go, and what each takes at most."""
    table = _table(
        "role", "engine", "processes", "where", "GPU memory", "node memory", "the largest parts, each process"
    )
    table.title, table.title_justify = Text(f"processes on {planned.cluster}", style="bold"), "left"
    for role in planned.roles:
        gpus = f" with {role.gpus:g} GPU" if role.gpus else ""
        cells = (role.name, role.engine, f"{role.processes}{gpus}", _where(role), *_sizes(role))
        table.add_row(*map(Text, cells))
    return table


def _where(role: RolePlan) -> str:
    """Nodes with their processes; neighbours with equally many as one."""
    runs = [
        (count, [node for node, _ in some]) for count, some in groupby(role.nodes.items(), key=lambda item: item[1])
    ]
    named = [(nodes[0] if len(nodes) == 1 else f"{nodes[0]} … {nodes[-1]}", count) for count, nodes in runs]
    return ", ".join(nodes if count == 1 else f"{nodes} × {count}" for nodes, count in named) or "no room"


def _sizes(role: RolePlan) -> tuple[str, str, str]:
    """Memory on the GPU and on the node, and what most of it is."""
    if role.memory is None:
        return "?", "?", f"{role.model} is not here"
    parts = {**role.memory.host, **role.memory.device}
    largest = sorted((part for part in parts if parts[part] > 0), key=lambda part: -parts[part])[:4]
    named = ", ".join(f"{part} {sized(parts[part])}" for part in largest)
    return sized(role.memory.device_bytes) if role.gpus else "", sized(role.memory.host_bytes), named


def _columns(planned: Plan) -> Table:
    """A row a column: bytes of a token, of a sample and of a step."""
    table = _table("column", "written by", "a token", "a sample", "a step")
    title = f"bytes of each column, of {planned.tokens_per_step:,} tokens a step at most"
    table.title, table.title_justify = Text(title, style="bold"), "left"
    for column in planned.columns:
        name = f"{column.name} (payload)" if column.heavy else column.name
        sizes = (
            f"{column.per_token:g}" if column.per_token else "",
            f"{column.per_sample:g}",
            f"{column.step_bytes:,}",
        )
        table.add_row(*map(Text, (name, column.writer, *sizes)))
    return table


def _summary(planned: Plan) -> Text:
    """The store, what could not be told, and what would not fit."""
    store = planned.store
    lines = [
        f"store: {sized(store.step_bytes)} a step; rows of {store.steps_kept} steps {sized(store.rows_bytes)}, "
        f"payloads of {store.payload_steps} {sized(store.payload_bytes)}, checkpoints and weights "
        f"{sized(store.checkpoints_bytes)}: {sized(store.total_bytes)} at most",
        *(f"note: {note}" for note in planned.notes),
        *(f"does not fit: {problem}" for problem in planned.problems),
    ]
    return Text("\n".join(lines))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _text(value: Any) -> str:
    """*value* as an override writes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
