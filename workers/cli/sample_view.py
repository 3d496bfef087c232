"""One sample for people: tokens coloured by gap, their numbers in a table, what happened to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from workers.cli.tables import cell, clean, render, terminal_width

#: Gap in nats at which a token's colour is at its strongest.
STRONG = 3.0

_LEGEND = (
    f"red: less likely to the teacher than to the student, green: more; full at {STRONG:g} nats; used: in the loss"
)

#: What the head line tells, where the sample has it.
_HEAD = ("status", "error", "mask_reason", "step", "agent", "teacher", "weight_version", "finish_reason", "reward")
_NUMBERS = ("gap_mean", "gap_sum", "seq_logprob_error", "student_entropy", "teacher_entropy", "loss", "num_tokens")

_TABLE = {
    "position": "pos",
    "response_position": "resp",
    "token_id": "id",
    "token": "token",
    "generation_logprob": "sampler",
    "student_logprob": "student",
    "teacher_logprob": "teacher",
    "gap": "gap",
    "advantage": "adv",
    "trained": "used",
}


def print_sample(found: Mapping[str, Any]) -> None:
    """Everything :func:`dataplane.inspector.sample.find_sample` found, on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    width = terminal_width()
    console.print(Text(f"{clean(found['sample_id'])}  ({clean(found['partition'])})", style="bold"))
    for line in _facts(found["values"]):
        console.print(Text(line))
    console.print(_tokens(found["tokens"]))
    if any(token["gap"] is not None for token in found["tokens"]):
        console.print(Text(_LEGEND, style="dim"))
    rows = [[_shown(token[name]) for name in _TABLE] for token in found["tokens"]]
    console.print()
    for line in render(list(_TABLE.values()), rows, width):
        console.print(Text(line))
    console.print()
    for line in _history(found["history"], width):
        console.print(Text(line))
    if len(found["siblings"]) > 1:
        console.print(Text(f"\nsame prompt: {', '.join(map(clean, found['siblings']))}"))


def _facts(values: Mapping[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {cell(values[name])}" for name in _HEAD if values.get(name) is not None)
    numbers = [f"{name} {cell(values[name])}" for name in _NUMBERS if values.get(name) is not None]
    if numbers:
        yield ", ".join(numbers)
    for name in ("prompt", "answer", "response_text"):
        if values.get(name) is not None:
            yield f"{name}: {clean(values[name])}"


def _tokens(tokens: Sequence[Mapping[str, Any]]) -> Text:
    line = Text("\n")
    for token in tokens:
        text = clean(token["token"]) if token["token"] is not None else str(token["token_id"])
        line.append(text, style=_style(token))
        line.append("·", style="dim")
    return line


def _style(token: Mapping[str, Any]) -> str:
    gap = token["gap"]
    if gap is None:
        return "dim" if token["generation_logprob"] is None else "underline"
    if not math.isfinite(gap):
        return "bold white on magenta"
    strength = min(1.0, abs(gap) / STRONG)
    faint = round(255 * (1 - strength))
    red, green, blue = (255, faint, faint) if gap < 0 else (faint, 255, faint)
    return f"black on #{red:02x}{green:02x}{blue:02x}"


def _shown(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) and math.isfinite(value) else value


def _history(events: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[str]:
    rows = [
        (
            event["time"].strftime("%H:%M:%S.%f")[:-3],
            f"{event['kind'].removeprefix('step_')} {event['step']}" if "step" in event else event["kind"],
            event.get("task"),
            event.get("worker"),
            event.get("attempt"),
            event.get("version"),
            ", ".join(event.get("columns") or ()) or _detail(event.get("detail")),
        )
        for event in events
    ]
    heads = ("time", "what", "task", "worker", "try", "weights", "columns")
    yield from render(heads, [["" if value is None else value for value in row] for row in rows], width)


def _detail(detail: Mapping[str, Any] | None) -> str:
    return "; ".join(map(str, detail.get("errors", ()))) if detail else ""
