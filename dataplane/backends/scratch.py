"""Temporary folders that name their owner, so that those of killed processes can be swept."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def own_folder(kind: str) -> Path:
    """A fresh private folder ``opd-KIND-PID-…``; folders of that kind whose process is gone are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"opd-{kind}-*-*"):
        owner = left.name.split("-")[2]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"opd-{kind}-{os.getpid()}-"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
