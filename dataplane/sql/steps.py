"""The rows of ``steps``: one per trained step, from the metrics that the store keeps with it."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dataplane.sql.views import STEPS, ViewColumn
from schemas.messages import Step


def steps_table(steps: Iterable[Step]) -> pa.Table:
    """The trained *steps* and their metrics; what a run does not measure is null."""
    rows = [
        {"weight_version": s.step - 1, "samples": s.num_samples, **(s.metrics or {}), "step": s.step} for s in steps
    ]
    known = {column.name: column.type for column in STEPS}
    names = list(dict.fromkeys([*known, *(name for row in rows for name in row)]))
    return pa.table({name: _column([row.get(name) for row in rows], known.get(name, pa.float64())) for name in names})


def _column(values: list[float | None], type_: pa.DataType) -> pa.Array:
    """Counts are recorded as floats, as every metric is; one that is no whole number is no count: null."""
    if pa.types.is_integer(type_):
        values = [int(value) if value is not None and float(value).is_integer() else None for value in values]
    return pa.array(values, type_)


def steps_columns(steps: Iterable[Step]) -> tuple[ViewColumn, ...]:
    """The columns of ``steps``: those of any run, then what else this one measured."""
    known = {column.name for column in STEPS}
    others = dict.fromkeys(name for step in steps for name in step.metrics or () if name not in known)
    return (*STEPS, *(ViewColumn(name, pa.float64(), "a metric of this run", (name,)) for name in others))
