"""Prompts: rows of JSON Lines files, or of a function, as the recipe names them.

A row is ``{"prompt": text or "messages": [{role, content}…], "answer": …, "agent": …}``, or a NeMo-Gym row with
``responses_create_params.input`` and ``agent_ref.name``. Rows that cannot be used are collected with file, line
and reason; they are reported, never trained on and never a surprise.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.batch import Batch
from schemas.config.job import DataSource
from schemas.errors import InputError

#: Rows left out that are named one by one.
LISTED = 10


#: Alias of the teacher that an agent is routed to.
Route = Callable[[str], str | None]


class Prompt(NamedTuple):
    """One data row, ready to be admitted: the values of the columns of these names."""

    prompt_id: str
    prompt: str
    messages: str | None
    answer: str | None
    agent: str
    checker: str


#: So many bytes of text in a column need offsets of 64 bits.
_LARGE = 1 << 31


@dataclass
class PromptSet:
    """The usable rows of some sources, columns as in :class:`Prompt`, and a line about each row that is not."""

    table: pa.Table
    rejected: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, prompts: Sequence[Prompt], rejected: list[str] | None = None) -> PromptSet:
        """These rows."""
        columns = dict(zip(Prompt._fields, zip(*prompts, strict=True) if prompts else repeat(()), strict=False))
        large = pa.schema([(name, pa.large_string()) for name in columns])
        table = Batch.of([prompt.prompt_id for prompt in prompts], columns, large).table
        if all(column.nbytes < _LARGE for column in table.columns):
            table = table.cast(pa.schema([(name, pa.string()) for name in columns]))
        return cls(table, rejected or [])

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def routed(self, route: Route) -> PromptSet:
        """With the column ``teacher``. Raises what *route* raises for an agent that it does not know."""
        agents = self.table.column("agent").combine_chunks().dictionary_encode()
        teachers = pa.array([route(agent) for agent in agents.dictionary.to_pylist()], pa.string())
        return replace(self, table=self.table.append_column("teacher", teachers.take(agents.indices)))

    def left_out(self, what: str) -> list[str]:
        """A line about each of the first rows that cannot be used, and one about all of them."""
        if not self.rejected:
            return []
        rows = len(self) + len(self.rejected)
        summary = f"{what}: {len(self.rejected):,} of {rows:,} rows left out, {len(self):,} used"
        return [*(f"prompt left out: {line}" for line in self.rejected[:LISTED]), summary]


class UnusableRow(ValueError):
    """Why a data row cannot be a prompt."""


def load_prompts(sources: Sequence[DataSource], what: str) -> PromptSet:
    """Every row of *sources*. Raises InputError when a source is missing or nothing can be used."""
    prompts: list[Prompt] = []
    rejected: list[str] = []
    names = _short_names(sources)
    for source, name in zip(sources, names, strict=True):
        for where, number, row in _rows(source):
            try:
                prompts.append(_prompt(row, source, f"{name}:{number}"))
            except UnusableRow as reason:
                rejected.append(f"{where}: {reason}")
    if sources and not prompts:
        listed = "".join(f"\n  {line}" for line in rejected[:5])
        origin = ", ".join(source.path or str(source.generator) for source in sources)
        why = f"; expected an object with prompt, answer and agent in each line{listed}" if listed else " (it is empty)"
        raise InputError(f"{what}: no usable prompt in {origin}{why}")
    return PromptSet.of(prompts, rejected)


def _short_names(sources: Sequence[DataSource]) -> list[str]:
    """The stem of each file, numbered where two share one."""
    stems = [Path(source.path).stem if source.path else str(source.generator).rpartition(":")[2] for source in sources]
    return [stem if stems.count(stem) == 1 else f"{stem}~{index}" for index, stem in enumerate(stems)]


def _rows(source: DataSource) -> Iterator[tuple[str, int, Any]]:
    """(where it stands, its number from 1, the row)."""
    if source.path is None:
        for number, row in enumerate(_generated(str(source.generator)), 1):
            yield f"{source.generator} row {number}", number, row
        return
    path = Path(source.path)
    if not path.is_file():
        hint = "; `opd build-proxy runs/proxy` makes the quickstart's" if "proxy" in path.parts else ""
        raise InputError(f"prompt file {source.path!r}: no such file{hint}")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}:{number}", number, line


def _generated(name: str) -> Iterable[Any]:
    module, _, function = name.partition(":")
    try:
        return iter(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"data generator {name!r}: expected module:function that yields rows ({error})") from error


def _prompt(row: Any, source: DataSource, prompt_id: str) -> Prompt:
    if isinstance(row, bytes):
        try:
            row = json.loads(row)
        except ValueError as error:
            raise UnusableRow(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise UnusableRow(f"expected an object, got {type(row).__name__}")
    messages = _messages(row)
    plain = len(messages) == 1 and messages[0]["role"] == "user"
    return Prompt(
        prompt_id=prompt_id,
        prompt=messages[-1]["content"],
        messages=None if plain else json.dumps(messages, ensure_ascii=False),
        answer=_answer(row, source.answer_field),
        agent=_agent(row, source),
        checker=source.checker,
    )


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    gym = row.get("responses_create_params")
    given = row.get("messages") or row.get("prompt") or (gym.get("input") if isinstance(gym, dict) else None)
    if isinstance(given, str) and given.strip():
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise UnusableRow("no prompt: expected a text 'prompt' or a list 'messages' that is not empty")
    messages = [_message(message) for message in given]
    if messages[-1]["role"] == "assistant":
        raise UnusableRow("the last message is the assistant's; expected one that it answers")
    return messages


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise UnusableRow(f"a message must be an object with role and content, got {str(message)[:60]}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part) for part in content)
    if not isinstance(content, str):
        raise UnusableRow(f"the content of a message must be text, got {type(content).__name__}")
    return {"role": message["role"], "content": content}


def _text_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise UnusableRow(f"a content part of type {kind!r}; only text can be used")
    return text


def _answer(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise UnusableRow(f"{name}: expected text or a number, got {type(value).__name__}")


def _agent(row: dict[str, Any], source: DataSource) -> str:
    reference = row.get("agent") or row.get("agent_ref") or source.agent
    name = reference.get("name") if isinstance(reference, dict) else reference
    if not isinstance(name, str) or not name:
        raise UnusableRow("no agent: expected an 'agent', or a default one on the data source")
    return name


class Order:
    """Which of so many prompts each admission takes: a fresh permutation each epoch, decided by the seed alone."""

    def __init__(self, prompts: int, seed: int) -> None:
        self.prompts = prompts
        self.seed = seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def rows(self, first: int, count: int) -> list[int]:
        """The rows of *count* admissions from *first* on."""
        found: list[int] = []
        while count:
            epoch, position = divmod(first, self.prompts)
            some = self._of(epoch)[position : position + count].tolist()
            found, first, count = found + some, first + len(some), count - len(some)
        return found

    def _of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.prompts)
        return self._permutation
