"""A configuration laid open: every key with its value, default and meaning, and the copy that a run keeps."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from schemas.config.run import RunConfig

#: Packages whose version may change a result.
_PACKAGES = (
    "opd-plane",
    "torch",
    "transformers",
    "tokenizers",
    "ray",
    "pyarrow",
    "duckdb",
    "numpy",
    "msgspec",
    "pydantic",
)


class Setting(NamedTuple):
    """One key of a configuration; ``default`` is "required" where there is none."""

    key: str
    value: Any
    default: Any
    meaning: str


def describe(config: RunConfig) -> list[Setting]:
    """Every key that *config* holds, in the order of its sections."""
    return list(_settings(config, ""))


def _settings(section: BaseModel, prefix: str) -> Iterator[Setting]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        yield from _setting(prefix + name, value, field)


def _setting(key: str, value: Any, field: FieldInfo) -> Iterator[Setting]:
    if isinstance(value, BaseModel):
        yield from _settings(value, f"{key}.")
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for position, item in enumerate(value):
            yield from _settings(item, f"{key}.{position}.")
    else:
        yield Setting(key, _plain(value), _default(field), field.description or "")


def _default(field: FieldInfo) -> Any:
    return "required" if field.is_required() else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> Any:
    """*value* as YAML and JSON can hold it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that may change a result, those that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def save_resolved(config: RunConfig, path: str | Path) -> None:
    """Write *config*, complete, with the ``versions`` that it ran on and the ``working_directory`` that its relative
    paths start from; ``load_recipe`` reads it back equal."""
    Path(path).write_text(resolved_text(config), encoding="utf-8")


def resolved_text(config: RunConfig) -> str:
    """What ``save_resolved`` writes."""
    about = {"versions": versions(), "working_directory": str(Path.cwd())}
    return _dumped({**config.model_dump(mode="json"), **about})


def without_store(text: str) -> str:
    """A resolved recipe for another place: without the URL of its store, which may hold a password."""
    content = yaml.safe_load(text)
    return _dumped({**content, "store": {**content["store"], "url": None}})


def _dumped(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
