"""Prompts become rows: one per (prompt, generation index), waiting for the generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from dataplane import DataPlane
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
    ids = [[f"{group}-{index}" for index in range(generations)] for group, _ in groups]
    rows = [(group, prompt, index) for group, prompt in groups for index in range(generations)]
    plane.put(
        partition,
        [sample_id for group in ids for sample_id in group],
        {
            "prompt_id": [prompt.prompt_id for _, prompt, _ in rows],
            "prompt": [prompt.text for _, prompt, _ in rows],
            "messages": [prompt.messages for _, prompt, _ in rows],
            "answer": [prompt.answer for _, prompt, _ in rows],
            "agent": [prompt.agent for _, prompt, _ in rows],
            "teacher": [route(prompt.agent) for _, prompt, _ in rows],
            "checker": [prompt.checker for _, prompt, _ in rows],
            "sampling": [asdict(sampling)] * len(rows),
            "group_id": [group for group, _, _ in rows],
            "group_index": [index for _, _, index in rows],
        },
    )
    return ids
