"""Megatron-core without CUDA.

It asks CUDA for two things even where everything is on the CPU: the current device, on which it makes buffers, and
the random states that its tracker forks around dropout. Inside ``megatron_code`` the device is the CPU, and the
tracker does nothing: no model here drops anything out, and no weight is drawn at random. Outside, and where CUDA
is there, nothing is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from workers.engines.megatron.library import quiet, random_states


class NothingRandom:
    """A tracker of random states for a model that draws nothing."""

    def is_initialized(self) -> bool:
        return True

    @contextmanager
    def fork(self, name: str = "") -> Iterator[None]:
        yield


@contextmanager
def megatron_code() -> Iterator[None]:
    """For the length of a build, a forward or a backward pass: without its warnings, and on the CPU if need be."""
    with quiet(), _cpu_where_no_cuda():
        yield


@contextmanager
def _cpu_where_no_cuda() -> Iterator[None]:
    if torch.cuda.is_available():
        yield
        return
    before = (
        torch.cuda.current_device,
        random_states._CUDA_RNG_STATE_TRACKER,
        random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED,
    )
    torch.cuda.current_device = _cpu  # type: ignore[assignment]
    random_states._CUDA_RNG_STATE_TRACKER = NothingRandom()
    random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    try:
        yield
    finally:
        torch.cuda.current_device = before[0]
        random_states._CUDA_RNG_STATE_TRACKER, random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED = before[1:]


def _cpu() -> torch.device:
    return torch.device("cpu")
