"""The contract over the Megatron engines: in one process, and over tensor, pipeline and data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.engines import contract, training
from tests.workers.engines.megatron_ranks import scorer, trainer
from tests.workers.engines.models import Model, make_model
from tests.workers.spawned import on_ranks
from workers.ranks import Ranks

Check = Callable[..., None]

TENSOR = {"tensor_model_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2}
PACKED = {"sequence_packing": True}


@pytest.fixture(scope="module", params=["tied", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("check", contract.SCORER)
def test_scorer(check: Check, model: Model) -> None:
    check(scorer(model.path), model)


@pytest.mark.parametrize("check", training.TRAINER)
def test_trainer(check: Check, model: Model) -> None:
    check(trainer(model.path, **PACKED), model)


@pytest.mark.parametrize("check", training.WRITING)
def test_state(check: Check, model: Model, tmp_path: Path) -> None:
    check(trainer(model.path), model, tmp_path)


def test_refusals(model: Model) -> None:
    contract.what_cannot_be_loaded_is_named(scorer, model)


def keeps_the_contract(ranks: Ranks, path: str, folder: str, options: dict[str, Any]) -> bool:
    """Every check, on every rank."""
    model = Model(Path(path))
    engine = scorer(path, ranks, **{name: value for name, value in options.items() if name != "gradient_checkpointing"})
    for check in contract.SCORER:
        check(engine, model)
    for check in training.TRAINER:
        check(trainer(path, ranks, **options), model)
    for check in training.WRITING:
        written = Path(folder) / check.__name__
        written.mkdir(exist_ok=True)
        check(trainer(path, ranks, **options), model, written)
    return True


@pytest.mark.parametrize(
    ("variant", "size", "options"),
    [
        pytest.param("tied", 2, TENSOR, id="tensor, tied"),
        pytest.param("untied", 2, {**TENSOR, **PACKED}, id="tensor, untied, packed"),
        pytest.param("padded", 2, TENSOR, id="tensor, padded head"),
        pytest.param("qwen2", 2, TENSOR, id="tensor, biases"),
        pytest.param("tied", 2, PIPELINE, id="pipeline, tied"),
        pytest.param("untied", 2, {**PIPELINE, **PACKED}, id="pipeline, untied, packed"),
        pytest.param("padded", 2, {}, id="data, padded head"),
        pytest.param("tied", 4, TENSOR | PIPELINE | {"gradient_checkpointing": True}, id="tensor and pipeline"),
    ],
)
def test_over_ranks(variant: str, size: int, options: dict[str, Any], tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", variant).path
    folder = tmp_path / "written"
    folder.mkdir()
    assert all(on_ranks(size, tmp_path / "ranks", keeps_the_contract, str(path), str(folder), options))
