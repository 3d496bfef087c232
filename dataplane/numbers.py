"""Row numbers: runs ``[start, count, …]`` in records, arrays in memory, and a set that finds its smallest quickly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

_CHUNK_BITS = 10


def to_runs(numbers: Ints) -> list[int]:
    """*numbers*, in their order, as ``[start, count, …]`` of rising neighbours."""
    if len(numbers) == 0:
        return []
    if isinstance(as_slice(numbers), slice):  # the usual case
        return [int(numbers[0]), len(numbers)]
    breaks = np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1
    firsts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((firsts, [len(numbers)])))
    return np.stack((numbers[firsts], counts), axis=1).ravel().tolist()


def from_runs(runs: Sequence[int]) -> Ints:
    """The numbers of ``[start, count, …]``."""
    if len(runs) == 2:  # the usual case
        return np.arange(runs[0], runs[0] + runs[1], dtype=np.int64)
    pairs = np.array(runs, dtype=np.int64).reshape(-1, 2)
    starts, counts = pairs[:, 0], pairs[:, 1]
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum(), dtype=np.int64)


def run_length(runs: Sequence[int]) -> int:
    """How many numbers *runs* hold."""
    return sum(runs[1::2])


def in_runs(runs: Sequence[int], number: int) -> bool:
    """Whether *runs* hold *number*."""
    return any(start <= number < start + count for start, count in zip(runs[::2], runs[1::2], strict=True))


def not_in(numbers: Ints, others: Ints) -> Bools:
    """Which of *numbers* are not among *others*; quick where both are the same, as mostly."""
    if not len(others):
        return np.ones(len(numbers), np.bool_)
    if np.array_equal(numbers, others):
        return np.zeros(len(numbers), np.bool_)
    return np.isin(numbers, others, invert=True)


def distinct(values: Ints) -> list[int]:
    """Each value once, rising; quick where all are equal, as blocks of a batch mostly are."""
    if len(values) and (values == values[0]).all():
        return [int(values[0])]
    return np.unique(values).tolist()


def as_slice(positions: Ints) -> Ints | slice:
    """Rising neighbours as a slice, which numpy reads and fills much faster; others, and negative ones, as they are."""
    count = len(positions)
    if not count or int(positions[-1]) - int(positions[0]) != count - 1 or positions[0] < 0:
        return positions
    if count > 2 and not (positions[1:] - positions[:-1] == 1).all():
        return positions
    return slice(int(positions[0]), int(positions[-1]) + 1)


class Grown:
    """A numpy array that grows at its end; use ``data`` with positions below the size its owner knows.

    What lies behind them is the fill value, so that growing is rarely more than a look.
    """

    __slots__ = ("data", "fill")

    def __init__(self, dtype: type, fill: int | bool, size: int) -> None:
        self.fill = fill
        self.data: NDArray[Any] = np.full(size, fill, dtype=dtype)

    def reach(self, size: int) -> None:
        """Make room for *size* positions."""
        if size > len(self.data):
            grown = np.full(max(1024, size, len(self.data) * 5 // 4), self.fill, dtype=self.data.dtype)
            grown[: len(self.data)] = self.data
            self.data = grown

    def keep(self, positions: Ints) -> None:
        """Only these positions remain, moved together."""
        self.data = self.data[positions]


class ReadySet:
    """A set of positions as a bitmap with a count per 1,024: the smallest ones are found in time that does not grow.

    At a million positions ``first(64)`` looks at a thousand counts and then at one or two chunks.
    """

    __slots__ = ("_counts", "_size", "bits")

    def __init__(self, bits: Bools) -> None:
        size = len(bits)
        chunks = (size >> _CHUNK_BITS) + 1
        padded = np.zeros(chunks << _CHUNK_BITS, dtype=np.bool_)
        padded[:size] = bits
        self.bits = padded
        self._counts = padded.reshape(chunks, -1).sum(axis=1, dtype=np.int64)
        self._size = int(self._counts.sum())

    def set(self, positions: Ints, wanted: Bools) -> None:
        """Make each position a member or not. *positions* must not repeat."""
        if len(positions) == 0:
            return
        self._reach(int(positions.max()))
        changed = self.bits[as_slice(positions)] != wanted
        if not changed.any():  # as after every record that concerns another task
            return
        positions, wanted = positions[changed], wanted[changed]
        self.bits[positions] = wanted
        np.add.at(self._counts, positions >> _CHUNK_BITS, np.where(wanted, 1, -1))
        self._size += 2 * int(np.count_nonzero(wanted)) - len(wanted)

    def has(self, positions: Ints) -> Bools:
        """Which of these are members; negative ones are not."""
        there = (positions >= 0) & (positions < len(self.bits))
        return self.bits[positions] if there.all() else self.bits[np.where(there, positions, 0)] & there

    def first(self, limit: int | None) -> Ints:
        """The smallest *limit* members, rising; all of them for None."""
        if limit is None:
            return np.flatnonzero(self.bits)
        found: list[Ints] = []
        for chunk in np.flatnonzero(self._counts):
            start = int(chunk) << _CHUNK_BITS
            members = np.flatnonzero(self.bits[start : start + (1 << _CHUNK_BITS)])[:limit] + start
            found.append(members)
            limit -= len(members)
            if limit <= 0:
                break
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._size

    def _reach(self, position: int) -> None:
        chunks = (position >> _CHUNK_BITS) + 1
        if chunks > len(self._counts):
            chunks = max(chunks, len(self._counts) * 3 // 2)
            bits = np.zeros(chunks << _CHUNK_BITS, dtype=np.bool_)
            bits[: len(self.bits)] = self.bits
            counts = np.zeros(chunks, dtype=np.int64)
            counts[: len(self._counts)] = self._counts
            self.bits, self._counts = bits, counts
