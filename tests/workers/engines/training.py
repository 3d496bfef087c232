"""The contract of trainers: plain functions that take a fresh engine and the model it was made of.

An engine is made with AdamW and a schedule as in ``HOW``. The truth is plain transformers and torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.batch import Batch
from stages.losses.counts import Counts
from stages.losses.reduce import Loss
from stages.objectives import judge
from stages.train import Train
from tests.workers.engines.contract import MASKS, SEQUENCES, TOLERANCE, near
from tests.workers.engines.models import Model


@dataclass(frozen=True)
class HowToTrain:
    """Options of the optimizer and cut of the batch."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_grad_norm: float = 0.5
    rows: int = 2

    def schedule(self, update: int) -> float:
        return min(1.0, update / 3)


HOW = HowToTrain()
#: One row is not trained; weights make every token count on its own.
SAMPLES = [True, True, False, True, True]


def batch() -> Batch:
    weights = [[0.3 + 0.1 * ((5 * row + t) % 7) for t in range(len(ids))] for row, ids in enumerate(SEQUENCES)]
    columns = {"input_ids": SEQUENCES, "token_mask": MASKS, "sample_mask": SAMPLES, "advantages": weights}
    return Batch.of([f"r{row}" for row in range(len(SEQUENCES))], columns)


@dataclass
class WeighedNLL:
    """−Σ weight · log-prob / tokens at temperature 0.6, each row's share of it known."""

    temperature: float = 0.6
    reads: tuple[str, ...] = ("input_ids", "token_mask", "sample_mask", "advantages")
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, engine: Any, rows: Batch, counts: Counts) -> list[Loss]:
        results: list[Loss] = []

        def loss(current_BS: torch.Tensor, micro: Batch) -> torch.Tensor:
            self.shapes.append(tuple(current_BS.shape))
            weights = micro.padded("advantages") * micro.padded("token_mask") * micro.tensor("sample_mask")[:, None]
            each = -(weights.to(current_BS.device) * current_BS).sum(1) / counts.num_tokens
            results.append(Loss(each.sum(), {"nll": float(each.detach().sum())}, each.detach().cpu()))
            return results[-1].loss

        engine.forward_backward(rows, loss, self.temperature)
        return results


COUNTS = Counts(sum(sum(mask) for mask, kept in zip(MASKS, SAMPLES, strict=True) if kept), sum(SAMPLES))


class Reference:
    """The same updates by plain transformers and torch."""

    def __init__(self, model: Model) -> None:
        self.model = Model(model.path)  # with a reference of its own, which these updates change
        self.parameters = list(self.model.reference.parameters())
        options: dict[str, Any] = {"betas": HOW.betas, "eps": HOW.eps, "weight_decay": HOW.weight_decay}
        self.optimizer = torch.optim.AdamW(self.parameters, lr=HOW.lr, **options)
        self.updates = 0

    def row_losses(self) -> torch.Tensor:
        rows = []
        for ids, mask, kept, weights in zip(SEQUENCES, MASKS, SAMPLES, batch().values("advantages"), strict=True):
            weighed = torch.tensor(weights) * torch.tensor(mask) * kept
            rows.append(-(self.model.logprobs(ids, 0.6) * weighed).sum() / COUNTS.num_tokens)
        return torch.stack(rows)

    def gradient(self) -> torch.Tensor:
        """The norm of each parameter's gradient, in their order; the gradients stay."""
        self.optimizer.zero_grad()
        self.row_losses().sum().backward()
        return torch.stack([parameter.grad.norm() for parameter in self.parameters])

    def update(self) -> tuple[torch.Tensor, float]:
        """Losses before it, and the gradient's norm."""
        self.updates += 1
        losses = self.row_losses().detach()
        self.gradient()
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, HOW.clip_grad_norm))
        for group in self.optimizer.param_groups:
            group["lr"] = HOW.lr * HOW.schedule(self.updates)
        self.optimizer.step()
        return losses, norm


def losses_of_rows_and_their_sum(engine: Any, model: Model) -> None:
    judged = judge(WeighedNLL(), engine, batch(), COUNTS)
    expected = Reference(model).row_losses().detach()
    near(judged.losses_B, expected)
    assert math.isclose(judged.metrics["nll"], float(expected.sum()), abs_tol=TOLERANCE)


def the_gradient_of_each_parameter(engine: Any, model: Model) -> None:
    judge(WeighedNLL(), engine, batch(), COUNTS)
    summary, expected = engine.take_gradient(), Reference(model).gradient()
    near(summary[0::2].float(), expected, 1e-5)
    assert not engine.update().stepped, "gradients were taken, and none are left"


def five_updates_are_those_of_torch(engine: Any, model: Model) -> None:
    reference, stage = Reference(model), Train(engine, WeighedNLL())
    for update in range(1, 6):
        output = stage(batch())
        losses, norm = reference.update()
        near(output.columns["loss"], losses)
        assert math.isclose(output.metrics["grad_norm"], norm, rel_tol=1e-3)
        assert math.isclose(output.metrics["learning_rate"], HOW.lr * HOW.schedule(update), rel_tol=1e-6)
    _has_weights(engine, reference.model)
    near(engine.logprobs(SEQUENCES[4:], 1.0)[0], reference.model.logprobs(SEQUENCES[4], 1.0).detach(), 1e-3)


def _has_weights(engine: Any, model: Model, tolerance: float = 2e-5) -> None:
    weights, expected = engine.weights(), dict(model.reference.named_parameters())
    if not engine.ranks.leader:
        return
    assert weights.keys() == expected.keys()
    for name, parameter in expected.items():
        assert weights[name].is_contiguous() and weights[name].shape == parameter.shape, name
        apart = float((weights[name] - parameter.detach()).abs().max())
        assert apart <= tolerance, f"{name}: differs by {apart}"


def weights_come_and_go_under_their_names(engine: Any, model: Model) -> None:
    _has_weights(engine, model, 0.0)
    changed = {n: (p.detach() * 1.5 if "proj" in n else p.detach()) for n, p in _parameters(model)}
    engine.load_weights(changed)
    other = Model(model.path)
    other.reference.load_state_dict(changed, strict=False)
    _has_weights(engine, other, 0.0)
    near(engine.logprobs(SEQUENCES[4:], 1.0)[0], other.logprobs(SEQUENCES[4], 1.0).detach())


def _parameters(model: Model) -> list[tuple[str, torch.Tensor]]:
    return list(model.reference.named_parameters())


def _step(engine: Any) -> float:
    judge(WeighedNLL(), engine, batch(), COUNTS)
    return float(engine.update().grad_norm)


def a_restored_trainer_takes_the_same_next_steps(engine: Any, model: Model, folder: Path) -> None:
    _step(engine), _step(engine)
    write = engine.snapshot()
    first = [_step(engine), _step(engine)]  # after the copy: what is written must not know of it
    weights = {name: tensor.clone() for name, tensor in engine.weights().items()}
    write(folder)
    engine.ranks.gather(b"written")
    engine.restore(folder)
    assert [_step(engine), _step(engine)] == first
    assert all(torch.equal(tensor, weights[name]) for name, tensor in engine.weights().items())
    assert [path.name for path in folder.rglob("*") if path.suffix in (".pt", ".bin")] == []


def a_snapshot_is_a_checkpoint_of_transformers(engine: Any, model: Model, folder: Path) -> None:
    _step(engine)
    scored = engine.logprobs(SEQUENCES, 1.0)
    engine.snapshot()(folder)
    engine.ranks.gather(b"written")
    written = Model(folder)
    for ids, values in zip(SEQUENCES, scored, strict=True):
        near(values, written.logprobs(ids, 1.0).detach())


def a_trainer_that_starts_over_takes_the_first_step_again(engine: Any, model: Model) -> None:
    norms = []
    for _ in range(2):
        norms.append(_step(engine))
        judge(WeighedNLL(), engine, batch(), COUNTS)  # a gradient that no step uses
        engine.reset(model.path)
        _has_weights(engine, model, 0.0)
    assert norms[0] == norms[1]


def a_gradient_that_is_not_finite_steps_nothing(engine: Any, model: Model) -> None:
    def broken(current_BS: torch.Tensor, micro: Batch) -> torch.Tensor:
        return (current_BS * torch.inf).sum()

    rows = batch().take([row for part in engine.micro_batches(batch().lengths().tolist()) for row in part])
    engine.forward_backward(rows, broken, 1.0)
    try:
        engine.update()
    except RuntimeError as error:
        assert "non-finite" in str(error)
    else:
        raise AssertionError("expected a RuntimeError")
    engine.take_gradient()
    _has_weights(engine, model, 0.0)


#: Each takes a fresh engine and its model; those in WRITING an empty folder too.
TRAINER = (
    losses_of_rows_and_their_sum,
    the_gradient_of_each_parameter,
    five_updates_are_those_of_torch,
    weights_come_and_go_under_their_names,
    a_trainer_that_starts_over_takes_the_first_step_again,
    a_gradient_that_is_not_finite_steps_nothing,
)
WRITING = (a_restored_trainer_takes_the_same_next_steps, a_snapshot_is_a_checkpoint_of_transformers)
