"""The run's stages, built as its job built them, over the stored run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.config import RunConfig, get_opd_full_config, get_topk_loss_config
from schemas.errors import InputError, did_you_mean
from stages.base import Output, Stage
from stages.baseline import Baseline
from stages.checkers import reward
from stages.routing import teacher_configs
from stages.train import Train
from workers.replay.loss_terms import LossTerms
from workers.replay.one_process import in_one_process
from workers.replay.source import StoredRun
from workers.replay.weights import Held, bring_to
from workers.roles.teacher import TeacherRole
from workers.roles.trainer import TrainerRole

#: What replay runs when no stage is named; generate only by name, as re-scoring.
STAGES = ("teacher", "student", "baseline", "train")

#: Stages whose result for a row depends on the step's other rows.
OF_A_WHOLE_STEP = ("baseline", "train", "topk_student")

#: Stages that run on their rows alone, whatever step these are in.
OF_ANY_ROWS = ("teacher", "generate")


@dataclass(frozen=True)
class Built:
    """A stage ready to run, and which weights it has; None where it needs none."""

    stage: Stage
    weights: str | None


class Builder:
    """Builds stages under one recipe; models are loaded once and kept."""

    def __init__(self, run: StoredRun, config: RunConfig, *, what_if: bool = False) -> None:
        self.run, self.what_if = run, what_if
        self.config, self._trainer_was, self._teachers_were = in_one_process(config)
        self._trainers: dict[int, tuple[TrainerRole, str]] = {}
        self._teachers: dict[str, TeacherRole] = {}

    @property
    def loss_needs_model(self) -> bool:
        """Whether the loss is about whole distributions, which are not stored as log-probs of sampled tokens."""
        return get_opd_full_config(self.config) is not None or get_topk_loss_config(self.config) is not None

    def build(self, name: str, step: int | None) -> Built:
        """The stage *name* at the start of *step*. Raises InputError naming the stages there are."""
        if name == "baseline":
            return Built(Baseline(self.config), None)
        if name == "train" and self.what_if and not self.loss_needs_model:
            return Built(LossTerms(self.config.loss_fn), None)
        if name == "teacher":
            return self._teacher()
        if name == "generate":
            return Built(Rescore(self._scorer_at), "the student of each row's weight_version")
        if step is None:
            raise InputError(f"stage {name!r}: the rows are in no step, so that no weights are meant; give --step N")
        role, weights = self._trainer(step - 1)
        stages = {worker.stage.task: worker.stage for worker in role.step_workers}
        if name not in stages:
            known = ["generate", "teacher", *stages]
            raise InputError(f"no stage {name!r}{did_you_mean(name, known)}; this run has {', '.join(known)}")
        stage = stages[name]
        return Built(replace(stage, engine=Held(stage.engine)) if isinstance(stage, Train) else stage, weights)

    def _trainer(self, version: int) -> tuple[TrainerRole, str]:
        if version not in self._trainers:
            role = TrainerRole(self.run.plane, self.config, self.run.run_dir, self.run.teachers(self.config))
            weights = _on_hf(self._weigh(role, version), self._trainer_was)
            self._trainers = {version: (role, weights)}  # one version in memory at a time
        return self._trainers[version]

    def _weigh(self, role: TrainerRole, version: int) -> str:
        """Weights are those of the run, whatever a changed recipe would have made of them."""
        if not self.what_if:
            return bring_to(self.run, role, version)
        then, weights = Builder(self.run, self.run.config())._trainer(version)
        role.engine.load_weights(then.engine.weights())
        return weights

    def _scorer_at(self, version: int) -> Callable[[list[list[int]], float], list[torch.Tensor]]:
        return self._trainer(version)[0].engine.logprobs

    def _teacher(self) -> Built:
        stages: dict[str, Stage] = {}
        for teacher in teacher_configs(self.config.on_policy_distillation):
            if teacher.alias not in self._teachers:
                checkpoints = self.run.teachers(self.config)
                self._teachers[teacher.alias] = TeacherRole(self.run.plane, self.config, teacher, checkpoints)
            [worker] = [w for w in self._teachers[teacher.alias].workers if w.partition == TRAIN]
            stages |= dict.fromkeys(teacher.aliases, worker.stage)
        if not stages:
            raise InputError("stage 'teacher': this run has no teachers")
        models = ", ".join(Path(t.model_name).name for t in teacher_configs(self.config.on_policy_distillation))
        return Built(Routed(stages), _on_hf(f"teachers {models}", self._teachers_were))


def _on_hf(weights: str, was: str | None) -> str:
    """*weights*, and that hf stands in for another engine."""
    return weights if was is None else f"{weights}; hf on 1 rank in place of {was}"


@dataclass
class Routed:
    """Several teachers as one stage: each row goes to its own, in the batch's order."""

    stages: dict[str, Stage]
    task: str = "teacher"

    @property
    def reads(self) -> tuple[str, ...]:
        return next(iter(self.stages.values())).reads

    @property
    def writes(self) -> tuple[str, ...]:
        return next(iter(self.stages.values())).writes

    def __call__(self, batch: Batch) -> Output:
        by_stage: dict[int, list[int]] = {}
        for row, alias in enumerate(batch.values("teacher")):
            if alias not in self.stages:
                raise InputError(f"sample {batch.sample_ids[row]!r}: no teacher {alias!r} in this recipe")
            by_stage.setdefault(id(self.stages[alias]), []).append(row)
        stages = {id(stage): stage for stage in self.stages.values()}
        return _joined([stages[key](batch.take(rows)) for key, rows in by_stage.items()])


def _joined(outputs: Sequence[Output]) -> Output:
    failed = {sample_id: error for output in outputs for sample_id, error in output.failed.items()}
    names = outputs[0].columns if outputs else {}
    columns = {name: [value for output in outputs for value in output.columns[name]] for name in names}
    return Output([sample_id for output in outputs for sample_id in output.sample_ids], columns, failed)


@dataclass
class Rescore:
    """generate, checked: a row's tokens scored by the student of its ``weight_version``, its text by its checker.

    *scorer* gives the scoring function of a weight version. Tokens are not sampled again.
    """

    scorer: Callable[[int], Callable[[list[list[int]], float], list[torch.Tensor]]]
    task: str = "generate"
    reads: tuple[str, ...] = (
        *("input_ids", "token_mask", "sampling", "weight_version", "weight_version_max"),
        *("finish_reason", "response_text", "answer", "checker"),
    )
    writes: tuple[str, ...] = ("generation_logprobs", "reward")

    def __call__(self, batch: Batch) -> Output:
        scored: dict[int, list[float]] = {}
        versions, newest = batch.values("weight_version"), batch.values("weight_version_max")
        failed = {
            batch.sample_ids[row]: f"engine_error: sampled by versions {versions[row]} to {newest[row]}, not by one"
            for row in range(len(batch))
            if versions[row] != newest[row]
        }
        for version in sorted(set(versions)):
            rows = [r for r, v in enumerate(versions) if v == version and batch.sample_ids[r] not in failed]
            scored |= self._score(batch.take(rows), rows, version) if rows else {}
        rows = sorted(scored)
        columns = {"generation_logprobs": [scored[row] for row in rows], "reward": _rewards(batch.take(rows))}
        return Output([batch.sample_ids[row] for row in rows], columns, failed)

    def _score(self, batch: Batch, rows: Sequence[int], version: int) -> dict[int, list[float]]:
        sequences, masks = batch.values("input_ids"), batch.values("token_mask")
        temperatures = [how["temperature"] for how in batch.values("sampling")]
        scored: dict[int, list[float]] = {}
        for temperature in sorted(set(temperatures)):
            picked = [k for k, other in enumerate(temperatures) if other == temperature]
            for k, values in zip(
                picked, self.scorer(version)([sequences[k] for k in picked], temperature), strict=True
            ):
                scored[rows[k]] = torch.where(torch.tensor(masks[k]), values, 0.0).tolist()
        return scored


def _rewards(batch: Batch) -> list[float | None]:
    """The checkers' verdicts; a truncated response earns none."""
    columns = [batch.values(name) for name in ("finish_reason", "checker", "response_text", "answer")]
    return [
        None if answer is None else reward(checker, text, answer) if reason == "stop" else 0.0
        for reason, checker, text, answer in zip(*columns, strict=True)
    ]
