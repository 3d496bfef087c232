"""Checkpoints: a directory that transformers can load, with optimizer and RNG state; complete or absent.

They are written beside training: the state is copied at once, a thread of each rank writes its part into a directory
with another name, and the leader gives it its own when all parts are there.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from dataplane.backends.files import fsync_directory
from schemas.errors import DeadlinePassed, JobFailed, OpdError
from workers.ranks import ALONE, Ranks

STATE_FILE = "trainer_state.json"
#: Seconds that other ranks may take longer to write than the leader.
PARTS_S = 600.0


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step_{step:06d}"


def is_complete(path: Path) -> bool:
    """Whether all of a checkpoint is there."""
    return (path / STATE_FILE).is_file()


class CheckpointWriter:
    """Writes one checkpoint at a time, in *directory*, from a thread. A *durable* one survives a power cut."""

    def __init__(self, directory: Path, ranks: Ranks = ALONE, *, durable: bool = False) -> None:
        self.directory = directory
        self.ranks = ranks
        self.durable = durable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: dict[int, Future[Path]] = {}

    def begin(self, step: int, write: Callable[[Path], None]) -> None:
        """Have *write* fill the directory of *step*; returns as soon as the one before is whole. All ranks call it.

        Raises JobFailed when that one could not be written.
        """
        for earlier in [step for step, writing in self._writing.items() if writing.exception() is not None]:
            self._result(earlier)
        partial = self.directory / f".step_{step:06d}.partial"
        if self.ranks.leader:
            for left in self.directory.glob(".*.partial"):
                shutil.rmtree(left)
            partial.mkdir(parents=True)
        self.ranks.share()  # nobody writes before the directory is there
        self._writing[step] = self._thread.submit(self._write, step, partial, write)

    def whole(self, *, wait: bool = False) -> list[tuple[int, str]]:
        """(step, path) of what was finished since the last call, of everything begun if *wait*.

        Raises JobFailed, naming the step, when one could not be written; nothing of it is left.
        """
        ended = [step for step, writing in self._writing.items() if wait or writing.done()]
        return [(step, str(self._result(step))) for step in ended]

    def _result(self, step: int) -> Path:
        try:
            return self._writing.pop(step).result()
        except OpdError:
            raise
        except Exception as error:  # a full disk is an error of another kind in every library that writes here
            raise JobFailed(
                f"checkpoint of step {step}: cannot be written in {self.directory}: {error}; once that is mended, "
                "go on with --resume"
            ) from error

    def _write(self, step: int, partial: Path, write: Callable[[Path], None]) -> Path:
        final = checkpoint_path(self.directory, step)
        try:
            write(partial)
            if self.ranks.leader:
                self._await_parts(partial)
                (partial / STATE_FILE).write_text(json.dumps({"step": step, "weight_version": step}))
                if self.durable:
                    _flush(partial)
                shutil.rmtree(final, ignore_errors=True)
                partial.rename(final)
                if self.durable:
                    fsync_directory(self.directory)
            else:
                _done(partial, self.ranks.rank).touch()
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final

    def _await_parts(self, partial: Path) -> None:
        """Wait until every other rank has written its part."""
        parts = [_done(partial, rank) for rank in range(1, self.ranks.size)]
        deadline = time.monotonic() + PARTS_S
        while not all(part.exists() for part in parts):
            if time.monotonic() > deadline or not partial.exists():
                lacking = ", ".join(part.name.removeprefix(".") for part in parts if not part.exists())
                raise DeadlinePassed(f"checkpoint {partial}: not whole, these ranks did not write: {lacking}")
            time.sleep(0.02)
        for part in parts:
            part.unlink()


def _flush(directory: Path) -> None:
    """Every file of *directory*, and their names, to the disk."""
    for path in (path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    fsync_directory(directory)


def _done(partial: Path, rank: int) -> Path:
    return partial / f".rank_{rank}"


def drop_checkpoints(directory: Path, recorded: Collection[int], keep: int | None, best: int | None = None) -> None:
    """Remove all that are older than the *keep* newest of the *recorded* steps, but that of *best*; None keeps all.

    What is there and not recorded yet counts for nothing: the run might never get to use it.
    """
    if keep is None:
        return
    newest = sorted(step for step in recorded if is_complete(checkpoint_path(directory, step)))[-keep:]
    older = [path for path in directory.glob("step_*") if newest and path < checkpoint_path(directory, newest[0])]
    for path in older:
        if best is None or path != checkpoint_path(directory, best):
            (path / STATE_FILE).unlink(missing_ok=True)  # first of all it stops being complete
            shutil.rmtree(path)
