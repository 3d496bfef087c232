"""Contract of put, replace, get and clear, on every backend."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dataplane import DataPlane
from schemas.errors import InputError, MissingRows
from tests.dataplane.stores import COLUMNS, LOGPROBS, Store


def test_rows_come_in_the_order_asked_with_repeats(plane: DataPlane) -> None:
    plane.put("train", ["a", "b", "c"], {"input_ids": [[1, 2], [], [3, 4, 5]]})
    batch = plane.get("train", ["c", "a", "c", "b"], ["input_ids"])
    assert batch.values("input_ids") == [[3, 4, 5], [1, 2], [3, 4, 5], []]
    assert batch.sample_ids == ["c", "a", "c", "b"]


def test_columns_put_apart_are_read_together(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"input_ids": [[1, 2], [3]]})
    plane.put("train", ["b", "c"], {"reward": [1.0, 0.5]})
    plane.put("train", ["c", "a"], {"teacher": ["code", "math"]})
    table = plane.get("train", ["c", "b", "a"], ["reward", "input_ids", "teacher"], missing="null").table
    assert table.to_pydict() == {
        "reward": [0.5, 1.0, None],
        "input_ids": [None, [3], [1, 2]],
        "teacher": ["code", None, "math"],
    }


def test_many_scattered_rows_of_many_blocks_keep_their_values(plane: DataPlane) -> None:
    ids = [f"s{i}" for i in range(300)]
    for start in range(0, 300, 50):
        rows = range(start, start + 50)
        columns = {"reward": [float(i) for i in rows], "input_ids": [[i] * (i % 4) for i in rows]}
        plane.put("train", ids[start : start + 50], columns)
    order = np.random.default_rng(0).permutation(300).tolist()
    batch = plane.get("train", [ids[i] for i in order], ["reward", "input_ids"])
    assert batch.values("reward") == [float(i) for i in order]
    assert batch.values("input_ids") == [[i] * (i % 4) for i in order]


def test_missing_cells_are_named_by_id_and_column(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"reward": [0.0, 1.0]})
    plane.put("train", ["a"], {"input_ids": [[7]]})
    with pytest.raises(MissingRows, match="'b'") as caught:
        plane.get("train", ["a", "b", "nobody"], ["reward", "input_ids"])
    assert caught.value.missing == {"b": ["input_ids"], "nobody": ["reward", "input_ids"]}


def test_missing_is_null_and_never_zero(plane: DataPlane) -> None:
    plane.put("train", ["a"], {"prompt": ["x"]})
    batch = plane.get("train", ["a", "nobody"], ["reward", "input_ids"], missing="null")
    assert batch.table.to_pydict() == {"reward": [None, None], "input_ids": [None, None]}


@pytest.mark.parametrize(
    ("ids", "columns", "message"),
    [
        (["x"], {"inputids": [[1]]}, "no column 'inputids' (did you mean 'input_ids'?)"),
        (["x"], {"input_ids": ["text"]}, "column 'input_ids' of sample 'x'"),
        (["x", "y"], {"reward": [1.0, "no"]}, "column 'reward' of sample 'y'"),
        (["x", "y", "x"], {"reward": [1.0, 2.0, 3.0]}, "sample 'x' comes twice"),
        (["x", "y"], {"reward": [1.0]}, "column 'reward': expected 2 values, one per"),
        (["x", "a"], {"prompt": ["new", "again"]}, "column 'prompt' of sample 'a' is there already"),
        (["", "y"], {"reward": [1.0, 2.0]}, "sample ids are texts"),
        (["\ud800"], {"reward": [1.0]}, "sample ids are texts"),
    ],
)
def test_a_bad_put_is_refused_before_anything_is_written(
    plane: DataPlane, store: Store, ids: list[str], columns: dict[str, object], message: str
) -> None:
    plane.put("train", ["a"], {"prompt": ["hello"]})
    blocks, events = store.blocks(), plane.events().num_rows
    with pytest.raises(InputError) as caught:
        plane.put("train", ids, columns)
    assert message in str(caught.value)
    assert (store.blocks(), plane.events().num_rows, plane.ids("train")) == (blocks, events, ["a"])


def test_an_unknown_partition_is_refused_with_the_nearest(plane: DataPlane) -> None:
    with pytest.raises(InputError, match=r"no partition 'trian' \(did you mean 'train'\?\)"):
        plane.put("trian", ["a"], {"reward": [1.0]})


def test_a_put_id_seen_before_does_nothing(plane: DataPlane, store: Store) -> None:
    plane.put("train", ["a"], {"reward": [1.0]}, put_id="p1")
    blocks = store.blocks()
    plane.put("train", ["a"], {"reward": [2.0]}, put_id="p1")
    assert plane.get("train", ["a"], ["reward"]).values("reward") == [1.0]
    assert store.blocks() == blocks


def test_replace_changes_some_columns_and_drops_blocks_nobody_shows(plane: DataPlane, store: Store) -> None:
    plane.put("train", ["a", "b"], {"reward": [1.0, 2.0], "prompt": ["p", "q"]})
    plane.replace("train", ["b"], {"reward": [5.0]})
    plane.replace("train", ["b", "c"], {"reward": [6.0, 7.0]})
    assert plane.table("train", ["reward", "prompt"]).to_pydict() == {
        "reward": [1.0, 6.0, 7.0],
        "prompt": ["p", "q", None],
    }
    assert len(store.blocks()) == 2


def test_a_status_only_write_leaves_the_payload(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"input_ids": [[1], [2, 3]], "prompt": ["p", "q"]})
    plane.put("train", ["a", "b"], {"reward": [0.0, 1.0]})
    plane.fail("train", {"b": "lost: its worker went"})
    batch = plane.get("train", ["b", "a"], ["input_ids", "prompt", "reward"])
    assert batch.table.to_pydict() == {"input_ids": [[2, 3], [1]], "prompt": ["q", "p"], "reward": [1.0, 0.0]}


def test_clear_is_idempotent_and_takes_blocks_with_their_last_row(plane: DataPlane, store: Store) -> None:
    plane.put("train", ["a", "b", "c"], {"reward": [1.0, 2.0, 3.0]})
    assert [plane.clear("train", ["a", "b", "nobody"]), plane.clear("train", ["a", "b"])] == [2, 0]
    assert len(store.blocks()) == 1
    assert plane.get("train", ["c"], ["reward"]).values("reward") == [3.0]
    plane.clear("train", ["c"])
    assert store.blocks() == set()


def test_a_cleared_id_put_again_is_a_new_row_without_the_old_columns(plane: DataPlane) -> None:
    plane.put("train", ["a", "b"], {"reward": [1.0, 2.0], "prompt": ["old", "p"]})
    plane.clear("train", ["a"])
    plane.put("train", ["a"], {"reward": [9.0]})
    assert plane.ids("train") == ["b", "a"]
    assert plane.get("train", ["a"], ["reward", "prompt"], missing="null").table.to_pydict() == {
        "reward": [9.0],
        "prompt": [None],
    }


def test_rows_keep_their_values_when_most_others_were_cleared(plane: DataPlane, store: Store) -> None:
    ids = [f"s{i}" for i in range(9000)]
    plane.put("train", ids, {"reward": np.arange(9000, dtype=np.float32)})
    plane.clear("train", [i for i in ids if int(i[1:]) % 10])
    plane.put("train", ["new"], {"reward": [-1.0]})
    assert plane.get("train", ["s8990", "new", "s10"], ["reward"]).values("reward") == [8990.0, -1.0, 10.0]
    assert plane.table("train", ["reward"]).num_rows == 901
    assert len(store.blocks()) == 2


def test_an_empty_put_and_an_empty_get_keep_the_declared_types(plane: DataPlane, store: Store) -> None:
    plane.put("train", [], {"input_ids": []})
    assert store.blocks() == set()
    assert plane.get("train", [], ["input_ids", "reward"]).table.schema == pa.schema(
        [("input_ids", COLUMNS["input_ids"]), ("reward", pa.float32())]
    )


def test_declaring_again_identically_does_nothing_and_otherwise_is_refused(plane: DataPlane) -> None:
    before = plane.events().num_rows
    plane.create_partition("train", COLUMNS)
    plane.declare_task("train", "teacher", ["input_ids"], ["teacher_logprobs"])
    assert plane.events().num_rows == before
    with pytest.raises(InputError, match="exists with other columns"):
        plane.create_partition("train", {"reward": pa.float32()})
    with pytest.raises(InputError, match="task 'teacher' of partition 'train' is declared"):
        plane.declare_task("train", "teacher", ["prompt"])


def test_one_name_has_one_type_in_a_plane(plane: DataPlane) -> None:
    plane.create_partition("mine", {"score": LOGPROBS})
    with pytest.raises(InputError, match="column 'score': expected large_list"):
        plane.create_partition("other", {"score": pa.float32()})


def test_types_that_blocks_cannot_hold_are_refused(plane: DataPlane) -> None:
    with pytest.raises(InputError, match="column 'label'.*cannot be stored"):
        plane.create_partition("mine", {"label": pa.dictionary(pa.int32(), pa.string())})
