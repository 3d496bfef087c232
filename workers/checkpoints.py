"""Checkpoints: a directory that transformers can load, with optimizer and RNG state; complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

STATE_FILE = "trainer_state.json"


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step_{step:06d}"


def save_checkpoint(directory: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Have *write* fill a temporary directory, then give it its name. A failure leaves nothing behind."""
    final = checkpoint_path(directory, step)
    partial = directory / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        (partial / STATE_FILE).write_text(json.dumps({"step": step, "weight_version": step}))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def is_complete(path: Path) -> bool:
    """Whether ``save_checkpoint`` finished there."""
    return (path / STATE_FILE).is_file()


def drop_checkpoints(directory: Path, keep: int | None) -> None:
    """Remove all but the *keep* newest; None keeps all."""
    if keep is None:
        return
    for path in sorted(directory.glob("step_*"))[:-keep]:
        shutil.rmtree(path)
