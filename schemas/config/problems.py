"""pydantic's findings as sentences: which key, what came, what was expected, and the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.errors import did_you_mean

#: What is expected where pydantic speaks of Python's types.
_EXPECTED = {
    "tuple_type": "expected a list of two numbers",
    "missing": "expected a list of two numbers",
    "list_type": "expected a list",
    "dict_type": "expected a mapping of keys",
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "model_type": "expected a mapping of keys",
    "model_attributes_type": "expected a mapping of keys",
    "string_too_short": "expected a text that is not empty",
}


def explained(problems: Sequence[Mapping[str, Any]], root: type[BaseModel]) -> Iterator[str]:
    """A line for every mistake; the alternatives of one value are one mistake."""
    by_place: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for problem in problems:
        by_place.setdefault(_place(problem, root), []).append(problem)
    for loc, found in by_place.items():
        if len(found) > 1:
            expected = " or ".join(_expected(problem).removeprefix("expected ") for problem in found)
            yield f"{'.'.join(map(str, loc))}: expected {expected}, got {_short(found[0]['input'])}"
        else:
            yield explain({**found[0], "loc": loc}, root)


def _place(problem: Mapping[str, Any], root: type[BaseModel]) -> tuple[Any, ...]:
    """Where a value stands in the recipe, without the name of the alternative that refused it or the item missing."""
    loc = tuple(problem["loc"])
    origin = get_origin(kind_at(loc[:-1], root))
    inside = origin in (Union, UnionType) or (origin is tuple and problem["type"] == "missing")
    return loc[:-1] if inside else loc


def explain(problem: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One finding of a ValidationError as one line (a cross-field refusal may bring several)."""
    loc = tuple(problem["loc"])
    path = ".".join(str(part) for part in loc)
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key{_nearest(loc, root)}"
    if problem["type"] == "missing" and get_origin(kind_at(loc, root)) is not tuple:
        return f"{path}: is required{_meaning(loc, root)}"
    if problem["type"] == "value_error":
        return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
    return f"{path}: {_expected(problem)}{_items(loc, root, problem)}, got {_short(problem['input'])}"


def _expected(problem: Mapping[str, Any]) -> str:
    if problem["type"] in ("too_short", "too_long"):
        least, most = (problem["ctx"].get(bound) for bound in ("min_length", "max_length"))
        return f"expected at least {least} entry" if most is None else f"expected {most} entries"
    said = problem["msg"].replace("Input should be", "expected", 1)
    said = re.sub("^expected (?=greater|less)", "expected a number ", said)
    return _EXPECTED.get(problem["type"], said)


def _items(loc: tuple[Any, ...], root: type[BaseModel], problem: Mapping[str, Any]) -> str:
    """What the entries of a list of sections are, where something else was given in place of the list."""
    section = section_at((*loc, 0), root) if problem["type"] == "list_type" else None
    return f", each a mapping of {', '.join(section.model_fields)}" if section else ""


def section_at(loc: tuple[Any, ...], root: type[BaseModel]) -> type[BaseModel] | None:
    """The section class that a location inside a recipe lies in; None where it is not a section."""
    kind = kind_at(loc, root)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def kind_at(loc: tuple[Any, ...], root: type[BaseModel]) -> Any:
    """The type of what lies at a location inside a recipe, without Annotated and Optional; None where nothing does."""
    kind: Any = root
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        else:  # a position in a list of sections, or a key of a mapping to sections
            kind = get_args(kind)[-1] if get_args(kind) else None
        kind = _bare(kind)
    return kind


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
