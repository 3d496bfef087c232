"""What a model can produce survives a round trip bit for bit, on every backend."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane import DataPlane
from dataplane.backends.memory import MemoryStorage
from dataplane.opening import open_plane
from schemas.errors import InputError
from tests.dataplane.stores import LOGPROBS, TOKENS, pipeline


def test_a_stored_logprob_is_read_back_at_its_own_position(plane: DataPlane) -> None:
    prompt, response = [5, 6, 7], [8, 9]
    ids = prompt + response
    scores = [-(position + token / 1000) for position, token in enumerate(ids)]
    plane.put("train", ["a", "b", "c"], {"teacher_logprobs": [[0.0], scores, [0.0, 1.0]]})
    values, offsets = plane.get("train", ["c", "b"], ["teacher_logprobs"]).jagged("teacher_logprobs")
    assert offsets.tolist() == [0, 2, 7]
    assert values[5:].tolist() == pytest.approx([-3.008, -4.009], abs=1e-6)


def test_longer_neighbours_and_order_change_no_value(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"teacher_logprobs": [[0.5, -1.0], [9.0, 9.0, 9.0, 9.0]]})
    alone = plane.get("train", ["a"], ["teacher_logprobs"]).padded("teacher_logprobs")
    beside = plane.get("train", ["b", "a"], ["teacher_logprobs"]).padded("teacher_logprobs")
    assert torch.equal(beside[1, :2], alone[0])
    assert beside[1, 2:].tolist() == [0.0, 0.0]


def test_nan_with_payload_and_infinities_keep_their_bits(plane: DataPlane) -> None:
    bits = np.array([0x7FC00001, 0xFF800000, 0x7F800000, 0x80000000, 0x00000001, 0xFFC0BEEF], dtype=np.uint32)
    logprobs = (bits.view(np.float32), [0, 2, 6])
    plane.put("train", ["a", "b"], {"teacher_logprobs": logprobs, "reward": [math.nan, -math.inf]})
    for copy in (True, False):
        batch = plane.get("train", ["a", "b"], ["teacher_logprobs", "reward"], copy=copy)
        values = batch.array("teacher_logprobs").values.to_numpy()
        assert values.view(np.uint32).tolist() == bits.tolist()
        assert math.isnan(batch.values("reward")[0]) and batch.values("reward")[1] == -math.inf


def test_none_among_logprobs_stays_null(plane: DataPlane) -> None:
    plane.put("train", ["a"], {"teacher_logprobs": [[-0.1, None, -2.0]]})
    assert plane.get("train", ["a"], ["teacher_logprobs"]).array("teacher_logprobs").values.null_count == 1


def test_bf16_comes_back_as_bf16_with_equal_bits(plane: DataPlane) -> None:
    kind = pa.field("h", pa.large_list(pa.uint16()), metadata={"torch_dtype": "bfloat16"})
    plane.create_partition("hidden", pa.schema([kind]))
    states = torch.tensor([1.0, -0.0, 3.14159, math.nan, math.inf], dtype=torch.bfloat16)
    plane.put("hidden", ["a", "b"], {"h": (states, [0, 1, 5])})
    values, _ = plane.get("hidden", ["a", "b"], ["h"]).jagged("h")
    assert values.dtype == torch.bfloat16
    assert torch.equal(values.view(torch.int16), states.view(torch.int16))


def test_bf16_in_a_float32_column_is_widened_and_never_f16(plane: DataPlane) -> None:
    wide = torch.tensor([65536.0, 1.0078125], dtype=torch.bfloat16)
    plane.put("train", ["a"], {"teacher_logprobs": (wide, [0, 2])})
    assert plane.get("train", ["a"], ["teacher_logprobs"]).values("teacher_logprobs") == [[65536.0, 1.0078125]]


def test_lone_surrogates_are_stored_as_replacement_characters(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"prompt": ["x\ud800y", "\U0001f600\x00"]})
    plane.fail("train", {"a": "engine_error: bad \udfff byte"})
    assert plane.get("train", ["a", "b"], ["prompt"]).values("prompt") == ["x\ufffdy", "\U0001f600\x00"]
    assert plane.row_state("train").column("error")[0].as_py() == "engine_error: bad \ufffd byte"


def test_an_all_null_first_batch_decides_no_type(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"teacher": [None, None], "input_ids": [None, None]})
    plane.put("train", ["c"], {"teacher": ["math"], "input_ids": [[1, 2]]})
    table = plane.table("train", ["teacher", "input_ids"])
    assert table.schema.types == [pa.string(), TOKENS]
    assert table.to_pydict() == {"teacher": [None, None, "math"], "input_ids": [None, None, [1, 2]]}


def test_integers_that_do_not_fit_are_refused_naming_the_row(plane: DataPlane) -> None:
    with pytest.raises(InputError, match="column 'input_ids' of sample 'b'"):
        plane.put("train", ["a", "b"], {"input_ids": [[1], [2**31]]})


@pytest.mark.parametrize("copy", [True, False])
def test_writing_into_a_returned_tensor_changes_nothing_stored(plane: DataPlane, copy: bool) -> None:
    ids = [f"s{i}" for i in range(300)]  # more than a megabyte: from there on copy=False maps
    plane.put("train", ids, {"teacher_logprobs": (np.arange(300_000, dtype=np.float32), np.arange(0, 300_001, 1000))})
    first, _ = plane.get("train", ids, ["teacher_logprobs"], copy=copy).jagged("teacher_logprobs")
    first.add_(1)
    again, _ = plane.get("train", ids, ["teacher_logprobs"], copy=copy).jagged("teacher_logprobs")
    assert torch.equal(again, torch.arange(300_000, dtype=torch.float32))
    assert first[0] == 1


def test_a_batch_outlives_the_rows_and_the_plane(plane: DataPlane) -> None:
    plane.put("train", ["a"], {"teacher_logprobs": (np.ones(400_000, dtype=np.float32), [0, 400_000])})
    batch = plane.get("train", ["a"], ["teacher_logprobs"], copy=False)
    plane.clear("train", ["a"])
    plane.close()
    assert batch.jagged("teacher_logprobs")[0].sum() == 400_000


_INT32, _FLOAT32 = st.integers(-(2**31), 2**31 - 1), st.floats(width=32)
_SAMPLES = st.lists(st.tuples(st.text(), st.lists(_INT32), st.lists(_FLOAT32)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_SAMPLES)
def test_any_text_tokens_and_floats_survive(samples: list[tuple[str, list[int], list[float]]]) -> None:
    with open_plane(MemoryStorage()) as plane:
        texts, tokens, floats = map(list, zip(*samples, strict=True))
        ids = [f"s{i}" for i in range(len(samples))]
        pipeline(plane).put("train", ids, {"prompt": texts, "input_ids": tokens, "teacher_logprobs": floats})
        batch = plane.get("train", ids, ["prompt", "input_ids", "teacher_logprobs"])
        assert batch.values("input_ids") == tokens
        assert batch.values("prompt") == texts
        expected = pa.array(floats, LOGPROBS).values.to_numpy(zero_copy_only=False)
        assert batch.array("teacher_logprobs").values.to_numpy().tobytes() == expected.tobytes()
