"""Throughput against batch size, row length and number of writers, and the picture of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.batch import batch, names
from benchmarks.speed import plane_at, torch_of
from dataplane import DataPlane

BATCH_SIZES = (1, 4, 16, 64, 256, 1024, 4096)
LENGTHS = (16, 64, 256, 1024, 4096, 16384, 32768)
WRITERS = (1, 2, 4)
_SECONDS = 0.4


def _rates(plane: DataPlane, rows: int, length: int) -> tuple[float, float]:
    """Tokens a second put and got."""
    columns, ids = batch(rows, length, length), names(rows)
    put = got = 0.0
    rounds = 0
    until = time.perf_counter() + _SECONDS
    while time.perf_counter() < until or not rounds:
        began = time.perf_counter()
        plane.put("train", ids, columns)
        middle = time.perf_counter()
        torch_of(plane, ids)
        got += time.perf_counter() - middle
        put += middle - began
        plane.clear("train", ids)
        rounds += 1
    tokens = rounds * rows * length
    return tokens / put, tokens / got


def curves(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Tokens a second (three columns each): against batch size at 256 tokens, length at 64 rows, and writers."""
    with plane_at(str(folder / "curves")) as plane:
        by_rows = [_rates(plane, rows, 256) for rows in BATCH_SIZES]
        by_length = [_rates(plane, 64, length) for length in LENGTHS]
        writers = [_with_writers(plane, count) for count in WRITERS]
    return {
        "rows": {"x": list(BATCH_SIZES), "put": [p for p, _ in by_rows], "get": [g for _, g in by_rows]},
        "tokens a row": {"x": list(LENGTHS), "put": [p for p, _ in by_length], "get": [g for _, g in by_length]},
        "writing processes": {"x": list(WRITERS), "put": writers},
    }


_WRITER = """
import sys, time
from benchmarks.batch import batch, names
from dataplane import connect
plane, columns = connect(sys.argv[1]), batch(64, 1024, 1024)
print("ready", flush=True); input()
until, rounds = time.perf_counter() + 1.0, 0
while time.perf_counter() < until:
    ids = names(64, f"w{sys.argv[2]}r{rounds}")
    plane.put("train", ids, columns); plane.clear("train", ids); rounds += 1
print(rounds)
"""


def _with_writers(plane: DataPlane, count: int) -> float:
    """Tokens a second put by *count* processes together."""
    command = [sys.executable, "-c", _WRITER, plane.address]
    pipe = subprocess.PIPE
    writers = [subprocess.Popen([*command, str(n)], stdin=pipe, stdout=pipe, text=True) for n in range(count)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    rounds = sum(int(out) for out, _ in _all_at_once(writers))
    return rounds * 64 * 1024 / 1.0


def _all_at_once(writers: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    return [writer.communicate() for writer in writers]
