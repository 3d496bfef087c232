"""Stored against replayed, column by column: how many rows are equal to the bit, and where the first one is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Tolerance:
    """A number may differ by ``absolute + relative * |stored|``."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g} x |stored|"

    def close(self, stored: np.ndarray, replayed: np.ndarray) -> np.ndarray:
        """Which pairs agree; NaN agrees with NaN, an infinity with itself."""
        with np.errstate(invalid="ignore"):
            near = np.abs(replayed - stored) <= self.absolute + self.relative * np.abs(stored)
        same = (stored == replayed) | (np.isnan(stored) & np.isnan(replayed))
        return same | (near & np.isfinite(stored) & np.isfinite(replayed))


@dataclass(frozen=True)
class Difference:
    """One value that came out otherwise; ``position`` is None for a column with a value per sample."""

    sample_id: str
    position: int | None
    stored: Any
    replayed: Any


@dataclass(frozen=True)
class Comparison:
    """A column over *rows* samples: *equal* of them to the bit.

    ``first_difference`` is the first one beyond the tolerance, if any is.
    """

    rows: int
    equal: int
    max_abs_diff: float | None
    first_difference: Difference | None
    within: bool

    @property
    def verdict(self) -> str:
        if self.equal == self.rows:
            return "identical"
        return "within_tolerance" if self.within else "different"


@dataclass(frozen=True)
class _Flat:
    """A column as numbers: values, the row and the position in it of each."""

    values: np.ndarray
    row: np.ndarray
    position: np.ndarray


def compare(ids: Sequence[str], stored: pa.Array, replayed: pa.Array, tolerance: Tolerance) -> Comparison:
    """*replayed* beside *stored*, a value per id each. Where shapes differ, values are compared one by one."""
    if _is_numeric(stored.type) and _same_shape(stored, replayed):
        return _compare_numbers(ids, stored, replayed, tolerance)
    return _compare_values(ids, stored.to_pylist(), replayed.to_pylist(), tolerance)


def _is_numeric(type_: pa.DataType) -> bool:
    inner = type_.value_type if pa.types.is_large_list(type_) else type_
    return pa.types.is_floating(inner) or pa.types.is_integer(inner) or pa.types.is_boolean(inner)


def _same_shape(stored: pa.Array, replayed: pa.Array) -> bool:
    if not stored.is_null().equals(replayed.is_null()):
        return False
    return not pa.types.is_large_list(stored.type) or bool(np.array_equal(_lengths(stored), _lengths(replayed)))


def _lengths(array: pa.Array) -> np.ndarray:
    return np.diff(array.offsets.to_numpy())


def _flat(array: pa.Array) -> _Flat:
    rows = np.arange(len(array))
    if not pa.types.is_large_list(array.type):
        there = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        return _Flat(_numbers(array.drop_null()), there, np.zeros(len(there), np.int64))
    lengths, offsets = _lengths(array), array.offsets.to_numpy()
    position = np.arange(lengths.sum()) - np.repeat(offsets[:-1] - offsets[0], lengths)
    return _Flat(_numbers(array.flatten()), np.repeat(rows, lengths), position)


def _numbers(array: pa.Array) -> np.ndarray:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _compare_numbers(ids: Sequence[str], stored: pa.Array, replayed: pa.Array, tolerance: Tolerance) -> Comparison:
    a, b = _flat(stored), _flat(replayed)
    bits_differ = _bits(a.values) != _bits(b.values)
    x, y = a.values.astype(np.float64), b.values.astype(np.float64)
    off = bits_differ & ~tolerance.close(x, y)
    equal = len(ids) - len(np.unique(a.row[bits_differ]))
    first = next((int(np.argmax(flags)) for flags in (off, bits_differ) if flags.any()), None)
    found = None
    if first is not None:
        position = int(a.position[first]) if pa.types.is_large_list(stored.type) else None
        found = Difference(ids[int(a.row[first])], position, a.values[first].item(), b.values[first].item())
    with np.errstate(invalid="ignore"):
        apart = np.where(bits_differ & (x != y) & ~(np.isnan(x) & np.isnan(y)), np.abs(x - y), 0.0)
    largest = float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))
    return Comparison(len(ids), equal, largest, found, not off.any())


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values


def _compare_values(ids: Sequence[str], stored: list[Any], replayed: list[Any], tolerance: Tolerance) -> Comparison:
    """Texts, missing values, lists of another length, lists of lists."""
    equal, largest, within = 0, 0.0, True
    numeric = True
    first: Difference | None = None
    first_off: Difference | None = None
    for sample_id, old, new in zip(ids, stored, replayed, strict=True):
        pairs = [pair for pair in _pairs(old, new) if not _same(pair[1], pair[2])]
        equal += not pairs
        for position, left, right in pairs:
            apart = _apart(left, right)
            numeric &= apart is not None
            largest = max(largest, math.inf if apart is None else apart)
            near = apart is not None and apart <= tolerance.absolute + tolerance.relative * abs(_worst(left))
            within &= near
            first = first or Difference(sample_id, position, left, right)
            if not near:
                first_off = first_off or Difference(sample_id, position, left, right)
    return Comparison(len(ids), equal, largest if numeric else None, first_off or first, within)


def _pairs(old: Any, new: Any) -> list[tuple[int | None, Any, Any]]:
    if not isinstance(old, list) or not isinstance(new, list):
        return [(None, old, new)]
    longest = max(len(old), len(new))
    padded = [(values + [None] * (longest - len(values))) for values in (old, new)]
    return [(position, *pair) for position, pair in enumerate(zip(*padded, strict=True))]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return True
    return bool(left == right)


def _apart(left: Any, right: Any) -> float | None:
    """How far two values are apart; None when they are not both numbers, or lists of as many."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        each = [_apart(a, b) for a, b in zip(left, right, strict=True)]
        return None if None in each else max((value for value in each if value is not None), default=0.0)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        apart = 0.0 if _same(left, right) else abs(float(left) - float(right))
        return math.inf if math.isnan(apart) else apart
    return None


def _worst(value: Any) -> float:
    if isinstance(value, list):
        return max(map(_worst, value), default=0.0)
    return abs(float(value))
