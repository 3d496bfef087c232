"""The contract of all engines over vLLM. Its heads are 32 wide here: vLLM loads these checkpoints itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.engines import contract
from tests.workers.engines.models import Model, make_model
from workers.engines.vllm.engine import Engine
from workers.engines.vllm.generator import VLLMGenerator
from workers.engines.vllm.scorer import VLLMScorer

Check = Callable[..., None]


@pytest.fixture(scope="session", params=["tied", "untied", "padded", "llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    # vLLM does not read the head_dim of a Qwen2, so that it must be hidden_size by heads
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1} if request.param == "qwen2" else {}
    return make_model(tmp_path_factory.mktemp(request.param), request.param, **heads)


#: Kept to the end: the first engine to go would take vLLM's process groups along.
ENGINES: list[Engine] = []


@pytest.fixture(scope="session")
def own_engine(model: Model) -> Engine:
    engine = Engine.start(model.path, dtype="float32", batch_size=8, vocabulary_size=97)
    ENGINES.append(engine)
    return engine


@pytest.mark.parametrize("check", contract.LOGPROBS)
def test_scorer(check: Check, own_engine: Engine, model: Model) -> None:
    check(VLLMScorer(own_engine), model)


@pytest.mark.parametrize("check", contract.GENERATOR)
def test_generator(check: Check, own_engine: Engine, model: Model) -> None:
    check(VLLMGenerator(own_engine, []), model)


def test_stop_ids(own_engine: Engine, model: Model) -> None:
    contract.an_end_token_ends_the_row_and_is_kept(lambda stop: VLLMGenerator(own_engine, stop), model)


def test_refusals(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tied")
    contract.what_cannot_be_loaded_is_named(lambda path: VLLMScorer.load(path, vocabulary_size=97), model)
