"""Optimizer state in a checkpoint: a file for each tensor and pipeline rank, which only the same ranks can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.errors import CorruptData
from workers.engines.megatron.layout import Layout

#: Folder of the files in a checkpoint; beside the model's they would be taken for its tensors.
FOLDER = "optimizer"


def _file(directory: Path, layout: Layout) -> Path:
    return directory / FOLDER / f"pipeline{layout.pipeline.rank}-tensor{layout.tensor.rank}.safetensors"


def _sizes(layout: Layout) -> dict[str, str]:
    return {"tensor": str(layout.tensor.size), "pipeline": str(layout.pipeline.size)}


def write_state(directory: Path, state: Mapping[str, Tensor], layout: Layout) -> None:
    """This rank's *state*."""
    file = _file(directory, layout)
    file.parent.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file, metadata=_sizes(layout))


def read_state(directory: Path, layout: Layout) -> dict[str, Tensor]:
    """What ``write_state`` wrote. Raises CorruptData where other ranks or another engine did."""
    file = _file(directory, layout)
    if not file.is_file():
        raise CorruptData(
            f"checkpoint {str(directory)!r}: no {FOLDER}/{file.name} there; resume with the trainer engine and the "
            "tensor and pipeline parallel sizes that wrote it"
        )
    with safe_open(file, framework="pt") as opened:
        wrote = opened.metadata()
    if wrote != _sizes(layout):
        raise CorruptData(
            f"checkpoint {str(directory)!r}: its optimizer state is of parallel sizes {wrote}, got {_sizes(layout)}; "
            "resume with the sizes that wrote it"
        )
    state: dict[str, Tensor] = load_file(file)
    return state
