"""A long run keeps nothing: memory, files and descriptors stay where they were once it is warm."""

from __future__ import annotations

import os
from pathlib import Path

from tests.workers.runs import run, small_config
from workers.reports.report import Reporter

PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched(Reporter):
    """Looks at this process and the run directory every tenth step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.resident_bytes: list[int] = []
        self.files: list[int] = []
        self.descriptors: list[int] = []
        self.maps: list[int] = []

    def trained(self, step, metrics) -> None:
        if step % 10 == 0:
            self.resident_bytes.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE)
            self.files.append(sum(len(files) for _, _, files in os.walk(self.directory)))
            self.descriptors.append(len(os.listdir("/proc/self/fd")))
            self.maps.append(Path("/proc/self/maps").read_text().count("\n"))


def test_memory_files_descriptors_and_maps_stay_flat_over_many_steps(checkpoints, prompt_file, tmp_path):
    watched = Watched(tmp_path / "run")
    config = small_config(
        checkpoints, prompt_file, grpo__max_num_steps=130, checkpointing__period=10, store__retention=5
    )
    run(config, tmp_path / "run", report=watched)
    warm = 3  # from step 40 on
    assert len(watched.files) == 13 and max(watched.files[warm:]) <= watched.files[warm] + 8
    assert max(watched.descriptors[warm:]) <= watched.descriptors[warm] + 2
    assert max(watched.maps[warm:]) <= watched.maps[warm] + 16
    assert watched.resident_bytes[-1] - watched.resident_bytes[warm] < 8 * 2**20
