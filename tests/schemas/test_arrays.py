"""Columns come in many shapes and leave in exactly the declared Arrow type, or are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import to_arrow
from schemas.errors import InputError

INT32, FLOAT32, TEXT = pa.int32(), pa.float32(), pa.string()
TOKENS, LOGPROBS = pa.large_list(INT32), pa.large_list(FLOAT32)


def convert(data: Any, type_: pa.DataType, rows: int = 2) -> list[Any]:
    array = to_arrow(data, pa.field("c", type_), [f"s{row}" for row in range(rows)])
    assert array.type == type_
    return array.to_pylist()


SAME_TOKENS = {
    "lists": [[5, 6, 7], [8]],
    "arrays": [np.array([5, 6, 7]), np.array([8])],
    "tensors": [torch.tensor([5, 6, 7]), torch.tensor([8])],
    "tensors and lists": [torch.tensor([5, 6, 7]), [8]],
    "object array": np.array([[5, 6, 7], [8]], dtype=object),
    "Arrow": pa.array([[5, 6, 7], [8]]),
    "chunked Arrow": pa.chunked_array([[[5, 6, 7]], [[8]]]),
    "values and offsets": (np.array([5, 6, 7, 8]), np.array([0, 3, 4])),
    "tensor values and offsets": (torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 4])),
    "jagged tensor": torch.nested.nested_tensor([torch.tensor([5, 6, 7]), torch.tensor([8])], layout=torch.jagged),
}


@pytest.mark.parametrize("data", SAME_TOKENS.values(), ids=SAME_TOKENS)
def test_token_columns_of_every_kind_are_the_same(data: Any) -> None:
    assert convert(data, TOKENS) == [[5, 6, 7], [8]]


def test_a_square_tensor_is_rows_of_equal_length() -> None:
    assert convert(torch.tensor([[1, 2, 3], [4, 5, 6]]), TOKENS) == [[1, 2, 3], [4, 5, 6]]


def test_missing_rows_stay_missing_and_empty_ones_empty() -> None:
    assert convert([torch.tensor([1.5, 2.5]), None, []], LOGPROBS, rows=3) == [[1.5, 2.5], None, []]


def test_bfloat16_widens_without_rounding() -> None:
    values = torch.tensor([1.0, -0.15625, 3.0e38], dtype=torch.bfloat16)
    assert convert(values, FLOAT32, rows=3) == values.float().tolist()


def test_nan_and_infinities_pass_bit_for_bit() -> None:
    values = np.array([np.nan, -np.inf, np.inf], dtype=np.float32)
    array = to_arrow(values.astype(np.float64), pa.field("c", FLOAT32), ["a", "b", "c"])
    assert array.to_numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("data", [["a\ud800b", None], np.array(["a\ud800b", "x"])], ids=["list", "numpy"])
def test_a_lone_surrogate_becomes_the_replacement_character(data: Any) -> None:
    assert convert(data, TEXT)[0] == "a\ufffdb"


REFUSED = {
    "bool for int": ([True, 1], INT32, "'s0'.*True is not of type int32"),
    "bool array for int": (np.array([True, False]), INT32, "expected int32, got Arrow bool"),
    "bool rows for tokens": ([np.array([True]), np.array([1, 2])], TOKENS, "got Arrow bool"),
    "float for int": ([1, 2.5], INT32, "'s1'.*2.5 is not of type int32"),
    "whole float for int": (np.array([1.0, 2.0]), INT32, "expected int32, got Arrow double"),
    "int for bool": (np.array([0, 2]), pa.bool_(), "expected bool, got Arrow int64"),
    "int for text": (np.array([1, 2]), TEXT, "expected string, got Arrow int64"),
    "digits for int": (pa.array(["1", "2"]), INT32, "expected int32, got Arrow string"),
    "too large": ([1, 2**40], INT32, "'s1'.*1099511627776"),
    "too large for float32": ([1e300, 2.0], FLOAT32, "'s0'.*beyond the range"),
    "too large array for float32": (np.array([1.0, -1e300]), FLOAT32, "a number beyond its range"),
    "not exact in float32": (np.array([2**24 + 1, 2]), FLOAT32, "16777217"),
    "text for tokens": (["abc", "d"], TOKENS, "'s0'.*got 'abc'"),
    "one list too deep": ([[1], [[2]]], TOKENS, r"'s1'.*got \[\[2\]\]"),
    "one value short": ([1], INT32, "expected 2 values, one per id, got 1"),
    "a single number": (5, INT32, "expected int32, got int"),
    "a matrix for scalars": (np.zeros((2, 3)), FLOAT32, r"an array of shape \(2, 3\)"),
    "offsets short of the values": (([1, 2, 3], [0, 1, 2]), TOKENS, r"number of values \(3\)"),
    "falling offsets": (([1, 2, 3], [0, 4, 3]), TOKENS, "offsets must rise"),
}


@pytest.mark.parametrize(("data", "type_", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(data: Any, type_: pa.DataType, reason: str) -> None:
    with pytest.raises(InputError, match=f"^column 'c'.*{reason}"):
        convert(data, type_)


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)), max_size=6))
def test_any_ragged_column_round_trips(rows: list[list[int] | None]) -> None:
    assert convert(rows, TOKENS, rows=len(rows)) == rows


def test_rows_that_are_tensors_of_one_kind_or_of_several_convert_alike():
    rows = [torch.tensor([1.5, 2.0]), None, torch.tensor([]), torch.tensor([-3.0])]
    mixed = [torch.tensor([1.5, 2.0], dtype=torch.bfloat16), None, np.array([]), torch.tensor([-3.0])]
    expected = [[1.5, 2.0], None, [], [-3.0]]
    assert convert(rows, LOGPROBS, 4) == convert(mixed, LOGPROBS, 4) == expected
    assert convert([torch.tensor([7, 8]), torch.tensor([9])], TOKENS) == [[7, 8], [9]]


def test_a_number_beyond_float32_is_refused_beside_an_infinity_that_is_meant():
    assert convert([[float("-inf"), 1.0], [2.0]], LOGPROBS) == [[float("-inf"), 1.0], [2.0]]
    with pytest.raises(InputError, match=r"sample 's1'.*1e\+300 is beyond the range"):
        convert([[float("-inf"), 1.0], [1e300]], LOGPROBS)


@pytest.mark.parametrize("holed", [[None, [5, None]], pa.array([None, [5, None]], TOKENS)], ids=["lists", "arrow"])
def test_a_row_may_be_missing_and_a_token_inside_one_may_not(holed: Any) -> None:
    with pytest.raises(InputError, match=r"column 'c' of sample 's1': value 1 is missing; give one for every token"):
        convert(holed, TOKENS)
    assert convert([None, [5, 7]], TOKENS) == [None, [5, 7]]
    assert convert(pa.array([[None], [5], [7]], TOKENS).slice(1), TOKENS) == [[5], [7]]
