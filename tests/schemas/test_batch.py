"""A batch's Arrow and torch sides show the same values, and writing into one reaches nobody else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from schemas.batch import Batch
from schemas.columns import payload
from schemas.config import OnPolicyDistillationFullConfig
from schemas.errors import InputError


@pytest.fixture
def batch() -> Batch:
    """Three samples of 3, 0 and 2 tokens; the reward of the last is missing."""
    return Batch.of(
        ["a", "b", "c"],
        {
            "input_ids": [[5, 6, 7], [], [8, 9]],
            "token_mask": [[False, True, True], [], [False, True]],
            "reward": [1.0, 0.5, None],
            "agent": ["rev", "sort", "rev"],
        },
    )


def test_padded_is_right_padded_to_the_longest_row(batch: Batch) -> None:
    assert batch.padded("input_ids", pad=-1).tolist() == [[5, 6, 7], [-1, -1, -1], [8, 9, -1]]
    assert batch.padded("input_ids", multiple=4).shape == (3, 4)
    assert batch.padded("token_mask", length=5).sum(1).tolist() == [2, 0, 1]


def test_jagged_is_values_and_offsets(batch: Batch) -> None:
    values, offsets = batch.jagged("input_ids")
    assert (values.tolist(), offsets.tolist()) == ([5, 6, 7, 8, 9], [0, 3, 3, 5])
    assert (values.dtype, offsets.dtype) == (torch.int32, torch.int64)


def test_jagged_of_some_rows_starts_at_zero(batch: Batch) -> None:
    values, offsets = batch.take([2, 0, 2]).jagged("input_ids")
    assert (values.tolist(), offsets.tolist()) == ([8, 9, 5, 6, 7, 8, 9], [0, 2, 5, 7])


def test_jagged_of_a_slice_sees_only_its_own_values(batch: Batch) -> None:
    tail = Batch(["c"], batch.table.slice(2))
    values, offsets = tail.jagged("input_ids")
    assert (values.tolist(), offsets.tolist()) == ([8, 9], [0, 2])


def test_take_keeps_order_and_repeats(batch: Batch) -> None:
    taken = batch.take([2, 0, 2])
    assert (taken.sample_ids, taken.values("agent")) == (["c", "a", "c"], ["rev", "rev", "rev"])


def test_tensor_refuses_a_missing_value_by_sample(batch: Batch) -> None:
    assert batch.take([0, 1]).tensor("reward").tolist() == [1.0, 0.5]
    with pytest.raises(InputError, match="column 'reward' of sample 'c' is missing"):
        batch.tensor("reward")


def test_a_missing_token_inside_a_row_is_nan_not_zero() -> None:
    batch = Batch.of(["a", "b"], {"teacher_logprobs": [[-1.0, None], [-2.0]]})
    assert batch.jagged("teacher_logprobs")[0].isnan().tolist() == [False, True, False]


def test_lengths_of_missing_rows_are_zero() -> None:
    batch = Batch.of(["a", "b", "c"], {"input_ids": [[1, 2], None, []]})
    assert batch.lengths().tolist() == [2, 0, 0]


@pytest.mark.parametrize("writable", [False, True])
def test_writing_into_a_tensor_shows_in_the_table_only_where_the_batch_owns_it(writable: bool) -> None:
    table = pa.table({"reward": pa.array(np.array([1.0, 2.0, 3.0], dtype=np.float32))})
    Batch(["a", "b", "c"], table, writable=writable).tensor("reward").add_(10)
    assert table["reward"].to_pylist() == ([11.0, 12.0, 13.0] if writable else [1.0, 2.0, 3.0])


def test_bfloat16_columns_come_back_bit_equal() -> None:
    values = torch.tensor([1.0, -0.1, 3.0e38], dtype=torch.bfloat16)
    field = pa.field("hidden", pa.large_list(pa.uint16()), metadata={"torch_dtype": "bfloat16"})
    offsets = torch.tensor([0, 1, 3])
    batch = Batch.of(["a", "b"], {"hidden": (values, offsets)}, pa.schema([field]))
    assert torch.equal(batch.jagged("hidden")[0], values)


def test_with_columns_adds_and_replaces(batch: Batch) -> None:
    more = batch.with_columns({"reward": [0.0, 0.0, 2.0], "weight_version": [4, 4, 5]})
    assert (more.values("reward"), more.values("weight_version")) == ([0.0, 0.0, 2.0], [4, 4, 5])
    assert "weight_version" not in batch


def test_an_unknown_column_gets_the_nearest_name(batch: Batch) -> None:
    with pytest.raises(InputError, match=r"no column 'inputs_ids' \(did you mean 'input_ids'\?\)"):
        batch.array("inputs_ids")


def test_ids_and_rows_must_be_as_many() -> None:
    with pytest.raises(InputError, match="2 sample ids for 3 rows"):
        Batch(["a", "b"], pa.table({"reward": [1.0, 2.0, 3.0]}))


def test_bfloat16_vectors_come_back_as_they_were() -> None:
    field = payload(OnPolicyDistillationFullConfig(), 2)
    vectors = [torch.tensor([[1.5, -0.1], [3e38, 0.0]]).bfloat16(), torch.zeros(0, 2).bfloat16()]
    made = Batch.of(["a", "b"], {field.name: vectors}, pa.schema([field]))
    assert made.padded(field.name).dtype == torch.bfloat16
    assert torch.equal(made.padded(field.name)[0], vectors[0]) and made.take([1, 0]).lengths(field.name).tolist() == [
        0,
        2,
    ]
