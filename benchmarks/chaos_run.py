"""``make chaos-run``: a whole run whose process tree is killed at random moments, and resumed until it is done.

    python -m benchmarks.chaos_run [--kills 10] [--seed 0] [--seconds 8] [--steps 80]

The quickstart, with its store in files and then in Redis. Afterwards every admitted prompt must have been trained
exactly once, the held-out accuracies must be those of an undisturbed run, the store must be sound, and its events must
tell what happened: each life goes on after a checkpoint and trains step after step from there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dataplane import DataPlane, open_plane
from dataplane.opening import storage_at
from dataplane.upkeep.check import check

#: What the quickstart must reach on held-out prompts.
TARGETS = {"accuracy/rev": 0.95, "accuracy/sort": 0.90}


class History(NamedTuple):
    """What the events tell: how often the store was opened, and the run went back; steps trained, also again."""

    lives: int
    returns: int
    trained: int
    steps: int


def live(arguments: Sequence[str], run_dir: Path, ended: Callable[[float], bool]) -> int | None:
    """``opd run`` until it ends by itself, or is killed with all its processes once it has *ended*; status or None.

    *ended* is asked with the time at which it was started.
    """
    command = [sys.executable, "-m", "workers.cli.app", "run", *arguments, "--run-dir", str(run_dir)]
    resume = ["--resume"] if (run_dir / "config.yaml").exists() else []
    with tempfile.TemporaryFile() as said:
        started = time.time()
        process = subprocess.Popen([*command, *resume], stdout=said, stderr=said, start_new_session=True)
        try:
            while process.poll() is None and not ended(started):
                time.sleep(0.01)
        finally:
            status = process.poll()
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)  # the group of a process started here
                process.wait()
        if status:
            said.seek(0)
            raise AssertionError(f"opd run ended with {status}:\n{said.read().decode()[-2000:]}")
    return status


def chaos(arguments: Sequence[str], run_dir: Path, kills: int, seconds: float, seed: int) -> int:
    """Kill the run *kills* times, then let it end; how many kills it lived to see.

    One kill in four comes within *seconds* of the start, the others within as many of the first weights.
    """
    moments = random.Random(seed)
    for kill in range(kills):
        begun = time.time if moments.random() < 0.25 else lambda: _published(run_dir)
        moment = Moment(begun, moments.uniform(0, seconds))
        if live(arguments, run_dir, moment) is not None:
            return kill
    assert live(arguments, run_dir, lambda started: False) == 0
    return kills


class Moment:
    """So many *seconds* after the first time *begun*() is later than the start."""

    def __init__(self, begun: Callable[[], float], seconds: float) -> None:
        self.begun = begun
        self.seconds = seconds
        self._since: float | None = None

    def __call__(self, started: float) -> bool:
        if self._since is None and self.begun() > started:
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since > self.seconds


def _published(run_dir: Path) -> float:
    """When weights were written last."""
    return max((path.stat().st_mtime for path in run_dir.glob("weights/version_*")), default=0.0)


def trained_once(plane: DataPlane, steps: int, prompts: int) -> None:
    """Raise AssertionError unless *steps* steps hold the first admissions, each once, trained or masked by a rule."""
    query = "select count(*) n, count(distinct group_id) groups, max(group_id) last from samples where step is not null"
    [found] = plane.sql(query).to_pylist()
    assert found == {"n": steps * prompts, "groups": steps * prompts, "last": f"{steps * prompts - 1:07d}"}, found
    states = plane.sql("select distinct status from samples where step is not null")["status"].to_pylist()
    assert set(states) <= {"trained", "masked"}, states
    sizes = plane.sql("select step, count(*) n from samples where step is not null group by step order by step")
    assert sizes.to_pylist() == [{"step": step, "n": prompts} for step in range(1, steps + 1)]


def explain(plane: DataPlane) -> History:
    """Follow the events. Raises AssertionError where they do not tell a history that can be."""
    at, lives, returns, trained, covered = 0, 0, 0, 0, {0}
    for event in plane.events().select(["kind", "step", "detail"]).to_pylist():
        kind, step = event["kind"], event["step"]
        if kind == "opened":
            lives += 1
        elif kind == "epoch_opened":
            at, returns = int(json.loads(event["detail"])["after_step"]), returns + 1
            assert at in covered, f"the run went back to step {at}, of which there was no checkpoint"
        elif kind == "step_trained":
            assert step == at + 1, f"step {step} was trained after step {at}"
            at, trained = step, trained + 1
        elif kind == "checkpointed":
            assert step <= at
            covered.add(step)
    return History(lives, returns, trained, at)


def sound(url: str) -> None:
    """Raise AssertionError for whatever ``opd check`` would list."""
    storage = storage_at(url, create=False)
    problems = check(storage).problems
    storage.close()
    assert not problems, problems


def reached(plane: DataPlane, steps: int) -> dict[str, float]:
    """Held-out accuracies of the last version. Raises AssertionError where one is below its target."""
    metrics = plane.steps()[steps - 1].metrics or {}
    missed = {name: metrics[name] for name, target in TARGETS.items() if metrics[name] < target}
    assert not missed, f"below the target: {missed}"
    return {name: metrics[name] for name in TARGETS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=8.0, help="longest training before a kill")
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    from tests.dataplane.servers import Server

    folder = Path(tempfile.mkdtemp(prefix="opd-chaos-run-"))
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    try:
        for name, url in (("local", str(folder / "local" / "plane")), ("redis", server.url)):
            print(f"{name}: {_report(name, url, folder / name, given)}", flush=True)
    finally:
        server.close()
        shutil.rmtree(folder)


def _report(name: str, url: str, run_dir: Path, given: argparse.Namespace) -> str:
    """Put one run through it; a line of numbers."""
    settings = ["quickstart", f"grpo.max_num_steps={given.steps}", "checkpointing.period=5", f"run.seed={given.seed}"]
    began = time.monotonic()
    store = [f"store.url={url}"] if name == "redis" else []
    kills = chaos([*settings, *store], run_dir, given.kills, given.seconds, given.seed)
    sound(url)
    with open_plane(url, mode="r") as plane:
        trained_once(plane, given.steps, 256)
        history, accuracies = explain(plane), reached(plane, given.steps)
    assert history.steps == given.steps
    again = history.trained - history.steps
    return (
        f"{kills} kills, {history.lives} lives that opened the store, {history.returns} returns to a checkpoint, "
        f"{again} of {history.steps} steps trained again, every prompt once; {accuracies}; "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
