"""pydantic's findings as sentences: which key, what came, what was expected, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.errors import did_you_mean


def explain(problem: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One finding of a ValidationError as one line (a cross-field refusal may bring several)."""
    loc = tuple(problem["loc"])
    path = ".".join(str(part) for part in loc)
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key{_nearest(loc, root)}"
    if problem["type"] == "missing":
        return f"{path}: is required{_meaning(loc, root)}"
    if problem["type"] == "value_error":
        return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
    expected = problem["msg"].replace("Input should be", "expected", 1)
    if problem["type"].startswith("model_"):
        expected = "expected a mapping of keys"
    return f"{path}: {expected}, got {_short(problem['input'])}"


def section_at(loc: tuple[Any, ...], root: type[BaseModel]) -> type[BaseModel] | None:
    """The section class that a location inside a recipe lies in; None where it is not a section."""
    kind: Any = root
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        else:  # a position in a list of sections, or a key of a mapping to sections
            kind = get_args(kind)[-1] if get_args(kind) else None
        kind = _bare(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _bare(kind: Any) -> Any:
    """*kind* without Annotated and Optional around it."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        real = [part for part in get_args(kind) if part is not type(None)]
        return _bare(real[0]) if len(real) == 1 else kind
    return kind


def _nearest(loc: tuple[Any, ...], root: type[BaseModel]) -> str:
    word = str(loc[-1])
    section = section_at(loc[:-1], root)
    known = list(section.model_fields) if section else []
    if hint := did_you_mean(word, known):
        return hint
    elsewhere = [path for path in key_paths(root) if path.rpartition(".")[2] == word]
    return f" (did you mean {elsewhere[0]!r}?)" if elsewhere else f"; known here: {', '.join(known)}"


def key_paths(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of every key below *section* (not inside lists and mappings)."""
    for name, field in section.model_fields.items():
        yield prefix + name
        kind = _bare(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from key_paths(kind, f"{prefix}{name}.")


def _meaning(loc: tuple[Any, ...], root: type[BaseModel]) -> str:
    section = section_at(loc[:-1], root)
    field = section.model_fields.get(str(loc[-1])) if section else None
    return f" ({field.description})" if field and field.description else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
