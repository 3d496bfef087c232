"""What a resumed run may change, and what it keeps."""

from __future__ import annotations

import pytest

from schemas.config import RunConfig, load_recipe
from schemas.config.resumed import changes
from schemas.errors import ConfigError


def two_sources(*overrides: str) -> RunConfig:
    return load_recipe("quickstart", ["data.train=[{path: a.jsonl}, {path: b.jsonl}]", *overrides])


def test_a_change_is_a_line() -> None:
    lines = list(changes(two_sources(), two_sources("grpo.max_num_steps=90")))
    assert lines == ["grpo.max_num_steps: 80 until now, 90 from here on"]
    assert list(changes(two_sources(), two_sources())) == []


@pytest.mark.parametrize("sources", ["[{path: a.jsonl}]", "[{path: a.jsonl}, {path: b.jsonl}, {path: c.jsonl}]"])
def test_a_source_that_goes_or_comes_is_refused(sources: str) -> None:
    with pytest.raises(ConfigError, match=r"data.train.[12].path: expected .*, which the run began with"):
        list(changes(two_sources(), load_recipe("quickstart", [f"data.train={sources}"])))
