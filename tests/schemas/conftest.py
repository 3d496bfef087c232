"""A smallest valid recipe, as nested mappings, for tests to bend."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

import pytest

SMALLEST: dict[str, Any] = {
    "data": {"train": [{"path": "prompts.jsonl"}]},
    "policy": {"model": "student"},
    "on_policy_distillation": {"enabled": True, "teacher_model_by_agent_name": {"rev": "t/rev", "sort": "t/sort"}},
}


class Bend(Protocol):
    def __call__(self, **changes: Any) -> dict[str, Any]: ...


@pytest.fixture
def recipe() -> Bend:
    """``recipe(grpo__max_num_steps=3)``: the smallest recipe with that key set."""

    def bend(**changes: Any) -> dict[str, Any]:
        values = deepcopy(SMALLEST)
        for path, value in changes.items():
            *sections, key = path.split("__")
            target = values
            for section in sections:
                target = target.setdefault(section, {})
            target[key] = value
        return values

    return bend
