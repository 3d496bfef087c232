"""The doctor: the invariants of a recipe, on a few rows sampled and scored as a job would. Also a job's step 0.

Each role examines what it hosts; nothing is trained, and what a job does afterwards is the same to the bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dataplane import DataPlane
from schemas.config import RunConfig
from schemas.errors import JobFailed
from workers.doctor.invariants import Check

#: Rows that are examined.
ROWS = 8


def examine(call: Callable[..., Any], roles: Sequence[str], step: int) -> list[Check]:
    """Every check on rows of the sealed *step*, before it is trained. *call* is the controller's."""
    examined = ["trainer", *(name for name in roles if name.startswith("teacher:"))]
    found = [call(name, "examine", step, what=f"step {step}: invariants of {name}") for name in examined]
    return [check for checks in found for check in checks]


def settle(plane: DataPlane, checks: Sequence[Check], *, stop: bool) -> None:
    """Record *checks* in the events. Raises JobFailed naming the failed ones, if they are to *stop* the job."""
    failed = [check for check in checks if not check.passed]
    numbers = {check.name: check.value for check in checks}
    plane.event("invariants", passed=not failed, **numbers)
    if failed and stop:
        lines = "\n".join(f"  {describe(check)}" for check in failed)
        raise JobFailed(
            f"{len(failed)} of {len(checks)} invariants do not hold before the first update:\n{lines}\n"
            "failures.stop_on_invariant=false trains all the same"
        )


def describe(check: Check) -> str:
    """A failed check in a line."""
    bound = f"at least {check.bound:g}" if check.at_least else f"at most {check.bound:g}"
    return f"{check.name}: {check.value:.3g}, expected {bound}; {check.remedy}"


def diagnose(config: RunConfig, work: Path | None = None) -> list[Check]:
    """The checks of *config* on a handful of its prompts. Raises InputError for what a run would refuse too."""
    from workers.executors.inline import InlineExecutor
    from workers.job import opened_job, read_inputs
    from workers.rundir import RunDir

    with tempfile.TemporaryDirectory(dir=work) as directory:
        small = _small(config)
        executor = InlineExecutor(config.cluster.threads_per_worker)
        with opened_job(small, read_inputs(small), RunDir(Path(directory)), executor) as controller:
            controller.publish(0)
            controller.collect(1)
            return examine(controller.call, executor.names(), 1)


def _small(config: RunConfig) -> RunConfig:
    """One step of ``ROWS`` rows, in memory."""
    generations = config.grpo.num_generations_per_prompt
    shape = {"num_prompts_per_step": max(1, -(-ROWS // generations)), "max_num_steps": 1}
    return config.model_copy(
        update={
            "grpo": config.grpo.model_copy(update=shape),
            "store": config.store.model_copy(update={"url": "memory://"}),
            "validation": config.validation.model_copy(update={"exact_kl_rows": 0}),
        }
    )
