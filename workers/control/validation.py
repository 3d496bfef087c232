"""Validation: greedy answers to held-out prompts, and the exact KL on sampled ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.columns import VALIDATION
from schemas.config import RunConfig
from stages.protocols import Sampling
from workers.control.admission import admit
from workers.partitions import SAMPLED, exact_kl_rows


class Validation:
    """Evaluates a version at step 0, every period and after the last step."""

    def __init__(self, config: RunConfig, prompts: pa.Table, vocabulary_size: int) -> None:
        rows = config.validation.rows
        self.prompts = prompts.slice(0, rows)
        self.period = config.validation.period
        sampling = config.generator.sampling
        self.sampled = Sampling(**sampling.model_dump(exclude_none=True), seed=config.run.seed)
        self.greedy = replace(self.sampled, temperature=0.0, top_p=1.0, top_k=0)
        wanted = min(config.validation.exact_kl_rows, len(self.prompts)) if config.on_policy_distillation.enabled else 0
        self.kl_rows = exact_kl_rows(wanted, vocabulary_size, config.policy.max_total_sequence_length)

    def due(self, step: int, last_step: int) -> bool:
        return len(self.prompts) > 0 and (step % self.period == 0 or step == last_step)

    def admit(self, plane: DataPlane, version: int) -> int:
        """Add the rows of this version, unless they are there from before a restart; how many it asks for."""
        for partition, rows, sampling in (
            (VALIDATION, len(self.prompts), self.greedy),
            (SAMPLED, self.kl_rows, self.sampled),
        ):
            known = set(plane.rows(partition))
            groups = {f"v{version:06d}.{row:05d}": row for row in range(rows)}
            missing = {group: row for group, row in groups.items() if f"{group}-0" not in known}
            admit(plane, partition, missing, self.prompts, sampling=sampling)
        return len(self.prompts) + self.kl_rows

    def complete(self, plane: DataPlane) -> bool:
        """Whether every held-out row is answered (and scored), or failed."""
        waiting = plane.rows(VALIDATION, lack=["input_ids"], failed=False)
        return not waiting and not plane.rows(SAMPLED, lack=["teacher_logprobs"], failed=False)

    def metrics(self, plane: DataPlane, version: int) -> dict[str, float]:
        """Mean reward in all and by agent; a row that failed counts as a wrong answer."""
        table = plane.table(VALIDATION, ["agent", "reward", "group_id"])
        mine = table.filter(pc.starts_with(table["group_id"], f"v{version:06d}."))
        rewards = mine.set_column(1, "reward", pc.fill_null(mine["reward"], 0.0))
        by_agent = rewards.group_by("agent").aggregate([("reward", "mean")])
        agents = zip(by_agent["agent"].to_pylist(), by_agent["reward_mean"].to_pylist(), strict=True)
        return {f"accuracy/{agent}": mean for agent, mean in sorted(agents)} | {
            "accuracy": pc.mean(rewards["reward"]).as_py()
        }


def version_of(sample_id: str) -> int:
    """The version that a held-out row was admitted to evaluate."""
    return int(sample_id.removeprefix("v").partition(".")[0])


def earlier_validations(plane: DataPlane, newest: int) -> dict[int, dict[str, float]]:
    """Metrics of the versions up to *newest* that the run evaluated in its earlier lives, by version."""
    events = plane.events().select(["kind", "version", "detail"]).to_pylist()
    found = {e["version"]: json.loads(e["detail"]) for e in events if e["kind"] == "validated"}
    return {
        version: {name: float(value) for name, value in found[version].items()}
        for version in sorted(found)
        if version <= newest
    }
