"""The contract over the Hugging Face engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engines import contract, training
from tests.workers.engines.models import Model, make_model
from tests.workers.engines.training import HOW
from workers.engines.hf.generator import HFGenerator
from workers.engines.hf.model import load_model
from workers.engines.hf.scorer import HFScorer
from workers.engines.hf.trainer import HFTrainer

Check = Callable[..., None]


@pytest.fixture(scope="module", params=["tied", "untied", "padded"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp(request.param), request.param)


def scorer(path: Path) -> HFScorer:
    return HFScorer.load(path, batch_size=2, vocabulary_size=97)


def trainer(path: Path) -> HFTrainer:
    model = load_model(path)
    options: dict[str, Any] = {"betas": HOW.betas, "eps": HOW.eps, "weight_decay": HOW.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), lr=HOW.lr, **options)
    return HFTrainer(
        model,
        optimizer,
        HOW.schedule,
        clip_grad_norm=HOW.clip_grad_norm,
        batch_size=2,
        micro_batch_size=HOW.rows,
        vocabulary_size=97,
    )


@pytest.mark.parametrize("check", contract.SCORER)
def test_scorer(check: Check, model: Model) -> None:
    check(scorer(model.path), model)


@pytest.mark.parametrize("check", training.TRAINER)
def test_trainer(check: Check, model: Model) -> None:
    check(trainer(model.path), model)


@pytest.mark.parametrize("check", training.WRITING)
def test_state(check: Check, model: Model, tmp_path: Path) -> None:
    check(trainer(model.path), model, tmp_path)


@pytest.mark.parametrize("check", contract.GENERATOR)
def test_generator(check: Check, model: Model) -> None:
    check(HFGenerator.load(model.path, [], max_length=40, vocabulary_size=97), model)


def test_stop_ids_and_refusals(model: Model) -> None:
    contract.an_end_token_ends_the_row_and_is_kept(
        lambda stop: HFGenerator.load(model.path, stop, max_length=40, vocabulary_size=97), model
    )
    contract.what_cannot_be_loaded_is_named(scorer, model)
