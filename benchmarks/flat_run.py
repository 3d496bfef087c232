"""``make flat``: a few hundred steps of the quickstart on Ray; what every process of it holds on to, early and late.

    python -m benchmarks.flat_run [--steps 300]

Rows are cleared ten steps after their checkpoint and two checkpoints stay, so that nothing has a reason to grow.
Prints resident memory and open files by process, and the files of the run, at a fifth of the steps and at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: What a process may grow by from a fifth of the steps to the end.
ALLOWED_BYTES = 48 * 2**20


class Held(NamedTuple):
    """Of one process."""

    resident_bytes: int
    descriptors: int


def tree(root: int) -> Iterator[int]:
    """Ids of *root* and all its descendants."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def held(root: int) -> dict[str, Held]:
    """What each process of the tree holds, by a name that stays the same."""
    found: dict[str, Held] = {}
    for pid in tree(root):
        with suppress(OSError):
            name = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].rsplit("/", 1)[-1] or "?"
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            found[f"{name} {pid}"] = Held(resident, len(os.listdir(f"/proc/{pid}/fd")))
    return found


def steps_done(run_dir: Path) -> int:
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def files(run_dir: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(run_dir))


def watch(process: subprocess.Popen[bytes], run_dir: Path, step: int) -> tuple[dict[str, Held], int]:
    """What is held once *step* steps are done."""
    while steps_done(run_dir) < step:
        assert process.poll() is None, "the run ended early; run `opd run quickstart` to see why"
        time.sleep(0.1)
    return held(process.pid), files(run_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    run_dir = Path(tempfile.mkdtemp(prefix="opd-flat-")) / "run"
    settings = [f"grpo.max_num_steps={given.steps}", "checkpointing.period=10", "store.retention=10"]
    command = [sys.executable, "-m", "workers.cli.app", "run", "quickstart", *settings, "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        early, early_files = watch(process, run_dir, given.steps // 5)
        late, late_files = watch(process, run_dir, given.steps - 3)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(run_dir.parent)
    report(early, late)
    print(f"files in the run directory: {early_files} → {late_files}")


def report(early: dict[str, Held], late: dict[str, Held]) -> None:
    """A line a process that was there both times. Raises AssertionError for one that grew."""
    for name in sorted(early.keys() & late.keys()):
        (before, few), (after, many) = early[name], late[name]
        print(f"{name:40} {before / 2**20:8.1f} → {after / 2**20:8.1f} MiB   {few:4} → {many:4} descriptors")
    grown = [name for name in early.keys() & late.keys() if late[name][0] - early[name][0] > ALLOWED_BYTES]
    assert not grown, f"grew by more than {ALLOWED_BYTES / 2**20:.0f} MiB: {', '.join(grown)}"


if __name__ == "__main__":
    main()
