"""What every engine must do, whatever runs it: plain functions that take an engine and the checkpoint it is of.

Another engine joins with a test module that makes it and runs ``SCORER``, ``TRAINER`` or ``GENERATOR`` (see
test_contract_hf.py); engines over several ranks run them in every rank. The truth is plain transformers, one
sequence at a time, in float32.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.batch import Batch
from schemas.errors import InputError
from stages.losses.counts import Counts
from stages.losses.reduce import Loss
from stages.objectives import judge
from stages.protocols import Ask, Sampling
from stages.train import Train
from tests.workers.engines.models import Model

#: Nats, logits and shares by which an engine may differ in float32.
TOLERANCE = 1e-4

#: Without the pad id: transformers takes no gradient of its embedding.
SEQUENCES = [
    [2, 33, 29, 57, 96, 1],
    [3, 44],
    [5, 33, 29, 32, 34, 67, 1, 90, 11],
    [7],
    [2, 44, 9, 95, 50, 51, 52, 53, 54, 55, 56, 57, 58, 60, 59],
]
MASKS = [
    [False, False, True, True, False, True],
    [False, True],
    [False] * 9,
    [False],
    [False] * 3 + [True] * 10 + [False, True],
]


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


# -- scorers: ``load(path)`` gave *engine* ---------------------------------------------------------


@torch.no_grad()
def logprobs_are_those_of_transformers(engine: Any, model: Model) -> None:
    for temperature in (1.0, 0.6):
        scored = engine.logprobs(SEQUENCES, temperature)
        for ids, values in zip(SEQUENCES, scored, strict=True):
            assert values.dtype == torch.float32 and values.device.type == "cpu" and values[0] == 0
            near(values, model.logprobs(ids, temperature))


@torch.no_grad()
def logits_are_those_each_token_was_drawn_from(engine: Any, model: Model) -> None:
    for ids, logits in zip(SEQUENCES, engine.logits(SEQUENCES), strict=True):
        assert not logits[0].any()
        near(logits, model.logits(ids))


@torch.no_grad()
def the_top_k_is_exact_and_of_masked_tokens_alone(engine: Any, model: Model) -> None:
    for ids, mask, top in zip(SEQUENCES, MASKS, engine.top_k(SEQUENCES, MASKS, 5, 0.6), strict=True):
        logits = model.logits(ids)[torch.tensor(mask)] / 0.6
        assert top.ids.shape == top.logprobs.shape == (sum(mask), 5) and top.logsumexp.shape == (sum(mask),)
        assert top.ids.tolist() == logits.topk(5).indices.tolist()
        near(top.logprobs, logits.log_softmax(-1).topk(5).values)
        near(top.logsumexp, logits.logsumexp(-1))


@torch.no_grad()
def a_payload_of_states_goes_through_the_head(engine: Any, model: Model) -> None:
    scores = engine.score(SEQUENCES, MASKS, 0.6, Ask("hidden_states", top_k=3))
    for ids, mask, score in zip(SEQUENCES, MASKS, scores, strict=True):
        near(score.logprobs, model.logprobs(ids, 0.6))
        assert not score.payload[0].any()
        near(score.payload[1:], model.states(ids)[:-1])
        assert score.top.ids.tolist() == model.logits(ids)[torch.tensor(mask)].topk(3).indices.tolist()


@torch.no_grad()
def a_payload_of_logits_has_the_asked_type(engine: Any, model: Model) -> None:
    for ids, score in zip(SEQUENCES, engine.score(SEQUENCES, MASKS, 1.0, Ask("logits", "float16")), strict=True):
        assert score.payload.dtype == torch.float16 and score.top is None
        near(score.payload.float(), model.logits(ids), 5e-3)


def the_head_makes_the_logits(engine: Any, model: Model) -> None:
    assert engine.head_error(SEQUENCES) < TOLERANCE


def a_row_scores_the_same_alone_and_no_rows_score_nothing(engine: Any, model: Model) -> None:
    together = engine.logprobs(SEQUENCES, 1.0)
    near(engine.logprobs(SEQUENCES[2:3], 1.0)[0], together[2])
    assert engine.logprobs([], 1.0) == []


def limits_are_the_models(engine: Any, model: Model) -> None:
    assert (engine.max_length, engine.vocabulary_size) == (256, model.vocabulary)


#: Of scorers that give log-probs alone.
LOGPROBS = (
    logprobs_are_those_of_transformers,
    a_row_scores_the_same_alone_and_no_rows_score_nothing,
    limits_are_the_models,
)
#: Of a PayloadScorer.
SCORER = (
    *LOGPROBS,
    logits_are_those_each_token_was_drawn_from,
    the_top_k_is_exact_and_of_masked_tokens_alone,
    a_payload_of_states_goes_through_the_head,
    a_payload_of_logits_has_the_asked_type,
    the_head_makes_the_logits,
)


def what_cannot_be_loaded_is_named(load: Callable[[Path], Any], model: Model) -> None:
    """The refusals of every engine that loads checkpoints."""
    for prepare, said in ((_nothing, "no config.json there"), (_capped, "final_logit_softcapping is 30")):
        with tempfile.TemporaryDirectory() as folder:
            prepare(model.path, Path(folder))
            try:
                load(Path(folder))
            except InputError as error:
                assert said in str(error), error
            else:
                raise AssertionError(f"expected a refusal that says {said!r}")


def _nothing(source: Path, directory: Path) -> None:
    """An empty directory."""


def _capped(source: Path, directory: Path) -> None:
    for file in source.iterdir():
        content = file.read_bytes()
        if file.name == "config.json":
            content = content.replace(b"{", b'{"final_logit_softcapping": 30,', 1)
        (directory / file.name).write_bytes(content)


# -- trainers: ``make(path)`` gives one with AdamW as below, a clip of 0.5 and a rising learning rate ---------


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


# -- generators: ``make(stop_ids)`` gives one whose longest sequence is 40 tokens -------------------------------

PROMPTS = [[2, 10, 11, 3], [2, 12], [2, 10, 13, 14, 15, 9, 3]]


def _generated(engine: Any, *budgets: int, ids: str = "abc", **how: Any) -> list[Any]:
    return list(engine.generate(list(ids), PROMPTS, [Sampling(max_new_tokens=n, **how) for n in budgets]))


@torch.no_grad()
def greedy_tokens_are_those_of_transformers(engine: Any, model: Model) -> None:
    for prompt, completion in zip(PROMPTS, _generated(engine, 4, 9, 6, temperature=0.0), strict=True):
        ids = list(prompt)
        for _ in completion.token_ids:
            ids.append(int(model.head(model.states(ids))[-1, : model.vocabulary].argmax()))
        assert list(completion.token_ids) == ids[len(prompt) :]
        near(torch.tensor(completion.logprobs), model.logprobs(ids, 1.0)[len(prompt) :])


@torch.no_grad()
def sampled_logprobs_are_of_the_whole_vocabulary_at_the_temperature(engine: Any, model: Model) -> None:
    for prompt, completion in zip(PROMPTS, _generated(engine, 8, 8, 8, temperature=0.6, top_k=3), strict=True):
        ids = [*prompt, *completion.token_ids]
        near(torch.tensor(completion.logprobs), model.logprobs(ids, 0.6)[len(prompt) :])
        shown = [model.logits(ids)[at].topk(3).indices.tolist() for at in range(len(prompt), len(ids))]
        assert all(token in some for token, some in zip(completion.token_ids, shown, strict=True))
        assert (completion.weight_version, completion.weight_version_max) == (engine.version, engine.version)


def the_seed_and_the_sample_say_what_is_drawn(engine: Any, model: Model) -> None:
    first, again, other = (_generated(engine, 9, 9, 9, seed=seed) for seed in (3, 3, 4))
    assert [c.token_ids for c in first] == [c.token_ids for c in again] != [c.token_ids for c in other]
    [alone] = engine.generate(["b"], PROMPTS[1:2], [Sampling(max_new_tokens=9, seed=3)])
    assert alone.token_ids == first[1].token_ids


def a_row_ends_at_its_budget(engine: Any, model: Model) -> None:
    done = _generated(engine, 1, 7, 3)
    assert [len(c.token_ids) for c in done] == [len(c.logprobs) for c in done] == [1, 7, 3]
    assert {c.finish_reason for c in done} == {"length"}


#: Of a generator without stop ids.
GENERATOR = (
    greedy_tokens_are_those_of_transformers,
    sampled_logprobs_are_of_the_whole_vocabulary_at_the_temperature,
    the_seed_and_the_sample_say_what_is_drawn,
    a_row_ends_at_its_budget,
)


def an_end_token_ends_the_row_and_is_kept(make: Callable[[list[int]], Any], model: Model) -> None:
    """*make* takes the stop ids."""
    free = _generated(make([]), 9, 9, 9, temperature=0.0)
    stop = list(free[0].token_ids)[2]
    for before, after in zip(free, _generated(make([stop]), 9, 9, 9, temperature=0.0), strict=True):
        tokens = list(before.token_ids)
        ends = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert list(after.token_ids) == tokens[:ends]
        assert after.finish_reason == ("stop" if stop in tokens else "length")
