"""What only several ranks of Megatron show, beside the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from schemas.errors import InputError
from stages.losses.counts import Counts
from stages.objectives import judge
from tests.workers.engines.contract import SEQUENCES
from tests.workers.engines.megatron_ranks import scorer, trainer
from tests.workers.engines.models import Model, make_model
from tests.workers.engines.training import COUNTS, WeighedNLL, batch
from tests.workers.spawned import on_ranks
from workers.engines.megatron.inputs import Inputs
from workers.engines.megatron.layout import Place
from workers.ranks import ALONE, Ranks

TENSOR = {"tensor_model_parallel_size": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("model"))


def one_row(ranks: Ranks, path: str) -> list[Any]:
    """A batch of one row: one of two replicas has none."""
    engine = trainer(path, ranks)
    mine = [row for part in engine.micro_batches([6]) for row in part]
    losses, metrics = judge(WeighedNLL(), engine, batch().take([0]), COUNTS)
    metrics.pop("padding_share")
    update = engine.update()
    scored = engine.logprobs(SEQUENCES[4:], 1.0)[0]
    return [mine, [losses.tolist(), metrics, update.grad_norm, scored.tolist()]]


def test_a_replica_without_rows_takes_the_step_of_the_others(model: Model, tmp_path: Path) -> None:
    [_, alone] = one_row(ALONE, str(model.path))
    found = on_ranks(2, tmp_path, one_row, str(model.path))
    assert sorted(rows for rows, _ in found) == [[], [0]]
    assert found[0][1] == found[1][1]
    assert found[0][1][2] == pytest.approx(alone[2], rel=1e-5) and found[0][1][3] == pytest.approx(alone[3], abs=1e-5)


def narrow(ranks: Ranks, path: str, folder: str, options: dict[str, Any]) -> list[Any]:
    """Steps too small for bfloat16 weights to move, on both sides of a restart."""
    engine = trainer(path, ranks, dtype="bfloat16", **options)
    engine.optimizer.lr = 1e-6
    before = {name: part.parameter.clone() for name, part in engine.parts.items()}

    def steps() -> float:
        for _ in range(3):
            judge(WeighedNLL(), engine, batch(), COUNTS)
            engine.update()
        return max(float((m - before[n].float()).abs().max()) for n, m in engine.optimizer.masters.items())

    moved = [steps()]
    engine.snapshot()(Path(folder))
    ranks.gather(b"written")
    stayed = sum(int((part.parameter == before[name]).sum()) for name, part in engine.parts.items())
    total = sum(value.numel() for value in before.values())
    moved.append(steps())
    engine.restore(Path(folder))
    moved.append(steps())
    return [moved, stayed / total, [values.tolist() for values in engine.logprobs(SEQUENCES[:1], 1.0)]]


@pytest.mark.parametrize("options", [TENSOR, {"pipeline_model_parallel_size": 2}], ids=["tensor", "pipeline"])
def test_bfloat16_weights_have_masters_that_small_steps_move(
    model: Model, tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "written").mkdir()
    arguments = (str(model.path), str(tmp_path / "written"), options)
    for (three, six, again), stayed, scored in on_ranks(2, tmp_path / "ranks", narrow, *arguments):
        assert 1e-6 < three < six == again < 1e-5
        assert stayed > 0.9
        expected = model.logprobs(SEQUENCES[0], 1.0).detach()
        torch.testing.assert_close(torch.tensor(scored[0]), expected, atol=0.3, rtol=0.1)


def of_shared_lines(ranks: Ranks, packed: bool) -> list[Any]:
    """Rows through an embedding whose lines two context ranks share, and the gradient that they come to."""
    context = Place(ranks.rank, ranks.size, dist.group.WORLD) if ranks.size > 1 else None
    inputs = Inputs.of(SEQUENCES, torch.device("cpu"), packed=packed, multiple=4, context=context)
    table = torch.nn.Parameter(torch.randn(97, 3, generator=torch.Generator().manual_seed(2)))
    states = table[inputs.arguments()["input_ids"]].transpose(0, 1)
    assert states.shape[:2] == inputs.shape
    rows = inputs.rows(states)
    (rows.tanh() * torch.arange(rows.numel()).view_as(rows).cos()).sum().backward()
    assert table.grad is not None
    if ranks.size > 1:
        dist.all_reduce(table.grad)
        table.grad /= ranks.size  # as the optimizer does
    return [rows.tolist(), table.grad.tolist()]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_lines_shared_by_context_ranks_give_rows_and_gradients_of_one(tmp_path: Path, packed: bool) -> None:
    found = on_ranks(2, tmp_path, of_shared_lines, packed)
    for values, expected in zip(found[0], of_shared_lines(ALONE, packed), strict=True):
        torch.testing.assert_close(torch.tensor(values), torch.tensor(expected))
    assert found[0] == found[1]


def refused(ranks: Ranks, path: str) -> str:
    try:
        scorer(path, ranks, context_parallel_size=2)
    except InputError as error:
        return str(error)
    return ""


def test_context_parallel_needs_transformer_engine(model: Model, tmp_path: Path) -> None:
    for said in on_ranks(2, tmp_path, refused, str(model.path)):
        assert "context_parallel_size 2 needs TransformerEngine's attention" in said


def test_a_batch_that_trains_nothing_has_no_gradient(model: Model) -> None:
    engine = trainer(model.path)
    judge(WeighedNLL(), engine, batch().with_columns({"sample_mask": [False] * 5}), Counts(1, 1))
    assert not engine.take_gradient().any()
