"""The quickstart on every engine, for real: ``python -m benchmarks.engines [NAME …]``, all of them without a name.

Each run must reach the quickstart's accuracies; what it took and reached is printed, and kept in
``runs/engines/results.json``. The run with a Redis store brings its own server.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from dataplane import open_plane
from tests.dataplane.servers import Server

FOLDER = Path("runs/engines")
APART = "on_policy_distillation.non_colocated_teachers"
OWN = [f"{APART}.enabled=true", f"{APART}.default_teacher_cfg.gpus_per_node=0"]

#: Recipe and changes by name.
RUNS = {
    "hf": ["quickstart"],
    "vllm-generator": ["quickstart_vllm"],
    "megatron-trainer-tp2": ["quickstart_megatron"],
    "megatron-teachers": [
        *("quickstart", *OWN, f"{APART}.default_teacher_cfg.engine=megatron"),
        f"{APART}.default_teacher_cfg.precision=fp32",
    ],
    "ddp2-trainer": ["quickstart_ddp"],
    "stack": ["quickstart_stack"],
}
#: Greedy accuracy on held-out prompts that every run must reach.
TARGETS = {"accuracy/rev": 0.95, "accuracy/sort": 0.90}


def run(name: str) -> dict[str, float]:
    """Run *name* from nothing; its last validation, and the seconds of its steps."""
    directory = FOLDER / name
    shutil.rmtree(directory, ignore_errors=True)
    with ExitStack() as stack:
        changes, store = RUNS[name][1:], str(directory / "plane")
        if name == "stack":
            server = Server("--maxmemory-policy", "noeviction")
            stack.callback(server.close)
            store = f"{server.url}?prefix=stack"
            changes = [*changes, f"store.url={store}"]
        command = [sys.executable, "-m", "workers.cli.app", "run", RUNS[name][0], *changes]
        began = time.monotonic()
        subprocess.run([*command, "--run-dir", str(directory)], check=True)
        wall_s = time.monotonic() - began
        with open_plane(store, mode="r") as plane:
            last = plane.sql("select detail from events where kind = 'validated' order by seq desc limit 1").to_pylist()
            step_s = plane.sql("select median(wall_s) as s from steps").to_pylist()[0]["s"]
    return {"wall_s": wall_s, "step_s": step_s, **json.loads(last[0]["detail"])}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in sys.argv[1:] or RUNS:
        results[name] = run(name)
        (FOLDER / "results.json").write_text(json.dumps(results, indent=1))
        print(name, {key: round(value, 3) for key, value in results[name].items() if isinstance(value, float)})
    missed = [name for name, got in results.items() if any(got[key] < least for key, least in TARGETS.items())]
    if missed:
        sys.exit(f"below the quickstart's accuracies: {', '.join(missed)}")


if __name__ == "__main__":
    main()
