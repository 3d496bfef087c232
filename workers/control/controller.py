"""The controller: the only one who knows the whole job. It moves no data; rows meet their workers in the store.

    admit → (generate → teacher) → seal → (student → baseline → train) → publish → admit …

Step n is trained on samples whose weights are at most ``max_staleness`` versions older than n − 1, updates the
student once and publishes version n. Every wait has a deadline and says what it waits for.
"""

from __future__ import annotations

import time
from contextlib import suppress

import pyarrow as pa

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from schemas.errors import StoreError
from stages.protocols import Sampling
from workers.checkpoints import drop_checkpoints
from workers.control.admission import admit
from workers.control.measures import Measures
from workers.control.resume import best_checkpoint, go_back, newest_checkpoint
from workers.control.validation import Validation, earlier_validations
from workers.control.waiting import Waiting
from workers.control.window import Window
from workers.data import Order
from workers.doctor.diagnose import examine, settle
from workers.executors import Executor, RoleLost
from workers.reports.diagnostics import Diagnostics
from workers.reports.overview import Overview
from workers.reports.report import Reporter
from workers.rundir import RunDir
from workers.weights import drop_weights


class Controller:
    """Runs steps until ``grpo.max_num_steps`` are trained."""

    def __init__(
        self,
        config: RunConfig,
        plane: DataPlane,
        executor: Executor,
        run_dir: RunDir,
        *,
        prompts: pa.Table,
        window: Window,
        validation: Validation,
        report: Reporter,
    ) -> None:
        self.config = config
        self.plane = plane
        self.executor = executor
        self.run_dir = run_dir
        self.prompts = prompts
        self.order = Order(len(prompts), config.run.seed)
        self.window = window
        self.validation = validation
        self.report = report
        self.trained = 0
        self.published = 0
        #: Prompts are admitted only while the weights that are to answer them are published.
        self.accepting = False
        #: Steps whose checkpoints are being written.
        self.writing: set[int] = set()
        self.sealed = {step.step for step in plane.steps()}
        self.diagnostics = Diagnostics(config, plane, run_dir.diagnostics)
        self.waiting = Waiting(plane, executor, report, self.admit, config.failures.deadline_s)
        self.measures = Measures(config, plane, self.waiting)
        self.call = self.waiting.call
        report.watch(Overview(self.waiting, window, lambda: executor.statuses))
        self.sampling = Sampling(**config.generator.sampling.model_dump(exclude_none=True), seed=config.run.seed)

    def resume(self) -> None:
        """Continue after the newest complete checkpoint, in a new epoch."""
        self.accepting = False
        self.writing.clear()
        self.trained, path = newest_checkpoint(self.plane, self.run_dir)
        self.published = self.trained
        if path is None and self.plane.checkpoints():
            self.report.news("the checkpoints that are left are of steps that the store lost: training begins again")
        self.call("trainer", "restore", path, what=f"restoring step {self.trained}")
        go_back(self.plane, self.window, self.trained)
        self.run_dir.write_metrics(self.plane.steps())

    def run(self) -> None:
        """To the last step; when the trainer is lost, from the newest checkpoint again. What ends it is an event."""
        lost = None
        while True:
            try:
                if lost is not None:
                    self.plane.event("restoring", worker=lost.role, reason=lost.reason)
                    self.resume()
                    self.report.news(f"{lost.role} was lost ({lost.reason}); going on from step {self.trained}")
                self._run()
            except RoleLost as error:
                lost = error
            except (Exception, KeyboardInterrupt) as error:
                reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
                with suppress(StoreError):  # a full disk, say: what ended the run is what counts
                    self.plane.event("run_failed", step=self.trained, waited_for=self.waiting.what, reason=reason)
                raise
            else:
                self.plane.event("run_finished", step=self.trained)
                return

    def _run(self) -> None:
        """From the newest weights to the last step."""
        known = earlier_validations(self.plane, self.trained)
        self.report.resumed(known)
        self.publish(self.trained)
        if self.trained == 0 and not known:
            self.validate()
        while self.trained < self.config.grpo.max_num_steps:
            self.step(self.trained + 1)

    # -- one step -------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """Everything that makes one step, in order."""
        started, own_s = time.perf_counter(), time.thread_time()
        self.waiting.take_elsewhere_seconds()
        self.collect(step)
        if step == 1:
            self.check_invariants(step)
        metrics = self.train(step)
        self.publish(step)
        done = self.measures.take_work()
        own_s = time.thread_time() - own_s - self.waiting.take_elsewhere_seconds()
        metrics |= self.measures.speed(metrics, done, time.perf_counter() - started, own_s)
        metrics |= self.validate()
        self.record(step, metrics)
        self.checkpoint()

    def collect(self, step: int) -> None:
        """Seal *step* as soon as its rows are generated and scored; a step sealed before a restart stands."""
        if step in self.sealed:
            return
        members: list[str] = []

        def ready() -> bool:
            self.window.settle()
            members.extend(self.window.next_members(step) or [])
            return bool(members)

        wanted = self.config.grpo.num_samples_per_step
        self.waiting.until(self.waiting.on_change(ready), f"step {step}: {wanted} generated and scored samples")
        self.plane.seal(step, members)
        self.sealed.add(step)

    def admit(self) -> bool:
        """Add as many prompts as the staleness window takes; whether there were any."""
        if not self.accepting:
            return False
        room = self.window.room(max(self.sealed, default=0) + 1, self.published)
        first = self.window.admitted
        groups = {f"{admission:07d}": row for admission, row in enumerate(self.order.rows(first, room), first)}
        if groups:
            generations = self.config.grpo.num_generations_per_prompt
            self.window.add(
                admit(self.plane, TRAIN, groups, self.prompts, sampling=self.sampling, generations=generations)
            )
        return bool(groups)

    def check_invariants(self, step: int) -> None:
        """What must hold before the first update: `opd doctor` on the first rows of the step."""
        settle(self.plane, examine(self.call, self.executor.names(), step), stop=self.config.failures.stop_on_invariant)

    def train(self, step: int) -> dict[str, float]:
        """Student log-probs, advantages and the update."""
        metrics: dict[str, float] = self.call("trainer", "train_step", step, what=f"step {step}: training")
        self.trained = step
        counts = self.window.counts.of(step, metrics["trained_samples"])
        samples = self.measures.samples(step, self.window.chosen.pop(step, None))
        return {"step": step, "weight_version": step - 1, **counts, **samples, **metrics}

    def publish(self, version: int) -> None:
        """Write the student's weights and tell the generators; forget versions that nobody may load any more."""
        path = self.call("trainer", "publish", version, what=f"publishing version {version}")
        self.plane.record_published(version, path)
        self.published, self.accepting = version, True
        drop_weights(self.run_dir.weights, before=version - self.config.grpo.async_grpo.window - 1)

    def validate(self) -> dict[str, float]:
        """Greedy answers on held-out prompts, when it is time; their metrics."""
        if not self.validation.due(self.trained, self.config.grpo.max_num_steps):
            return {}
        rows = self.validation.admit(self.plane, self.trained)
        answered = self.waiting.on_change(lambda: self.validation.complete(self.plane))
        self.waiting.until(answered, f"validation of version {self.trained}: {rows} answers")
        metrics = self.validation.metrics(self.plane, self.trained)
        metrics |= self.call("trainer", "measure_divergence", what="the exact KL")
        self.plane.event("validated", version=self.trained, **metrics)
        self.report.validated(self.trained, metrics)
        self.measures.between_steps()
        return metrics

    def record(self, step: int, metrics: dict[str, float]) -> None:
        self.plane.record_trained(step, {name: float(value) for name, value in metrics.items()})
        self.run_dir.append_metrics(self.plane.steps()[step - 1])
        self.report.trained(step, metrics)
        self.diagnostics.write(step, self.call)

    def checkpoint(self) -> None:
        """Begin a resumable state every period and after the last step, and take note of those that are whole.

        They are written while training goes on; only the last one is waited for.
        """
        step, last = self.trained, self.trained == self.config.grpo.max_num_steps
        if last or step % self.config.checkpointing.period == 0:
            self.call("trainer", "begin_checkpoint", step, what=f"checkpoint of step {step}")
            self.writing.add(step)
        if not self.writing:
            return
        for step, path in self.call("trainer", "whole_checkpoints", last, what="checkpoints to be written"):
            self.writing.discard(step)
            self.plane.record_checkpoint(step, path)
            self.forget()

    def forget(self) -> None:
        """Drop rows, payloads and checkpoints that the recipe does not keep."""
        rows, payloads = self.config.store.retention, self.config.store.payload_retention
        self.plane.retain(None if rows == "never" else rows, heavy_steps=None if payloads == "never" else payloads)
        keeping = self.config.checkpointing
        recorded = {checkpoint.step for checkpoint in self.plane.checkpoints()}
        best = best_checkpoint(self.plane, self.run_dir, keeping)
        drop_checkpoints(self.run_dir.checkpoints, recorded, keeping.keep, best)
