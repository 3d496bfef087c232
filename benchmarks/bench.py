"""``make bench``: the store's rows of the table of numbers, side by side in one run.

    python -m benchmarks.bench [--rounds 9] [--only large,small,redis,million,query,curves]

Prints ratios, and writes them with the medians and the machine to ``runs/bench/bench.json``; the curves are drawn to
``docs/throughput.svg``. Stores lie in /dev/shm; the put is measured on disk too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import measure, plot, scale, speed, throughput
from benchmarks.batch import batch, names, raw
from benchmarks.measure import Contender, interleaved
from benchmarks.transferqueue import transferqueue

PARTS = ("large", "small", "redis", "disk", "million", "query", "curves")


class Goal(NamedTuple):
    """``over / under`` of two medians must be *least* at the smallest, or (with *most*) at the largest."""

    what: str
    over: str
    under: str
    least: float | None = None
    most: float | None = None


GOALS = (
    Goal("put, against TransferQueue", "put transferqueue", "put plane", 20),
    Goal("get owned, against TransferQueue", "get transferqueue", "get plane", 20),
    Goal("get copy=False, against TransferQueue", "get transferqueue", "get plane copy=False", 40),
    Goal("get permuted, against TransferQueue", "get transferqueue", "get plane permuted"),
    Goal("get 64×1, against TransferQueue", "get 64×1 transferqueue", "get 64×1 plane", 5),
    Goal("add a column, against TransferQueue", "add column transferqueue", "add column plane", 5),
    Goal("clear, against TransferQueue", "clear transferqueue", "clear plane", 5),
    Goal("put, share of a bare write's speed", "put bare write", "put plane", 0.7),
    Goal("put right behind another, share of a bare write's speed", "put bare write", "put plane at once"),
    Goal("get copy=False touched, share of memcpy's speed", "memcpy", "get plane copy=False touched", 0.25),
    Goal("put on disk, share of a bare write's speed", "disk bare write", "disk put plane"),
    Goal("redis put, share of raw SETs' speed", "redis put raw", "redis put plane", 0.6),
    Goal("redis get, share of raw GETs' speed", "redis get raw", "redis get plane", 0.6),
    Goal("claim at 1,000,000 rows, against 1,000", "claim at 1,000,000 rows", "claim at 1,000 rows", most=2),
    Goal("catalog bytes a row", "catalog bytes a row", "", most=500),
    Goal("seconds to open 1,000,000 rows", "open 1,000,000 rows", "", most=5),
    Goal("seconds of a cold scalar query, 100,000 × 500", "cold query", "", most=1),
)


def on_disk(folder: Path, rounds: int) -> dict[str, float]:
    """The large put where the working directory lies."""
    columns, ids = batch(), names(512)
    data, bare = raw(columns), folder / "bare"
    with speed.plane_at(str(folder / "disk")) as plane:
        return interleaved(
            {
                "disk put plane": Contender(
                    lambda: plane.put("train", ids, columns), after=lambda: plane.clear("train", ids)
                ),
                "disk bare write": Contender(lambda: speed.bare_write(bare, data), after=bare.unlink),
            },
            rounds,
        )


def measured(only: set[str], rounds: int, shared: Path, disk: Path) -> dict[str, float]:
    """Medians in seconds (or bytes), by name."""
    found: dict[str, float] = {}
    if only & {"large", "small"}:
        with transferqueue() as queue:
            found |= speed.large(shared, queue, rounds) if "large" in only else {}
            found |= speed.small(shared, queue, 4 * rounds) if "small" in only else {}
    if "redis" in only:
        from tests.dataplane.servers import Server

        server = Server()
        try:
            found |= speed.on_redis(server.url, str(server.socket), rounds)
        finally:
            server.close()
    found |= on_disk(disk, rounds) if "disk" in only else {}
    found |= scale.million(shared) if "million" in only else {}
    found |= scale.cold_query(shared) if "query" in only else {}
    return found


def table(found: dict[str, float]) -> list[dict[str, object]]:
    """A row for each goal whose parts were measured."""
    rows: list[dict[str, object]] = []
    for goal in GOALS:
        if goal.over not in found or (goal.under and goal.under not in found):
            continue
        value = found[goal.over] / (found[goal.under] if goal.under else 1)
        reached = (goal.least is None or value >= goal.least) and (goal.most is None or value <= goal.most)
        asked = f"≥ {goal.least:g}" if goal.least is not None else f"≤ {goal.most:g}" if goal.most is not None else ""
        rows.append({"what": goal.what, "value": round(value, 3), "asked": asked, "reached": reached})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(PARTS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine, only = measure.machine(), set(given.only.split(","))
    with ExitStack() as stack:
        shared = Path(tempfile.mkdtemp(prefix="opd-bench-", dir="/dev/shm"))
        out = Path("runs/bench")
        out.mkdir(parents=True, exist_ok=True)
        disk = Path(tempfile.mkdtemp(prefix="disk-", dir=out))
        for folder in (shared, disk):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        found = measured(only, given.rounds, shared, disk)
        drawn = throughput.curves(shared) if "curves" in only else {}
    rows = table(found)
    result = {"machine": machine, "rounds": given.rounds, "table": rows, "medians": found, "curves": drawn}
    (out / "bench.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if drawn:
        title = (
            f"Tokens a second, three columns each, local store in memory ({machine['cpu']}, {machine['cores']} cores)"
        )
        Path("docs/throughput.svg").write_text(plot.svg(drawn, title))
    for row in rows:
        mark = " " if row["reached"] else "!"
        print(f"{mark} {row['what']:<60} {row['value']:>10,.3f}  {row['asked']}")


if __name__ == "__main__":
    main()
