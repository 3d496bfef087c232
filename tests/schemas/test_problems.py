"""pydantic's findings become sentences that name the key, what came and what was expected."""

from __future__ import annotations

import pytest

from schemas.config.recipe import validate
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grpo__max_num_step": 1}, "grpo.max_num_step: unknown key (did you mean 'max_num_steps'?)"),
        ({"max_staleness": 1}, "max_staleness: unknown key (did you mean 'grpo.async_grpo.max_staleness'?)"),
        ({"run__zzz": 1}, "run.zzz: unknown key; known here: name, seed"),
        ({"data__train": [{"pth": "x"}]}, "data.train.0.pth: unknown key (did you mean 'path'?)"),
        ({"policy": {}}, "policy.model: is required (checkpoint that training starts from)"),
        ({"grpo": 3}, "grpo: expected a mapping of keys, got 3"),
        ({"generator__engine": "hg"}, "generator.engine: expected 'hf' or 'vllm', got 'hg'"),
        ({"run__name": 5}, "run.name: expected a text, got 5"),
        ({"run__name": ""}, "run.name: expected a text that is not empty, got ''"),
        ({"trainer__optimizer": {"betas": 3}}, "trainer.optimizer.betas: expected a list of two numbers, got 3"),
        ({"trainer__optimizer": {"betas": [1]}}, "trainer.optimizer.betas: expected a list of two numbers, got [1]"),
        ({"trainer__optimizer": {"betas": [1, 2, 3]}}, "trainer.optimizer.betas: expected 2 entries, got [1, 2, 3]"),
        ({"trainer__optimizer": {"betas": ["a", 1]}}, "trainer.optimizer.betas.0: expected a number, got 'a'"),
        ({"data__train": []}, "data.train: expected at least 1 entry, got []"),
        (
            {"data__train": "prompts.txt"},
            "data.train: expected a list, each a mapping of path, generator, answer_field, checker, agent, "
            "got 'prompts.txt'",
        ),
        ({"store__retention": "x"}, "store.retention: expected 'never' or a whole number, got 'x'"),
        (
            {"store__retention": -1},
            "store.retention: expected 'never' or a number greater than or equal to 0, got -1",
        ),
        ({"failures__deadline_s": float("nan")}, "failures.deadline_s: expected a finite number, got nan"),
    ],
)
def test_sentence(recipe, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(recipe(**changes))
    assert sentence in str(refused.value).splitlines()


def test_unknown_keys_are_found_inside_mappings_of_sections(recipe) -> None:
    bent = recipe(on_policy_distillation__non_colocated_teachers={"enable": True})
    with pytest.raises(ConfigError, match=r"non_colocated_teachers.enable: unknown key \(did you mean 'enabled'\?\)"):
        validate(bent)
