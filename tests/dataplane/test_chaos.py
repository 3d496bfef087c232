"""A short form of ``make chaos``, and a store that stays as small as what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.chaos import chaos
from benchmarks.measure import resident_bytes
from dataplane import open_plane
from tests.dataplane.servers import Server, disturbance, shared_server
from tests.dataplane.stores import pipeline
from tests.dataplane.test_claims import claimed


def test_killed_writers_of_a_directory_lose_nothing_and_leave_nothing_half_done(tmp_path: Path) -> None:
    assert chaos(str(tmp_path / "plane"), kills=4, seed=1) > 4


def test_killed_writers_and_servers_lose_nothing_and_leave_nothing_half_done() -> None:
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    try:
        assert chaos(server.url, kills=4, seed=11, disturb=disturbance(server)) > 4
    finally:
        server.close()


@pytest.mark.parametrize("backend", ["local", "redis"])
def test_a_thousand_rounds_leave_memory_files_descriptors_maps_and_keys_flat(tmp_path: Path, backend: str) -> None:
    url = str(tmp_path / "plane") if backend == "local" else f"{shared_server().url}?prefix={tmp_path.name}"

    def counts() -> tuple[int, int, int]:
        keys = len(shared_server().client().keys(f"*{tmp_path.name}*")) if backend == "redis" else 0
        files = sum(len(names) for _, _, names in os.walk(tmp_path))
        return files + keys, len(os.listdir("/proc/self/fd")), len(plane.storage.blocks())

    with open_plane(url) as plane:
        pipeline(plane)
        seen = []
        for turn in range(1000):
            ids = [f"s{turn}-{k}" for k in range(3)]
            plane.put("train", ids, {"prompt": ids, "input_ids": [[turn] * 3000] * 3})
            claim = claimed(plane, "teacher")
            assert claim.batch.lengths().tolist() == [3000] * 3
            claim.commit({"teacher_logprobs": [[0.5] * 3000] * 3})
            plane.clear("train", ids)
            if turn in (50, 999):
                seen.append((counts(), resident_bytes()))
        (first, small), (last, large) = seen
        assert first == last and last[2] == 0
        assert large - small < 16 << 20
        assert Path("/proc/self/maps").read_text().count("\n") < 5000
