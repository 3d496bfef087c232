"""Timing side by side: every contender takes its turn in each round, and medians are compared."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Contender(NamedTuple):
    """``run`` is timed; ``before`` and ``after`` are not."""

    run: Callable[[], Any]
    before: Callable[[], Any] = lambda: None
    after: Callable[[], Any] = lambda: None


def interleaved(contenders: dict[str, Contender], rounds: int) -> dict[str, float]:
    """Median seconds of each, over *rounds* in which they take turns; one round before is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            contender.before()
            gc.collect(0)
            began = time.perf_counter()
            result = contender.run()
            took = time.perf_counter() - began
            del result
            contender.after()
            if turn:
                seconds[name].append(took)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """CPU model, cores and memory; no name of the host."""
    with open("/proc/cpuinfo") as file:
        models = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    load = os.getloadavg()[0]
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
    }


def resident_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
