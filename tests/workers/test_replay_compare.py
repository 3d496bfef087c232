"""Stored beside replayed, on values worked out by hand."""

from __future__ import annotations

import math

import pyarrow as pa

from workers.replay.compare import Tolerance, compare

TIGHT = Tolerance(1e-3, 0.0)
TOKENS = pa.large_list(pa.float32())


def test_equal_to_the_bit_is_identical_whatever_the_bits_are() -> None:
    column = pa.array([[0.0, math.nan], [math.inf], []], TOKENS)
    found = compare(["a", "b", "c"], column, column, TIGHT)
    assert (found.rows, found.equal, found.max_abs_diff, found.first_difference) == (3, 3, 0.0, None)
    assert found.verdict == "identical"


def test_the_first_token_beyond_the_tolerance_is_named_before_smaller_ones() -> None:
    old = pa.array([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], TOKENS)
    new = pa.array([[1.0, 2.0005], [3.0], [4.0, 5.5, 6.25]], TOKENS)
    found = compare(["a", "b", "c"], old, new, TIGHT)
    first = found.first_difference
    assert first is not None and (first.sample_id, first.position, first.stored, first.replayed) == ("c", 1, 5.0, 5.5)
    assert (found.rows, found.equal, found.max_abs_diff, found.verdict) == (3, 1, 0.5, "different")


def test_small_differences_are_within_tolerance() -> None:
    found = compare(["a"], pa.array([1.0], pa.float32()), pa.array([1.0005], pa.float32()), TIGHT)
    assert found.verdict == "within_tolerance" and found.first_difference is not None


def test_a_nan_that_was_a_number_is_different() -> None:
    found = compare(["a", "b"], pa.array([1.0, 2.0], pa.float32()), pa.array([1.0, math.nan], pa.float32()), TIGHT)
    assert (found.verdict, found.max_abs_diff) == ("different", math.inf)


def test_another_length_is_different_at_the_first_position_too_many() -> None:
    found = compare(["a"], pa.array([[1.0, 2.0]], TOKENS), pa.array([[1.0, 2.0, 3.0]], TOKENS), TIGHT)
    first = found.first_difference
    assert first is not None and (first.position, first.stored, first.replayed) == (2, None, 3.0)
    assert (found.verdict, found.max_abs_diff) == ("different", None)


def test_texts_and_missing_values_are_compared_as_they_are() -> None:
    found = compare(["a", "b", "c"], pa.array(["x", None, None]), pa.array(["x", None, "y"]), TIGHT)
    first = found.first_difference
    assert (found.equal, found.max_abs_diff) == (2, None)
    assert first is not None and (first.sample_id, first.stored, first.replayed) == ("c", None, "y")


def test_vectors_per_token_are_compared_by_token() -> None:
    type_ = pa.large_list(pa.list_(pa.float32()))
    old, new = pa.array([[[1.0], [2.0, 3.0]]], type_), pa.array([[[1.0], [2.0, 3.5]]], type_)
    first = compare(["a"], old, new, TIGHT).first_difference
    assert first is not None and (first.position, first.stored, first.replayed) == (1, [2.0, 3.0], [2.0, 3.5])
