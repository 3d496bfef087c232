"""An agent-balanced subset of a prompt file: the same rows for the same file, seed and number, on every machine.

A row is picked by a hash of the seed and its bytes, so that neither the order of the file nor another agent's rows
decide, and a larger subset holds the smaller one. Rows are kept byte for byte, in the order of the file. Beside them
lies a manifest with hashes of what was read and written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

from schemas.config import DataSource
from schemas.errors import InputError, did_you_mean
from workers.data import PromptSet, load_prompts

PROMPTS, MANIFEST = "prompts.jsonl", "manifest.json"


@dataclass(frozen=True)
class Subset:
    """What was made: rows by agent, rows that were left out as they are in the file twice, and unusable ones."""

    taken: dict[str, int]
    repeated: int
    rejected: list[str] = field(default_factory=list)


def build_subset(source: Path, directory: Path, per_agent: int, *, seed: int = 0, agents: Sequence[str] = ()) -> Subset:
    """Write *per_agent* rows of each agent (or of *agents* alone) in *source* to *directory*, complete or absent.

    The manifest says nothing of when or where it was made. Raises InputError when the directory is there, the file
    cannot be read, or an agent has too few rows.
    """
    if directory.exists():
        raise InputError(f"{directory}: exists already; remove it or name another directory")
    found = load_prompts([DataSource(path=str(source))], "--from")
    content = source.read_bytes()
    lines = content.split(b"\n")
    rows = _rows_by_agent(found, lines)
    picked = {
        agent: sorted(rows[agent], key=lambda number: _rank(seed, lines[number]))[:per_agent]
        for agent in _wanted(rows, agents, per_agent, source)
    }
    kept = b"".join(lines[number].strip() + b"\n" for number in sorted(chain.from_iterable(picked.values())))
    repeated = len(found) - sum(map(len, rows.values()))
    manifest = {
        "per_agent": per_agent,
        "seed": seed,
        "agents": {agent: {"usable": len(rows[agent]), "taken": len(numbers)} for agent, numbers in picked.items()},
        "left_out": {"repeated": repeated, "unusable": _reasons(found)},
        "source": {"name": source.name, **_hashes(content)},
        "outputs": {PROMPTS: _hashes(kept)},
    }
    _write(directory, kept, manifest)
    return Subset({agent: len(numbers) for agent, numbers in picked.items()}, repeated, found.rejected)


def _rows_by_agent(found: PromptSet, lines: Sequence[bytes]) -> dict[str, list[int]]:
    """Line indexes of each agent's usable rows; of equal lines the first."""
    rows: dict[str, list[int]] = {}
    seen: set[bytes] = set()
    for prompt_id, agent in zip(*(found.table[name].to_pylist() for name in ("prompt_id", "agent")), strict=True):
        number = int(prompt_id.rpartition(":")[2]) - 1
        line = lines[number].strip()
        if line not in seen:
            seen.add(line)
            rows.setdefault(agent, []).append(number)
    return dict(sorted(rows.items()))


def _wanted(rows: dict[str, list[int]], agents: Sequence[str], per_agent: int, source: Path) -> list[str]:
    """The agents to take, each with enough rows."""
    for agent in (agent for agent in agents if agent not in rows):
        near = did_you_mean(agent, rows)
        raise InputError(f"--agent {agent}: no row of {source} is this agent's{near}; {_counts(rows)}")
    wanted = sorted(set(agents)) or list(rows)
    short = [agent for agent in wanted if len(rows[agent]) < per_agent]
    if short:
        raise InputError(
            f"--per-agent {per_agent}: {source} has fewer usable rows of {', '.join(short)}; {_counts(rows)}: ask for "
            "fewer, or leave agents out by naming the others with --agent"
        )
    return wanted


def _counts(rows: dict[str, list[int]]) -> str:
    return "it has " + ", ".join(f"{agent} {len(numbers)}" for agent, numbers in rows.items())


def _rank(seed: int, line: bytes) -> tuple[int, bytes]:
    """Where a row stands in the draw."""
    row = line.strip()
    return xxhash.xxh3_64_intdigest(b"%d:" % seed + row), row


def _reasons(found: PromptSet) -> dict[str, int]:
    """How many rows cannot be used, by what is wrong with them."""
    return dict(sorted(Counter(line.partition(": ")[2].partition(" (")[0] for line in found.rejected).items()))


def _hashes(content: bytes) -> dict[str, Any]:
    return {
        "bytes": len(content),
        "rows": sum(bool(line.strip()) for line in content.split(b"\n")),
        "sha256": hashlib.sha256(content).hexdigest(),
        "xxh3_64": xxhash.xxh3_64_hexdigest(content),
    }


def _write(directory: Path, kept: bytes, manifest: dict[str, Any]) -> None:
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        (partial / PROMPTS).write_bytes(kept)
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
