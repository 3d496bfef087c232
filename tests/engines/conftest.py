"""One vLLM engine for all tests here; they run in an environment of their own (``make test-engines``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.conftest import checkpoints, prompt_file
from workers.engines.vllm.engine import Engine, read_checkpoint
from workers.engines.vllm.generator import VLLMGenerator

__all__ = ["checkpoints", "prompt_file"]

#: Fewer than the 81 rows of the checkpoints' heads: the last two are padding.
VOCABULARY = 79


@pytest.fixture(scope="session")
def engine(checkpoints: Path) -> Engine:
    """The student, in raw mode, for sequences of up to 200 tokens."""
    return start(checkpoints)


@pytest.fixture(scope="session")
def processed(checkpoints: Path) -> Engine:
    """The same in processed mode. It lives as long as the other: the first to go takes vLLM's process groups along."""
    return start(checkpoints, logprobs_mode="processed")


def start(checkpoints: Path, **options: str) -> Engine:
    path = checkpoints / "student"
    return Engine.start(path, dtype="float32", max_length=200, batch_size=16, vocabulary_size=VOCABULARY, **options)


@pytest.fixture
def generator(engine: Engine, checkpoints: Path) -> VLLMGenerator:
    """The student again, whatever a test before has loaded."""
    engine.take_weights(read_checkpoint(checkpoints / "student"))
    return VLLMGenerator(engine, [1])
