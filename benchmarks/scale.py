"""How the store bears a million rows: claims, memory, opening; and a cold query."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.batch import names
from benchmarks.measure import resident_bytes
from dataplane import DataPlane, open_plane

#: Five blocks for each row, 14 columns in all, one for each of five tasks.
_BLOCKS = [[f"c{task}_{column}" for column in range(count)] for task, count in enumerate((3, 3, 3, 3, 2))]
_ROWS_A_PUT = 4096


def filled(folder: Path, rows: int) -> DataPlane:
    """*rows* with 14 columns in five blocks, and five declared tasks."""
    import pyarrow as pa

    plane = open_plane(folder)
    plane.create_partition("train", {name: pa.float32() for block in _BLOCKS for name in block})
    for task, block in enumerate(_BLOCKS):
        plane.declare_task("train", f"t{task}", block)
    ids = names(rows)
    for start in range(0, rows, _ROWS_A_PUT):
        part = ids[start : start + _ROWS_A_PUT]
        for block in _BLOCKS:
            plane.put("train", part, {name: np.zeros(len(part), np.float32) for name in block})
    return plane


def claim_seconds(plane: DataPlane, claims: int = 150) -> float:
    """Median of a claim of 64 rows of a declared task, released again."""
    seconds = []
    for _ in range(claims):
        began = time.perf_counter()
        claim = plane.claim("train", "t2", limit=64)
        seconds.append(time.perf_counter() - began)
        assert claim is not None
        claim.release()
    return statistics.median(seconds[claims // 5 :])


def million(folder: Path, rows: int = 1_000_000) -> dict[str, float]:
    """Claim latency at 1,000 rows and at *rows*, catalog bytes a row, seconds to open."""
    with filled(folder / "thousand", 1000) as plane:
        few = claim_seconds(plane)
    before = resident_bytes()
    with filled(folder / "million", rows) as plane:
        size = resident_bytes() - before
        many = claim_seconds(plane)
        again = few
    with open_plane(folder / "thousand") as plane:
        again = claim_seconds(plane)
    began = time.perf_counter()
    open_plane(folder / "million", mode="r").close()
    opened = time.perf_counter() - began
    shutil.rmtree(folder / "million")
    return {
        "claim at 1,000 rows": (few + again) / 2,
        "claim at 1,000,000 rows": many,
        "catalog bytes a row": size / rows,
        "open 1,000,000 rows": opened,
    }


def cold_query(folder: Path, rows: int = 100_000, tokens: int = 500) -> dict[str, float]:
    """Seconds of a scalar query in a new process over merged steps, import of DuckDB and opening included or not."""
    plane = open_plane(folder / "query")
    plane.create_partition("train", ["agent", "reward", "input_ids", "teacher_logprobs"])
    ids, step_rows = names(rows), 4000
    for step, start in enumerate(range(0, rows, step_rows), 1):
        part = ids[start : start + step_rows]
        offsets = np.arange(len(part) + 1) * tokens
        for at in range(0, len(part), 250):
            some, cut = part[at : at + 250], offsets[: len(part[at : at + 250]) + 1]
            plane.put("train", some, {"agent": ["math"] * len(some), "input_ids": (np.zeros(cut[-1], np.int32), cut)})
            plane.put("train", some, {"teacher_logprobs": (np.zeros(cut[-1], np.float32), cut)})
            plane.put("train", some, {"reward": np.ones(len(some), np.float32)})
        plane.seal(step, part)
        plane.record_trained(step, {})
        plane.record_checkpoint(step, "c")
        plane.retain()
    plane.close()
    query = "select agent, avg(reward) from samples group by agent"
    code = (
        "import sys, time; import duckdb, dataplane.sql; from dataplane import open_plane\n"
        "began = time.perf_counter()\n"
        f"plane = open_plane(sys.argv[1], mode='r'); opened = time.perf_counter(); plane.sql({query!r})\n"
        "print(opened - began, time.perf_counter() - began)"
    )
    found = [
        subprocess.run([sys.executable, "-c", code, str(folder / "query")], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds = [tuple(map(float, result.stdout.split())) for result in found]
    shutil.rmtree(folder / "query")
    return {
        "cold query": statistics.median(total for _, total in seconds),
        "of it opening": statistics.median(opened for opened, _ in seconds),
    }
