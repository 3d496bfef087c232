"""Prompts become rows: one per (prompt, generation index), waiting for the generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from dataplane import DataPlane
from schemas.batch import Batch
from stages.protocols import Sampling
from workers.data import Prompt

#: Alias of the teacher that an agent is routed to.
Route = Callable[[str], str | None]


def admit(
    plane: DataPlane,
    partition: str,
    groups: Sequence[tuple[str, Prompt]],
    *,
    route: Route,
    sampling: Sampling,
    generations: int = 1,
) -> list[list[str]]:
    """Add *generations* rows for each (group id, prompt); the sample ids by group."""
    names, prompts = [group for group, _ in groups], [prompt for _, prompt in groups]
    ids = [[f"{group}-{index}" for index in range(generations)] for group in names]
    once = Batch.of(
        names,
        {
            "prompt_id": [prompt.prompt_id for prompt in prompts],
            "prompt": [prompt.text for prompt in prompts],
            "messages": [prompt.messages for prompt in prompts],
            "answer": [prompt.answer for prompt in prompts],
            "agent": [prompt.agent for prompt in prompts],
            "teacher": [route(prompt.agent) for prompt in prompts],
            "checker": [prompt.checker for prompt in prompts],
            "sampling": [asdict(sampling)] * len(prompts),
            "group_id": names,
        },
    )
    rows = once.take([row for row in range(len(groups)) for _ in range(generations)])
    plane.put(
        partition,
        [sample_id for group in ids for sample_id in group],
        {name: rows.array(name) for name in rows} | {"group_index": [*range(generations)] * len(groups)},
    )
    return ids
