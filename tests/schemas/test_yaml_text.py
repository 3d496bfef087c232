"""YAML scalars mean what people think they mean."""

from __future__ import annotations

import math

import pytest

from schemas.config.yaml_text import parse
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2.5E+2", 250.0),
        ("1_000", 1000),
        ("-7", -7),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("-.inf", -math.inf),
        ("2026-01-02", "2026-01-02"),
        ("[0.9, 1]", [0.9, 1]),
    ],
)
def test_scalar(text: str, value: object) -> None:
    parsed = parse(text, "test")
    assert (parsed, type(parsed)) == (value, type(value))


def test_error_names_source_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^mine.yaml:3: not valid YAML"):
        parse("a: 1\nb: 2\nc: }\nd: 4\n", "mine.yaml")


def test_objects_cannot_be_built_from_a_recipe() -> None:
    with pytest.raises(ConfigError, match="not valid YAML: could not determine a constructor"):
        parse("!!python/object/apply:os.system [ls]", "mine.yaml")
