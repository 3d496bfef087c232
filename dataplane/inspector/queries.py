"""A visitor's query, in a process of its own whose memory is limited: whatever it asks for, the page goes on.

The child reads one JSON object from standard input and writes one to standard output:
``{"url", "query", "rows", "timeout_s"}`` → ``{"columns", "types", "rows", "more"}`` or ``{"error"}``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

#: Seconds and rows of one query, and bytes of address space beyond the store's own maps.
TIMEOUT_S, ROWS, MEMORY_BYTES = 30.0, 1000, 3 * 2**30

#: Seconds for a child to start, and to stop by itself when its time is over.
_GRACE_S = 10.0


def ask_apart(url: str, query: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The first ``ROWS`` rows of *query* over the store at *url*, or ``{"error": …}``."""
    request = {"url": url, "query": query, "rows": ROWS, "timeout_s": timeout_s}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dataplane.inspector.queries"],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout_s + _GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"query: stopped after {timeout_s:g} s; narrow it"}
    if done.returncode:
        return {"error": "query: needs more memory than it may use here; narrow or aggregate it"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "seconds": time.monotonic() - started}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the child does."""
    from dataplane import open_plane
    from dataplane.inspector.plain import plain
    from dataplane.sql import Limits, stream_sql
    from schemas.errors import OpdError

    try:
        with open_plane(request["url"], mode="r") as plane:
            _limit_memory(sum(plane.blocks()["bytes"].to_pylist()))
            limits = Limits(timeout_s=request["timeout_s"], memory_bytes=MEMORY_BYTES // 3, threads=2)
            with stream_sql(plane, request["query"], limits=limits) as batches:
                rows: list[list[Any]] = []
                for batch in batches:
                    columns = [column.to_pylist() for column in batch.slice(0, request["rows"] + 1 - len(rows)).columns]
                    rows += [list(row) for row in zip(*columns, strict=True)]
                    if len(rows) > request["rows"]:
                        break
                names, types = batches.schema.names, [str(type_) for type_ in batches.schema.types]
    except OpdError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "query: needs more memory than it may use here; narrow or aggregate it"}
    more = len(rows) > request["rows"]
    return {"columns": names, "types": types, "rows": plain(rows[: request["rows"]]), "more": more}


def _limit_memory(store_bytes: int) -> None:
    """Bound what this process may address: what it has, the store's maps twice over, and the allowance."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    allowed = now + 2 * store_bytes + MEMORY_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (allowed if hard < 0 else min(allowed, hard), hard))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin)), allow_nan=False))
