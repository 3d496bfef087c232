"""Temporary folders go with their owner."""

from __future__ import annotations

import subprocess
import sys

from dataplane.backends.scratch import own_folder


def test_folders_of_dead_processes_are_swept_and_those_of_the_living_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"opd-plane-{gone.pid}-abc").mkdir()
    mine = own_folder("plane")
    assert own_folder("plane") != mine
    assert len(list(tmp_path.iterdir())) == 2 and mine.is_dir()
