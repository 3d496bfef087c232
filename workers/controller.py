"""The controller: the only one who knows the whole job. It moves no data; rows meet their workers in the store.

    admit → (generate → teacher) → seal → (student → baseline → train) → publish → admit …

Step n is trained on samples whose weights are at most ``max_staleness`` versions older than n − 1, updates the
student once and publishes version n. Every wait has a deadline and says what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.config import RunConfig
from stages.protocols import Sampling
from stages.routing import get_teacher_routing_metrics
from workers.admission import Route, admit
from workers.checkpoints import drop_checkpoints
from workers.data import Order
from workers.diagnostics import Diagnostics
from workers.doctor import examine, settle
from workers.executors import Executor, RoleLost
from workers.report import Reporter
from workers.resume import go_back, newest_checkpoint
from workers.rundir import RunDir
from workers.validation import Validation
from workers.weights import drop_weights
from workers.window import Window


class Controller:
    """Runs steps until ``grpo.max_num_steps`` are trained."""

    def __init__(
        self,
        config: RunConfig,
        plane: DataPlane,
        executor: Executor,
        run_dir: RunDir,
        *,
        prompts: Order,
        route: Route,
        window: Window,
        validation: Validation,
        report: Reporter,
    ) -> None:
        self.config = config
        self.plane = plane
        self.executor = executor
        self.run_dir = run_dir
        self.prompts = prompts
        self.route = route
        self.window = window
        self.validation = validation
        self.report = report
        self.trained = 0
        self.published = 0
        #: Prompts are admitted only while the weights that are to answer them are published.
        self.accepting = False
        #: Processor seconds of this step that went into the executor, and through it into inline workers.
        self._elsewhere_s = 0.0
        self.sealed = {step.step for step in plane.steps()}
        self.diagnostics = Diagnostics(config, plane, run_dir.diagnostics)
        self.sampling = Sampling(**config.generator.sampling.model_dump(exclude_none=True), seed=config.run.seed)

    def resume(self) -> None:
        """Continue after the newest complete checkpoint, in a new epoch."""
        self.accepting = False
        self.trained, path = newest_checkpoint(self.plane)
        self.published = self.trained
        self.call("trainer", "restore", path, what=f"restoring step {self.trained}")
        go_back(self.plane, self.window, self.trained)
        self.run_dir.write_metrics(self.plane.steps())

    def run(self) -> None:
        """To the last step; when the trainer is lost, from the newest checkpoint again."""
        lost = None
        while True:
            try:
                if lost is not None:
                    self.plane.event("restoring", worker=lost.role, reason=lost.reason)
                    self.resume()
                return self._run()
            except RoleLost as error:
                lost = error

    def _run(self) -> None:
        """From the newest weights to the last step."""
        self.publish(self.trained)
        if self.trained == 0:
            self.validate()
        while self.trained < self.config.grpo.max_num_steps:
            self.step(self.trained + 1)

    # -- one step -------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """Everything that makes one step, in order."""
        started, own, self._elsewhere_s = time.perf_counter(), time.thread_time(), 0.0
        self.collect(step)
        if step == 1:
            self.check_invariants(step)
        metrics = self.train(step)
        self.publish(step)
        own_s = time.thread_time() - own - self._elsewhere_s
        metrics |= self._speed(metrics["trained_tokens"], time.perf_counter() - started, own_s)
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

        self.wait(
            self.on_change(ready), f"step {step}: {self.config.grpo.num_samples_per_step} generated and scored samples"
        )
        self.plane.seal(step, members)
        self.sealed.add(step)

    def admit(self) -> bool:
        """Add as many prompts as the staleness window takes; whether there were any."""
        if not self.accepting:
            return False
        room = self.window.room(max(self.sealed, default=0) + 1, self.published)
        first = self.window.admitted
        groups = [(f"{admission:07d}", self.prompts[admission]) for admission in range(first, first + room)]
        if groups:
            generations = self.config.grpo.num_generations_per_prompt
            self.window.add(
                admit(self.plane, TRAIN, groups, route=self.route, sampling=self.sampling, generations=generations)
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
        return {"step": step, "weight_version": step - 1, **counts, **self._routing(step), **metrics}

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
        rows = self.validation.admit(self.plane, self.trained, self.route)
        self.wait(
            self.on_change(lambda: self.validation.complete(self.plane)),
            f"validation of version {self.trained}: {rows} answers",
        )
        metrics = self.validation.metrics(self.plane, self.trained)
        metrics |= self.call("trainer", "measure_divergence", what="the exact KL")
        self.plane.event("validated", version=self.trained, **metrics)
        self.report.validated(self.trained, metrics)
        return metrics

    def record(self, step: int, metrics: dict[str, float]) -> None:
        self.plane.record_trained(step, {name: float(value) for name, value in metrics.items()})
        self.run_dir.append_metrics(self.plane.steps()[step - 1])
        self.report.trained(step, metrics)
        self.diagnostics.write(step, self.call)

    def checkpoint(self) -> None:
        """A resumable state every period and after the last step."""
        step = self.trained
        if step % self.config.checkpointing.period and step != self.config.grpo.max_num_steps:
            return
        path = self.call("trainer", "checkpoint", step, what=f"checkpoint of step {step}")
        self.plane.record_checkpoint(step, path)
        rows, payloads = self.config.store.retention, self.config.store.payload_retention
        self.plane.retain(None if rows == "never" else rows, heavy_steps=None if payloads == "never" else payloads)
        drop_checkpoints(self.run_dir.checkpoints, self.config.checkpointing.keep)

    def _speed(self, tokens: float, wall_s: float, own_s: float) -> dict[str, float]:
        """Seconds of the step, and processor seconds in plane and controller code: here, in the plane's answers to
        other processes, and in the workers' own calls of the plane. What each role did since the last step."""
        work = {role: self.executor.submit(role, "take_work").result() for role in self.executor.names()}
        spent = {
            "controller_s": own_s,
            "answers_s": self.plane.take_served_seconds(),
            "workers_plane_s": sum(done.plane_s for done in work.values()),
        }
        roles = {
            f"{role}/{name}": value
            for role, done in work.items()
            for name, value in (
                ("batches", done.batches),
                ("samples", done.samples),
                ("inference_s", done.stage_s),
                ("waiting_s", max(0.0, wall_s - done.stage_s)),
            )
        }
        return {"wall_s": wall_s, "plane_s": sum(spent.values()), **spent, "tokens_per_s": tokens / wall_s, **roles}

    def _routing(self, step: int) -> dict[str, float]:
        """How many teachers the step's samples were routed to."""
        opd = self.config.on_policy_distillation
        if not opd.enabled:
            return {}
        aliases = self.plane.get(TRAIN, self.plane.members(step), ["teacher"]).values("teacher")
        return get_teacher_routing_metrics(aliases, opd.teacher_model_by_agent_name)

    # -- waiting --------------------------------------------------------------------------------------

    def call(self, role: str, method: str, *arguments: Any, what: str) -> Any:
        """Run a method of a role while admission goes on; its result."""
        began = time.thread_time()
        call = self.executor.submit(role, method, *arguments)
        self._elsewhere_s += time.thread_time() - began
        self.wait(call.done, what)
        return call.result()

    def on_change(self, check: Callable[[], bool]) -> Callable[[], bool]:
        """*check*, asked again only when the store has changed."""
        seen = -1

        def changed() -> bool:
            nonlocal seen
            position = self.plane.position()
            if position == seen:
                return False
            seen = position
            return check()

        return changed

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Let the executor wait until *until* holds, and admit prompts meanwhile."""
        self.report.waiting(what)
        own_s = 0.0

        def timed(work: Callable[[], bool]) -> bool:
            nonlocal own_s
            began = time.thread_time()
            answer = work()
            own_s += time.thread_time() - began
            return answer

        began = time.thread_time()
        self.executor.wait(
            lambda: timed(until), what, deadline_s=self.config.failures.deadline_s, meanwhile=lambda: timed(self.admit)
        )
        self._elsewhere_s += time.thread_time() - began - own_s
