"""From a recipe to a RunConfig: file or built-in name → one level of ``extends`` → ``KEY=VALUE`` → validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.config.problems import explained
from schemas.config.run import RunConfig
from schemas.config.yaml_text import parse
from schemas.errors import ConfigError, did_you_mean

#: Built-in recipes lie beside this package, in a checkout and in site-packages alike.
BUILT_IN = Path(__file__).resolve().parents[2] / "configs"

#: Keys of a recipe file that are not settings: its base, and what ``save_resolved`` notes.
_ABOUT_THE_FILE = ("extends", "versions", "working_directory")


def load_recipe(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration that *recipe* (a YAML file, or a built-in recipe's name) and ``KEY=VALUE`` *overrides* give.

    Keys are dotted paths, values are YAML: ``grpo.max_num_steps=5``, ``data.train.0.agent=rev``.
    Raises ConfigError with a line for every mistake.
    """
    path = find_recipe(recipe)
    values = _read_with_base(path)
    if isinstance(run := values.setdefault("run", {}), dict):
        run.setdefault("name", path.stem)
    return _changed(values, overrides)


def load_resolved(text: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a *text* that ``save_resolved`` wrote, with *overrides*. Raises ConfigError."""
    return _changed(_without_notes(_sections(text, "that the store recorded")), overrides)


def _changed(values: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    for override in overrides:
        _apply(values, override)
    return validate(values)


def validate(values: dict[str, Any]) -> RunConfig:
    """A RunConfig of nested mappings. Raises ConfigError with a line for every mistake."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(explained(error.errors(), RunConfig))) from None


def recipe_names() -> list[str]:
    """Names of the built-in recipes."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def find_recipe(recipe: str) -> Path:
    """The file of a recipe given by path or by built-in name. Raises ConfigError."""
    path = Path(recipe)
    if path.is_file():
        return path
    built_in = BUILT_IN / f"{recipe.removesuffix('.yaml')}.yaml"
    if path.name == recipe and built_in.is_file():
        return built_in
    if path.is_dir():
        raise ConfigError(f"recipe {recipe!r}: expected a YAML file, got a folder")
    raise ConfigError(
        f"recipe {recipe!r}: no such file or built-in recipe{did_you_mean(path.stem, recipe_names())}; "
        f"built in: {', '.join(recipe_names())}"
    )


def _read_with_base(path: Path) -> dict[str, Any]:
    values = _read(path)
    base_name = values.get("extends")
    if base_name is not None:
        if not isinstance(base_name, str):
            raise ConfigError(f"{path}: extends: expected the name of a recipe file, got {base_name!r}")
        base_path = path.parent / base_name
        if not base_path.is_file():
            base_path = _named_by(path, base_name)
        base = _read(base_path)
        if "extends" in base:
            raise ConfigError(f"{path}: extends {base_name}, which extends {base['extends']}; one level is allowed")
        values = _merge(base, values)
    return _without_notes(values)


def _without_notes(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _ABOUT_THE_FILE}


def _named_by(path: Path, base_name: str) -> Path:
    try:
        return find_recipe(base_name)
    except ConfigError as error:
        raise ConfigError(f"{path}: extends {base_name}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: cannot be read: {error}") from None
    return _sections(text, str(path))


def _sections(text: str, source: str) -> dict[str, Any]:
    values = parse(text, source)
    if not isinstance(values, dict):
        got = "nothing" if values is None else type(values).__name__
        raise ConfigError(f"recipe {source}: expected a mapping of sections, got {got}")
    return {section: value for section, value in values.items() if value is not None}  # "grpo:" with nothing below it


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """*top* laid over *base*: mappings key by key, everything else replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _apply(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r}: expected KEY=VALUE with a dotted key, as in grpo.max_num_steps=5")
    target: Any = values
    for key in keys[:-1]:
        target = _step_into(target, key, override)
    _put(target, keys[-1], parse(text, f"override {override!r}"), override)


def _step_into(target: Any, key: str, override: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, key, override)]
    if target.get(key) is None:
        target[key] = {}
    if not isinstance(target[key], (dict, list)):
        raise ConfigError(f"override {override!r}: {key} holds {target[key]!r}, so there is nothing below it")
    return target[key]


def _put(target: Any, key: str, value: Any, override: str) -> None:
    target[_index(target, key, override) if isinstance(target, list) else key] = value


def _index(target: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(target):
        raise ConfigError(f"override {override!r}: expected a position from 0 to {len(target) - 1}, got {key!r}")
    return int(key)
