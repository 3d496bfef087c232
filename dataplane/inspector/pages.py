"""What the page shows, as plain data: each number is a query over the views, or a value of one sample."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from dataplane import DataPlane
from dataplane.inspector.sample import TOKEN_COLUMNS, OneRow, find_sample
from dataplane.inspector.timeline import timeline
from dataplane.sql import Limits, run_sql
from dataplane.sql.load import Source
from dataplane.sql.views import quoted
from schemas.errors import InputError, did_you_mean

#: A person waits for these.
LIMITS = Limits(timeout_s=60.0)

#: Columns of the table of samples, those of them that a store has.
SHOWN = (
    *("sample_id", "partition", "agent", "status", "step", "weight_version", "reward", "gap_mean", "gap_abs_mean"),
    *("num_tokens", "num_finite", "seq_logprob_error", "loss", "finish_reason", "prompt", "response_text", "answer"),
    *("error", "mask_reason"),
)

#: Filters that must match a column's value, and texts that are looked for.
EQUAL, SEARCHED = ("partition", "agent", "status", "step", "finish_reason"), ("sample_id", "prompt", "response_text")

#: Rows of a page, and responses of a prompt side by side, at most.
MOST_ROWS, MOST_SIBLINGS = 200, 16

_BY_AGENT = """
    select step, agent, count(*) as samples, avg(reward) as reward, count(reward) as rewards,
        sum(gap_sum) / nullif(sum(num_finite), 0) as gap, sum(num_tokens) as tokens, sum(num_finite) as finite,
        avg(step - 1 - weight_version) as staleness, max(step - 1 - weight_version) as staleness_max
    from samples where status in ('trained', 'masked') and partition = 'train' group by all order by all"""

_HELD_OUT = """
    select weight_version, agent, count(reward) as prompts, avg(reward) as accuracy
    from samples where partition = 'validation' and reward is not null group by all order by all"""


class Pages:
    """A store for the page; what is asked again is computed again only when the journal has grown."""

    def __init__(self, plane: DataPlane, name: str) -> None:
        self.plane, self.name = plane, name
        self.position = 0
        self._kept: dict[Any, tuple[int, Any]] = {}
        self._guard = threading.Lock()

    def follow(self) -> int:
        """Read what the journal has gained; a number that grows with it."""
        with self._guard:
            self.position += self.plane.refresh()
            return self.position

    def run(self) -> dict[str, Any]:
        """Name, partitions, statuses, and what the views are made of."""

        def made() -> dict[str, Any]:
            query = "select partition, status, agent, count(*) as rows from samples group by all order by all"
            views = Source(self.plane).views
            return {
                "name": self.name,
                "statuses": self._ask(query).to_pylist(),
                "steps_sealed": len(self.plane.steps()),
                "steps_trained": sum(step.trained_at is not None for step in self.plane.steps()),
                "weights": len(self.plane.published()),
                "checkpoints": [checkpoint.step for checkpoint in self.plane.checkpoints()],
                "views": {name: [column.name for column in columns] for name, columns in views.items()},
            }

        return {"position": self.position, **self._once("run", made)}

    def steps(self) -> dict[str, Any]:
        """Metrics by column, and training rows by step and agent."""

        def made() -> dict[str, Any]:
            table = self._ask("from steps order by step")
            numbers = [field.name for field in table.schema if _is_number(field.type)]
            names = {column.name for column in Source(self.plane).views["samples"]}
            by_agent = self._ask(_BY_AGENT).to_pylist() if {"gap_sum", "num_finite", "num_tokens"} <= names else []
            metrics = {name: table[name].to_pylist() for name in numbers}
            return {"metrics": metrics, "by_agent": by_agent, "held_out": self._ask(_HELD_OUT).to_pylist()}

        return self._once("steps", made)

    def timeline(self, start: float | None, end: float | None) -> dict[str, Any]:
        """See :func:`dataplane.inspector.timeline.timeline`."""
        return self._once(("timeline", start, end), lambda: timeline(self.plane, start, end))

    def samples(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page of the table of samples: ``columns``, ``rows``, and how many meet the filters in all."""
        columns = [column.name for column in Source(self.plane).views["samples"] if column.name in SHOWN]
        columns.sort(key=SHOWN.index)
        where, values = _conditions(asked, columns)
        sort = asked.get("sort") or "sample_id"
        if sort not in columns:
            raise InputError(f"sort: no column {sort!r}{did_you_mean(sort, columns)}")
        direction = "desc" if asked.get("desc") == "true" else "asc"
        limit, offset = min(_whole(asked, "limit", 50), MOST_ROWS), _whole(asked, "offset", 0)
        # The page's rows are found first, by as few columns as will do; only their texts are ever read.
        found = self._ask(
            f"select partition, sample_id, count(*) over () as n from samples{where} "
            f"order by {quoted(sort)} {direction} nulls last, partition, sample_id limit {limit} offset {offset}",
            values,
        ).to_pylist()
        counted = found or self._ask(f"select count(*) as n from samples{where}", values).to_pylist()
        return {"total": counted[0]["n"], "columns": columns, "rows": self._rows(found, columns)}

    def sample(self, partition: str, sample_id: str) -> dict[str, Any]:
        """One sample whole, and the tokens of every response to its prompt."""
        found = find_sample(self.plane, sample_id, partition)
        others = OneRow(self.plane, partition, found["siblings"][:MOST_SIBLINGS])
        query = f"select sample_id, {', '.join(TOKEN_COLUMNS)} from tokens"
        rows = run_sql(others, query, limits=LIMITS).to_pylist()
        names = {column.name for column in Source(others).views["samples"]}
        facts = ", ".join(
            name for name in ("sample_id", "status", "reward", "gap_mean", "finish_reason") if name in names
        )
        values = {row["sample_id"]: row for row in run_sql(others, f"select {facts} from samples").to_pylist()}
        found["responses"] = [
            {**values[name], "tokens": [row for row in rows if row["sample_id"] == name]} for name in others.wanted
        ]
        return found

    # -- inside -------------------------------------------------------------------------------------------------------

    def _rows(self, found: list[dict[str, str]], columns: list[str]) -> list[list[Any]]:
        picked: dict[tuple[str, str], list[Any]] = {}
        for partition in dict.fromkeys(row["partition"] for row in found):
            ids = [row["sample_id"] for row in found if row["partition"] == partition]
            cut = OneRow(self.plane, partition, ids)
            there = {column.name for column in Source(cut).views["samples"]}
            shown = ", ".join(quoted(name) if name in there else f"null as {quoted(name)}" for name in columns)
            for row in run_sql(cut, f"select {shown} from samples", limits=LIMITS).to_pylist():
                picked[partition, row["sample_id"]] = [row[name] for name in columns]
        return [picked[row["partition"], row["sample_id"]] for row in found]

    def _ask(self, query: str, parameters: Any = None) -> pa.Table:
        return run_sql(self.plane, query, parameters, limits=LIMITS)

    def _once(self, key: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        position, value = self._kept.get(key, (-1, None))
        if position != self.position or value is None:
            position, value = self.position, make()
            if len(self._kept) > 32:
                self._kept.clear()
            self._kept[key] = (position, value)
        return dict(value)


def _conditions(asked: Mapping[str, str], columns: list[str]) -> tuple[str, list[Any]]:
    parts, values = [], []
    for name in EQUAL:
        if asked.get(name) and name in columns:
            parts.append(f"cast({name} as varchar) = ?")
            values.append(asked[name])
    searched = [name for name in SEARCHED if name in columns]
    if asked.get("text") and searched:
        parts.append("(" + " or ".join(f"contains({name}, ?)" for name in searched) + ")")
        values += [asked["text"]] * len(searched)
    return (f" where {' and '.join(parts)}" if parts else ""), values


def _whole(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name) or str(default)
    if not text.isdecimal():
        raise InputError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_floating(type_) or pa.types.is_integer(type_)
