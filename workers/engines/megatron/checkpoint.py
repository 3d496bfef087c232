"""Reading and writing Hugging Face checkpoints tensor by tensor, without transformers' models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from schemas.errors import InputError
from workers.engines.hf.head import tensor_files

#: What describes the model beside its tensors; copied as it is.
DESCRIPTION = ("config.json", "generation_config.json")


class Checkpoint:
    """The tensors of a directory by name, each read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = tensor_files(self.path)
        self._open: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.files:
            raise InputError(f"checkpoint {str(self.path)!r}: no tensor {name!r} there, which its config.json implies")
        file = self.files[name]
        if file not in self._open:
            self._open[file] = safe_open(self.path / file, framework="pt")
        tensor: Tensor = self._open[file].get_tensor(name)
        return tensor


def write_checkpoint(directory: Path, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """*tensors* as transformers writes them, described as the model at *source* is."""
    from huggingface_hub import save_torch_state_dict

    for name in DESCRIPTION:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, directory / name)
    save_torch_state_dict(dict(tensors), directory)
