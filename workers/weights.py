"""Published weights: one safetensors file a version, complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.errors import CorruptData, JobFailed

#: Name under which a version's probe (see :mod:`workers.doctor.probe`) lies beside its tensors.
PROBE = "probe.logprobs"


def publish_weights(directory: Path, version: int, tensors: dict[str, torch.Tensor], probe: torch.Tensor) -> Path:
    """Write *version* and the trainer's scores of the fixed sequences; the file's path. Raises JobFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob("*.partial"):  # of a process that was killed
        left.unlink(missing_ok=True)
    path = directory / f"version_{version:06d}.safetensors"
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        save_file({**tensors, PROBE: probe}, partial, metadata={"weight_version": str(version)})
        partial.rename(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise JobFailed(
            f"weights of version {version}: cannot be written in {directory}: {error}; once that is mended, go on "
            "with --resume"
        ) from error
    return path


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of a published version, and its probe."""
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise CorruptData(f"published weights {path}: the file is gone; publish that version again") from None
    return tensors, tensors.pop(PROBE)


def drop_weights(directory: Path, before: int) -> None:
    """Remove the files of versions older than *before*."""
    for path in directory.glob("version_*.safetensors"):
        if int(path.stem.removeprefix("version_")) < before:
            path.unlink(missing_ok=True)
