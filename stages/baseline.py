"""baseline: a whole step's log-probs and rewards become per-token advantages and the sample mask.

    quarantine → sequence-error mask → advantages (stages/advantages/opd.py, or rewards alone) → diagnostics

A row is masked, never dropped: it stays a member of its step with ``sample_mask`` false, advantages 0 and the
reason in ``mask_reason`` as "code: detail". ``bad_logprob``, ``misaligned`` and ``bad_reward`` are quarantine,
``empty_response`` and ``seq_logprob_error`` are not. The baselines need every row of the step at once, so a step is
one unit of this stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.columns import written_by
from schemas.errors import JobFailed
from stages.advantages.opd import Advantages, OPDAdvantageEstimator, summary
from stages.base import Output
from stages.diagnostics import correlations, sample_stats
from stages.group_baseline import group_numbers, reward_advantages
from stages.masking import fill, trained
from stages.quarantine import bad_logprobs
from stages.sequence_error import SequenceError, mask_sequence_error
from stages.step_columns import StepColumns

if TYPE_CHECKING:
    from schemas.config import RunConfig


class Baseline:
    """Advantages, masks and diagnostics of one step.

    With distillation off it reads no teacher column and trains on group rewards alone. Raises JobFailed when
    more of the step is quarantined than ``failures.max_quarantined_share``.
    """

    task = "baseline"
    writes = written_by("baseline")

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.distillation = config.on_policy_distillation
        self.distils = config.on_policy_distillation.enabled and config.grpo.adv_estimator.name == "opd"
        self.uses_reward = not self.distils or config.on_policy_distillation.use_orm_advantage
        teacher = ("teacher_logprobs",) if config.on_policy_distillation.enabled else ()
        reference = ("reference_logprobs",) if config.loss_fn.reference_policy_kl_penalty else ()
        self.logprobs = ("generation_logprobs", "student_logprobs", *teacher, *reference)
        self.reads = ("token_mask", *self.logprobs, "reward", "group_id")

    def __call__(self, batch: Batch) -> Output:
        step = StepColumns.of(batch, self.logprobs)
        reasons = self._quarantine(step)
        self._stop_when_too_many(batch, reasons)
        metrics = {"num_quarantined": float(len(reasons))}
        for row in (~step.token_mask.any(1)).nonzero().flatten().tolist():
            reasons.setdefault(row, "empty_response: no generated token")
        error = self._sequence_error(step, reasons)
        advantages = self._advantages(step, error.sample_mask_B)
        stats = sample_stats(step.generation, step.student, step.teacher, step.token_mask)
        stats["seq_logprob_error"] = torch.where(error.error_B > 0, error.error_B, torch.nan)
        metrics |= error.metrics | advantages.metrics
        metrics |= _step_metrics(step, stats, error.sample_mask_B)
        return Output(batch.sample_ids, self._columns(step, advantages, error, stats, reasons), metrics=metrics)

    def _quarantine(self, step: StepColumns) -> dict[int, str]:
        columns = {name: step.logprobs[name] for name in self.logprobs}
        if self.distillation.nonfinite_teacher_keeps_reward and self.distillation.use_orm_advantage:
            columns.pop("teacher_logprobs", None)
        reasons = dict(step.misaligned)
        for row, reason in bad_logprobs(columns, step.token_mask).items():
            reasons.setdefault(row, reason)
        if self.uses_reward:
            for row in (~step.rewards.isfinite()).nonzero().flatten().tolist():
                reasons.setdefault(row, f"bad_reward: expected a finite number, got {step.rewards[row].item()}")
        return reasons

    def _stop_when_too_many(self, batch: Batch, reasons: dict[int, str]) -> None:
        budgets = self.config.failures
        shrinks = min(budgets.max_quarantined_share, 1 - budgets.min_step_fraction)
        limit = 0.0 if budgets.after_seal == "fail" else shrinks
        if len(reasons) > limit * len(batch):
            row = min(reasons)
            raise JobFailed(
                f"baseline: {len(reasons)} of {len(batch)} samples of the step are quarantined, more than "
                f"failures allows ({limit:.0%}: after_seal {budgets.after_seal!r}, max_quarantined_share, "
                f"min_step_fraction); the first is {batch.sample_ids[row]!r} ({reasons[row]}). Look at what wrote it"
            )

    def _sequence_error(self, step: StepColumns, reasons: dict[int, str]) -> SequenceError:
        """The sample mask, and the reasons of the rows that it drops added to *reasons*."""
        usable = torch.tensor([row not in reasons for row in range(len(step.rewards))], dtype=torch.bool)
        threshold = self.config.grpo.seq_logprob_error_threshold
        error = mask_sequence_error(step.generation, step.student, step.token_mask, usable, step.rewards, threshold)
        for row in (usable & ~error.sample_mask_B).nonzero().flatten().tolist():
            reasons[row] = f"seq_logprob_error: {error.error_B[row]:.4g} is above the threshold {threshold}"
        return error

    def _advantages(self, step: StepColumns, sample_mask_B: Tensor) -> Advantages:
        mask = trained(step.token_mask, sample_mask_B)
        rewards = self._reward_advantages(step, sample_mask_B) if self.uses_reward else None
        if self.distils:
            assert step.teacher is not None
            return OPDAdvantageEstimator(self.distillation)(step.teacher, step.student, mask, rewards)
        assert rewards is not None
        values = fill(rewards[:, None].expand_as(step.student), mask)
        return Advantages(values, summary(values, values, mask))

    def _reward_advantages(self, step: StepColumns, sample_mask_B: Tensor) -> Tensor:
        estimator = self.config.grpo.adv_estimator
        return reward_advantages(
            step.rewards,
            group_numbers(step.group_ids),
            sample_mask_B,
            leave_one_out=estimator.use_leave_one_out_baseline,
            normalize=estimator.normalize_rewards,
        )

    def _columns(
        self,
        step: StepColumns,
        advantages: Advantages,
        error: SequenceError,
        stats: dict[str, Tensor],
        reasons: dict[int, str],
    ) -> dict[str, object]:
        per_sample = {name: _nullable(stats[name]) for name in self.writes if name in stats}
        return per_sample | {
            "advantages": step.jagged(advantages.values_BS),
            "sample_mask": error.sample_mask_B.numpy(),
            "mask_reason": [reasons.get(row) for row in range(len(step.rewards))],
        }


def _nullable(values_B: Tensor) -> pa.Array:
    """A column in which an undefined number (NaN) is missing."""
    return pa.array(values_B.numpy(), mask=values_B.isnan().numpy())


def _step_metrics(step: StepColumns, stats: dict[str, Tensor], sample_mask_B: Tensor) -> dict[str, float]:
    rewards = step.rewards[step.rewards.isfinite()]
    return {
        "reward_mean": float(rewards.double().mean()),
        "trained_tokens": float(trained(step.token_mask, sample_mask_B).sum()),
        **correlations(stats | {"reward": step.rewards}, sample_mask_B),
    }
