"""``make chaos``: writers are killed at random moments; whatever they acknowledged must be there, and nothing else.

    python -m benchmarks.chaos [--kills 200] [--seed 0]

A writer puts, claims, commits, replaces and clears, and prints a line when a verb has come back. After each SIGKILL
the store is checked, opened, and compared with the lines: an acknowledged verb reads back equal; of the one that was
under way, all or nothing is visible; leases are back. On Redis the server is also killed and restarted (with its
append-only file), and paused.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataplane import DataPlane, open_plane
from dataplane.opening import storage_at
from dataplane.upkeep.check import check

_WRITER = """
import json, random, sys
from dataplane import open_plane
url, seed, turn = sys.argv[1], int(sys.argv[2]), sys.argv[3]
draw = random.Random(seed)
plane = open_plane(url)
plane.create_partition("train", ["prompt", "input_ids", "reward"])
plane.declare_task("train", "judge", ["input_ids"], ["reward"])
mine = []
print(json.dumps(["open"]), flush=True)
for i in range(10**6):
    ids = [f"{turn}-{i}-{k}" for k in range(draw.randint(1, 4))]
    size = draw.choice([0, 3, 2000, 400_000])
    print(json.dumps(["begin put", ids, size]), flush=True)
    plane.put("train", ids, {"prompt": ids, "input_ids": [[i % 1000] * size] * len(ids)})
    print(json.dumps(["put", ids, i % 1000, size]), flush=True)
    mine += ids
    claim = plane.claim("train", "judge", limit=draw.randint(1, 5), lease_s=1000)
    if claim:
        print(json.dumps(["begin commit", claim.sample_ids]), flush=True)
        claim.commit({"reward": [float(i)] * len(claim)})
        print(json.dumps(["commit", claim.sample_ids, float(i)]), flush=True)
    plane.claim("train", "judge", limit=1)
    if draw.random() < 0.5:
        gone = [mine.pop(draw.randrange(len(mine))) for _ in range(min(3, len(mine)))]
        print(json.dumps(["begin clear", gone]), flush=True)
        plane.clear("train", gone)
        print(json.dumps(["clear", gone]), flush=True)
"""


class Model:
    """What the lines say must be there, and what may be."""

    def __init__(self) -> None:
        self.tokens: dict[str, tuple[int, int]] = {}
        self.rewards: dict[str, float] = {}
        self.cleared: set[str] = set()

    def read(self, lines: list[Any]) -> list[Any]:
        """Fold the lines of one life in; the verb that was under way at its end, or nothing."""
        for line in lines:
            if line[0] == "put":
                self.tokens.update(dict.fromkeys(line[1], (line[2], line[3])))
            elif line[0] == "commit":
                self.rewards.update(dict.fromkeys(line[1], line[2]))
            elif line[0] == "clear":
                self._forget(line[1])
        return lines[-1] if lines and lines[-1][0].startswith("begin") else []

    def _forget(self, ids: list[str]) -> None:
        for sample_id in ids:
            self.tokens.pop(sample_id, None)
            self.rewards.pop(sample_id, None)
            self.cleared.add(sample_id)

    def compare(self, plane: DataPlane, under_way: list[Any]) -> None:
        """Raise AssertionError unless *plane* holds what it must; take over what the last verb did."""
        there, last = set(plane.ids("train")), set(under_way[1]) if under_way else set()
        if under_way and under_way[0] == "begin put" and last & there:
            assert last <= there, "half a put is visible"
            for sample_id in last:
                values = plane.get("train", [sample_id], ["input_ids"]).values("input_ids")[0]
                assert len(values) == under_way[2], "a row is cut"
                self.tokens[sample_id] = (values[0] if values else 0, under_way[2])
        if under_way and under_way[0] == "begin clear" and not last & there:
            self._forget(list(last))
        assert there == set(self.tokens), f"rows differ: {sorted(there ^ set(self.tokens))[:5]}"
        self._compare_values(plane, last if under_way and under_way[0] == "begin commit" else set())
        assert plane.progress("train").tasks["judge"].claimed == 0, "a lease outlived its writer"

    def _compare_values(self, plane: DataPlane, committing: set[str]) -> None:
        ids = sorted(self.tokens)
        for start in range(0, len(ids), 64):
            some = ids[start : start + 64]
            batch = plane.get("train", some, ["prompt", "input_ids"])
            assert batch.values("prompt") == some
            wanted = [self.tokens[sample_id] for sample_id in some]
            for (value, size), tokens in zip(wanted, batch.array("input_ids"), strict=True):
                assert len(tokens) == size and (not size or set(tokens.values.to_numpy().tolist()) == {value})
        rewards = plane.get("train", ids, ["reward"], missing="null").values("reward") if ids else []
        found = {sample_id: reward for sample_id, reward in zip(ids, rewards, strict=True) if reward is not None}
        extra = set(found) - set(self.rewards)
        assert extra in (set(), committing & set(ids)), "half a commit is visible"
        self.rewards.update({sample_id: found[sample_id] for sample_id in extra})
        assert found == self.rewards


def life(url: str, seed: int, turn: int, disturb: Callable[[random.Random], None] | None = None) -> list[Any]:
    """A writer from its start to its death at a random moment; what it printed."""
    draw = random.Random(f"{seed}-{turn}")
    command = [sys.executable, "-c", _WRITER, url, str(draw.randrange(10**9)), str(turn)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    first = writer.stdout.readline()
    time.sleep(draw.random() ** 2 * 0.3)
    if disturb is not None:
        disturb(draw)
    writer.kill()
    rest = writer.stdout.read()
    writer.wait()
    writer.stdout.close()
    whole = (first + rest).rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in whole]


def chaos(url: str, kills: int, seed: int, disturb: Callable[[random.Random], None] | None = None) -> int:
    """Kill *kills* writers of the store at *url*; the number of verbs they had acknowledged."""
    model, acknowledged = Model(), 0
    for turn in range(kills):
        lines = life(url, seed, turn, disturb)
        acknowledged += sum(not line[0].startswith("begin") for line in lines)
        if not lines:
            continue
        storage = storage_at(url, create=False)
        found = check(storage)
        storage.close()
        assert found.clean, found.problems
        with open_plane(url) as plane:
            model.compare(plane, model.read(lines))
    storage = storage_at(url, create=False)
    assert check(storage).problems == []
    storage.close()
    return acknowledged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from tests.dataplane.servers import Server, disturbance

    folder = Path(tempfile.mkdtemp(prefix="opd-chaos-"))
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    try:
        done = chaos(str(folder / "plane"), given.kills, given.seed)
        print(f"local: {given.kills} writers killed, {done:,} verbs acknowledged, nothing lost")
        done = chaos(server.url, given.kills, given.seed, disturbance(server))
        print(f"redis: {given.kills} writers killed, {done:,} verbs acknowledged, nothing lost")
    finally:
        server.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
