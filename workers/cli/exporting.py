"""What an export holds.

    samples.parquet or samples.jsonl    a row a sample, every column
    tokens.parquet                      a row a token
    steps.parquet or steps.jsonl        a row a trained step
    plane/, config.yaml, tokenizer/     with --step: the steps as a small store of their own

JSON Lines keep one type a column: NaN and ±inf are null there; Parquet has them as they are.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dataplane import DataPlane, open_plane
from dataplane.sql import Limits, stream_sql
from schemas.columns import TRAIN
from schemas.config.resolved import without_store
from schemas.errors import InputError
from workers.cli.output import plain
from workers.cli.stores import about_condition

#: A whole run may take as long as it takes.
_LIMITS = Limits(timeout_s=24 * 3600.0)


@dataclass(frozen=True)
class Asked:
    """What to export: all samples, those of some steps, or those that meet a SQL condition."""

    kind: str = "parquet"
    steps: Sequence[int] = ()
    where: str | None = None
    weights: bool = False


def write_export(plane: DataPlane, run: Path, directory: Path, asked: Asked) -> dict[str, int]:
    """Fill *directory*, which appears whole or not at all; rows by file. Raises InputError."""
    if directory.exists():
        raise InputError(f"{directory}: exists already; remove it or name another directory")
    steps = asked.steps
    for step in steps:
        plane.members(step)  # says what is wrong with a step that is not there
    condition = f"step in ({', '.join(map(str, steps))}) and partition = '{TRAIN}'" if steps else asked.where or "true"
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.part")
    partial.mkdir(parents=True)
    try:
        with about_condition(asked.where) if asked.where else nullcontext():
            counts = _tables(plane, partial, asked.kind, condition, steps)
        if steps:
            weights = _copy_weights(plane, run, partial, steps) if asked.weights else {}
            copy_steps(plane, partial / "plane", steps, weights)
            _copy_beside(run, partial)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _tables(plane: DataPlane, directory: Path, kind: str, condition: str, steps: Sequence[int]) -> dict[str, int]:
    picked = f"select partition, sample_id from samples where ({condition}\n)"
    of_steps = f" where step in ({', '.join(map(str, steps))})" if steps else ""
    queries = {
        f"samples.{kind}": f"from samples where ({condition}\n)",
        "tokens.parquet": f"from tokens where (partition, sample_id) in ({picked})",
        f"steps.{kind}": f"from steps{of_steps} order by step",
    }
    counts = {}
    for name, query in queries.items():
        with stream_sql(plane, query, limits=_LIMITS) as batches, (directory / name).open("wb") as file:
            counts[name] = (_write_lines if name.endswith("jsonl") else _write_parquet)(batches, file)
    return counts


def _write_parquet(batches: pa.RecordBatchReader, file: IO[bytes]) -> int:
    rows = 0
    with parquet.ParquetWriter(file, batches.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _write_lines(batches: pa.RecordBatchReader, file: IO[bytes]) -> int:
    rows = 0
    for batch in batches:
        for row in batch.to_pylist():
            file.write(json.dumps(plain(_finite(row)), ensure_ascii=False).encode() + b"\n")
            rows += 1
    return rows


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def copy_steps(plane: DataPlane, store: Path, steps: Sequence[int], weights: Mapping[int, str]) -> None:
    """The rows of *steps* with every column, their seals and metrics, and the vocabulary, as a store of their own.

    *weights* are versions that lie beside it, by path.
    """
    schemas = plane.partitions()
    trained = {step.step: step for step in plane.steps()}
    with open_plane(store) as copy:
        for name in (TRAIN, "vocabulary"):
            if name in schemas:
                copy.create_partition(name, schemas[name])
        if "vocabulary" in schemas:
            _copy_rows(plane, copy, "vocabulary", plane.ids("vocabulary"))
        for fact, value in plane.facts().items():
            copy.record_fact(fact, value)
        for version, path in weights.items():
            copy.record_published(version, path)
        errors = _errors(plane)
        for step in steps:
            members = plane.members(step)
            _copy_rows(plane, copy, TRAIN, members)
            copy.seal(step, members)
            copy.fail(TRAIN, {sample_id: errors[sample_id] for sample_id in members if sample_id in errors})
            if trained[step].trained_at is not None:
                copy.record_trained(step, trained[step].metrics or {})


def _copy_weights(plane: DataPlane, run: Path, directory: Path, steps: Sequence[int]) -> dict[int, str]:
    """The weights at the start of each step, as files of published versions; those of version 0 are the recipe's."""
    left = {checkpoint.step: Path(checkpoint.path) / "model.safetensors" for checkpoint in plane.checkpoints()}
    left |= {weights.version: Path(weights.path) for weights in plane.published() if Path(weights.path).is_file()}
    copied = {}
    for version in [step - 1 for step in steps if step > 1]:
        if version not in left or not left[version].is_file():
            raise InputError(f"--weights: those of version {version} are gone from {run}; leave the option out")
        target = directory / "weights" / f"version_{version:06d}.safetensors"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(left[version], target)
        copied[version] = f"weights/{target.name}"
    return copied


def _copy_rows(plane: DataPlane, copy: DataPlane, partition: str, ids: Sequence[str]) -> None:
    batch = plane.get(partition, ids, plane.partitions()[partition].names, missing="null")
    copy.put(partition, ids, {name: batch.array(name) for name in batch if batch.array(name).null_count < len(batch)})


def _errors(plane: DataPlane) -> dict[str, str]:
    state = plane.row_state(TRAIN)
    failed = state.filter(pc.is_valid(state["error"]))
    return dict(zip(failed["sample_id"].to_pylist(), failed["error"].to_pylist(), strict=True))


def _copy_beside(run: Path, directory: Path) -> None:
    """The recipe and the tokenizer, where the run's directory has them."""
    for place in (run, run.parent):
        if (place / "config.yaml").is_file():
            recipe = without_store((place / "config.yaml").read_text(encoding="utf-8"))
            (directory / "config.yaml").write_text(recipe, encoding="utf-8")
            if (place / "tokenizer").is_dir():
                shutil.copytree(place / "tokenizer", directory / "tokenizer")
            return
