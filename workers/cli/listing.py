"""What ``opd ls`` says of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataplane import DataPlane
from dataplane.sql import run_sql
from dataplane.sql.readable import type_name
from schemas.messages import Checkpoint
from workers.cli.tables import render, terminal_width
from workers.rundir import RunDir

#: One pass over the catalog; no token column is read.
_STATUS = "select partition, status, count(*) as rows from samples group by all order by all"
_BYTES = "select partition, sum(bytes) as bytes, count(*) as blocks from blocks group by all"


def listing(plane: DataPlane, run_dir: RunDir) -> dict[str, Any]:
    """Partitions with columns, rows by status and bytes; steps, weights and checkpoints; plain data.

    A checkpoint that was recorded may have been dropped since, as the recipe asks.
    """
    statuses = run_sql(plane, _STATUS).to_pylist()
    sizes = {row["partition"]: row for row in run_sql(plane, _BYTES).to_pylist()}
    partitions = [
        {
            "name": name,
            "rows": len(plane.rows(name)),
            "status": {row["status"]: row["rows"] for row in statuses if row["partition"] == name},
            "bytes": sizes[name]["bytes"] if name in sizes else 0,
            "blocks": sizes[name]["blocks"] if name in sizes else 0,
            "columns": [
                {"name": field.name, "type": type_name(field.type), "rows": len(plane.rows(name, have=[field.name]))}
                for field in schema
            ],
        }
        for name, schema in plane.partitions().items()
    ]
    steps = plane.steps()
    return {
        "partitions": partitions,
        "bytes": sum(partition["bytes"] for partition in partitions),
        "steps_sealed": len(steps),
        "steps_trained": sum(step.trained_at is not None for step in steps),
        "weights": [{"version": weights.version, "path": weights.path} for weights in plane.published()],
        "checkpoints": [_checkpoint(checkpoint, run_dir) for checkpoint in plane.checkpoints()],
    }


def _checkpoint(checkpoint: Checkpoint, run_dir: RunDir) -> dict[str, Any]:
    path = run_dir.own(checkpoint.path)
    return {"step": checkpoint.step, "path": str(path), "there": path.is_dir()}


def listing_lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    for partition in found["partitions"]:
        size = f"{partition['rows']:,} rows, {_size(partition['bytes'])} in {partition['blocks']:,} blocks"
        yield f"{partition['name']}: {size}"
        if partition["status"]:
            yield "  " + ", ".join(f"{rows:,} {status}" for status, rows in partition["status"].items())
        rows = [(column["name"], column["type"], column["rows"]) for column in partition["columns"]]
        width = terminal_width()
        for line in render(("column", "type", "rows"), rows, width and width - 2):
            yield f"  {line}"
        yield ""
    yield f"steps: {found['steps_trained']} trained, {found['steps_sealed']} sealed"
    if found["weights"]:
        yield f"weights: {len(found['weights'])} versions, newest {found['weights'][-1]['version']}"
    if found["checkpoints"]:
        places = (each["path"] if each["there"] else "dropped" for each in found["checkpoints"])
        steps = (each["step"] for each in found["checkpoints"])
        yield "checkpoints: " + ", ".join(f"step {step} ({place})" for step, place in zip(steps, places, strict=True))
    else:
        yield "checkpoints: none"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"
