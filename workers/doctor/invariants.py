"""What must hold before a run's first update, tried on a few of its own rows with its own engine and recipe.

    nothing_to_learn       a teacher equal to the student gives advantage 0, loss 0 and gradient 0
    first_ratio            sampler and trainer, on the same weights, give each sampled token the same probability
    rows_scored_twice      the same rows score the same
    batch_independence     a row scores the same alone and in company
    micro_batches          the gradient does not depend on how the batch is cut
    masked_filler          what stands at masked positions changes no bit
    another_teacher        a different teacher changes the gradient

Without distillation, equal rewards stand for the equal teacher and unequal ones for the other. Tolerances are what
rounding explains for the type of the weights; sampled-token distillation has ``nothing_to_learn`` exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.config import RunConfig, get_opd_full_config, get_topk_loss_config
from stages.losses.counts import Counts
from stages.objectives import judge
from workers.doctor.judged_rows import JudgedRows, objective_against_itself
from workers.engines import Trainer

#: Nats by which rounding alone moves a log-prob, by type of the weights.
SCORE_TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 3e-1}

#: The same as a share of a gradient.
GRADIENT_TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}

#: Loss, and gradient as a share of another teacher's, that a payload's type leaves under self-distillation.
PAYLOAD_TOLERANCE = {"float32": 1e-4, "float16": 5e-2, "bfloat16": 2e-1}


@dataclass(frozen=True)
class Check:
    """One invariant: its number, the bound on it (the least value where ``at_least``), and what to do about it."""

    name: str
    value: float
    bound: float
    remedy: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def check_scores(engine: Trainer, config: RunConfig, rows: Batch) -> Iterator[Check]:
    """Log-probs of *rows*, which the engine's own weights sampled."""
    sequences, masks = rows.values("input_ids"), rows.values("token_mask")
    temperature, tolerance = config.generator.sampling.temperature, SCORE_TOLERANCE[config.policy.dtype]
    student = engine.logprobs(sequences, temperature)
    yield Check(
        "first_ratio",
        float((differences(rows.values("generation_logprobs"), student, masks).exp() - 1).abs().max()),
        tolerance,
        "sampler and trainer disagree: are the same weights loaded, the temperatures equal, the vocabulary whole?",
    )
    yield Check(
        "rows_scored_twice",
        float(differences(engine.logprobs(sequences, temperature), student, masks).abs().max()),
        tolerance / 10,
        "scoring does not repeat: dropout or another source of noise is on",
    )
    alone = [engine.logprobs([sequence], temperature)[0] for sequence in sequences]
    yield Check(
        "batch_independence",
        float(differences(alone, student, masks).abs().max()),
        tolerance,
        "neighbours leak into a row: look at attention masks and position ids of padded batches",
    )


def check_gradients(engine: Trainer, config: RunConfig, rows: Batch, vocabulary: int) -> Iterator[Check]:
    """Loss and gradient of *rows* under the recipe's objective. The engine's gradients are clear afterwards."""
    judged, objective = JudgedRows(engine, config, rows), objective_against_itself(engine, config, vocabulary)

    def run(batch: Batch) -> tuple[float, Tensor]:
        judged = judge(objective, engine, batch, _counts(batch))
        return float(judged.losses_B.double().sum()), engine.take_gradient()

    other = judged(bent=True)
    _, gradient = run(other)
    equal = judged(bent=False)
    loss, rest = run(equal)
    yield from _nothing_to_learn(config, equal, loss, float(rest.norm() / gradient.norm().clamp(min=1e-30)))
    for row in range(len(other)):
        judge(objective, engine, other.take([row]), _counts(other))
    yield Check(
        "micro_batches",
        float((engine.take_gradient() - gradient).norm() / gradient.norm().clamp(min=1e-30)),
        GRADIENT_TOLERANCE[config.policy.dtype],
        "the loss depends on how the batch is cut: divide it by the counts of the whole batch",
    )
    yield Check(
        "masked_filler",
        float((run(judged(bent=True, junk=True))[1] - gradient).abs().max()),
        0.0,
        "values at masked positions reach the loss: replace them before computing with them",
    )
    yield Check(
        "another_teacher",
        float(gradient.norm()),
        1e-9,
        "the teacher does not reach the student: look at what the loss reads, and at sample_mask",
        at_least=True,
    )


def _nothing_to_learn(config: RunConfig, batch: Batch, loss: float, share: float) -> Iterator[Check]:
    """*share* is what is left of the gradient."""
    full = get_opd_full_config(config)
    rounding = 0.0 if get_topk_loss_config(config) is None else PAYLOAD_TOLERANCE["float32"]
    bound = rounding if full is None else PAYLOAD_TOLERANCE[full.payload_dtype]
    remedy = "teacher and trainer see the same weights differently: compare alignment, masks, temperature, types"
    advantages = batch.jagged("advantages")[0]
    yield Check("nothing_to_learn.advantage", float(advantages.abs().max()), 0.0, remedy)
    yield Check("nothing_to_learn.loss", abs(loss), bound, remedy)
    yield Check("nothing_to_learn.gradient", share, bound, remedy)


def differences(
    one: Sequence[Sequence[float]] | Sequence[Tensor], other: Sequence[Tensor], masks: Sequence[Sequence[bool]]
) -> Tensor:
    """one − other at the generated tokens of every row; [N]."""
    rows = zip(one, other, masks, strict=True)
    return torch.cat([torch.zeros(0), *((torch.as_tensor(a) - b)[torch.tensor(mask)] for a, b, mask in rows)])


def _counts(batch: Batch) -> Counts:
    return Counts.of(batch.padded("token_mask"), batch.tensor("sample_mask"))
