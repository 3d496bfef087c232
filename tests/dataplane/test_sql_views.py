"""What the views show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dataplane import DataPlane, open_plane
from dataplane.sql import run_sql
from tests.dataplane.sql_run import fill, validate
from tests.dataplane.stores import Store


@pytest.fixture
def plane(store: Store) -> Iterator[DataPlane]:
    """The small run, on each backend."""
    with store.open() as opened:
        fill(opened)
        yield opened


def rows(plane: DataPlane, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in run_sql(plane, query).to_pylist()]


def test_a_status_for_every_row(plane: DataPlane) -> None:
    validate(plane)
    assert dict(rows(plane, "select sample_id, status from samples")) == {
        "r1": "trained",
        "s1": "trained",
        "r2": "trained",
        "s2": "masked",
        "bad": "quarantined",
        "slow": "failed",
        "busy": "in_flight",
        "late": "pending",
        "v1": "done",
        "v2": "done",
    }


def test_a_sealed_step_is_sealed_until_it_is_trained(plane: DataPlane) -> None:
    plane.put("train", ["n1"], {"prompt": ["p"]})
    plane.seal(2, ["n1"])
    assert rows(plane, "select status, step from samples where sample_id = 'n1'") == [("sealed", 2)]
    plane.record_trained(2, {})
    assert rows(plane, "select status from samples where sample_id = 'n1'") == [("trained",)]


def test_a_member_that_failed_after_the_seal_is_masked_in_its_trained_step(plane: DataPlane) -> None:
    plane.put("train", ["n1", "n2"], {"sample_mask": [True, False]})
    plane.put("train", ["n3"], {"prompt": ["failed before it had a mask"]})
    plane.seal(2, ["n1", "n2", "n3"])
    plane.fail("train", {"n2": "bad_logprob: after the seal", "n3": "engine_error: after the seal"})
    members = "select sample_id, status from samples where step = 2"
    assert rows(plane, members) == [("n1", "sealed"), ("n2", "quarantined"), ("n3", "failed")]
    plane.record_trained(2, {})
    assert rows(plane, members) == [("n1", "trained"), ("n2", "masked"), ("n3", "masked")]


def test_error_step_and_what_a_row_lacks(plane: DataPlane) -> None:
    found = rows(plane, "select sample_id, error, step, missing from samples where sample_id in ('bad', 'late', 's2')")
    assert found[0] == ("s2", None, 1, [])
    assert found[1][:3] == ("bad", "bad_logprob: NaN at position 3", None)
    plane.declare_task("train", "score", reads=["prompt", "reward"])
    plane.put("train", ["new"], {"agent": ["rev"]})
    assert rows(plane, "select missing from samples where sample_id = 'new'") == [(["prompt"],)]


def test_partitions_are_united_by_column_name(plane: DataPlane) -> None:
    validate(plane)
    query = "select partition, count(*), count(reward), count(prompt), max(weight_version) from samples group by 1"
    assert sorted(rows(plane, query)) == [("train", 8, 4, 8, None), ("validation", 2, 2, 0, 3)]


def test_a_row_per_token_with_prompts(plane: DataPlane) -> None:
    query = "select position, response_position, token_id, trained from tokens where sample_id = 'r1'"
    assert rows(plane, query) == [(0, None, 5, False), (1, 0, 1, True), (2, 1, 9, False), (3, 2, 2, True)]


def test_response_positions_begin_at_the_first_generated_token(plane: DataPlane) -> None:
    query = "select position, response_position from tokens where sample_id = 's1'"
    assert rows(plane, query) == [(0, None), (1, None), (2, 0)]


def test_filler_at_masked_positions_is_null(plane: DataPlane) -> None:
    query = "select student_logprob, teacher_logprob, gap, advantage from tokens where sample_id = 'r2'"
    nothing = (None, None, None, None)
    assert rows(plane, query) == [nothing, (-1.0, -0.5, 0.5, -0.5), nothing, (-3.0, -1.0, 2.0, -1.0)]


def test_trained_is_false_and_never_null(plane: DataPlane) -> None:
    plane.put("train", ["x"], {"input_ids": [[4, 4]], "token_mask": [[False, True]]})
    assert rows(plane, "select count(*) from tokens where trained is null") == [(0,)]
    assert rows(plane, "select distinct trained from tokens where sample_id in ('x', 's2')") == [(False,)]


def test_trained_tokens_of_a_step_add_up(plane: DataPlane) -> None:
    per_step = "select step, count(*) filter (where trained) n from tokens group by step"
    query = f"select s.step, s.trained_tokens, t.n from steps s join ({per_step}) t using (step)"
    assert rows(plane, query) == [(1, 5, 5)]


def test_gap_by_agent(plane: DataPlane) -> None:
    query = "select agent, avg(gap) from tokens where trained group by agent order by agent"
    assert rows(plane, query) == [("rev", 1.25), ("sort", -0.5)]


def test_token_texts_come_from_the_vocabulary(plane: DataPlane) -> None:
    assert rows(plane, "select distinct token from tokens") == [(None,)]
    plane.create_partition("vocabulary", {"tokens": pa.large_list(pa.string())})
    plane.put("vocabulary", ["hash"], {"tokens": [["p", "a", "b", "c", "d", "<u>"]]})
    query = "select token_id, token from tokens where sample_id = 'r1'"
    assert rows(plane, query) == [(5, "<u>"), (1, "a"), (9, None), (2, "b")]
    assert rows(plane, "select count(*) from samples where partition = 'vocabulary'") == [(0,)]


def test_the_newest_vocabulary_counts(plane: DataPlane) -> None:
    plane.create_partition("vocabulary", {"tokens": pa.large_list(pa.string())})
    plane.put("vocabulary", ["one", "two"], {"tokens": [["a", "b"], ["x", "y", "z"]]})
    assert rows(plane, "select token from tokens where sample_id = 's1' and trained") == [(None,)]
    assert rows(plane, "select distinct token from tokens where token_id = 2") == [("z",)]


def test_a_column_that_is_not_as_long_as_its_tokens_shows_nothing(plane: DataPlane) -> None:
    columns = {"input_ids": [[4, 4]], "token_mask": [[True, True]], "student_logprobs": [[-1.0]]}
    plane.put("train", ["x"], columns)
    query = "select position, student_logprob from tokens where sample_id = 'x'"
    assert rows(plane, query) == [(0, None), (1, None)]


def test_no_tokens_and_empty_responses_differ_from_missing_ones(plane: DataPlane) -> None:
    plane.put("train", ["x"], {"input_ids": [[]], "token_mask": [[]]})
    query = "select sample_id, len(input_ids) from samples where sample_id in ('x', 'late')"
    assert rows(plane, query) == [("late", None), ("x", 0)]
    assert rows(plane, "select count(*) from tokens where sample_id in ('x', 'late')") == [(0,)]


def test_users_own_columns(plane: DataPlane) -> None:
    own = {"difficulty": pa.int16(), "Status": pa.string(), "states": pa.large_list(pa.float16()), "agent": pa.string()}
    plane.create_partition("mine", own)
    plane.put("mine", ["m"], {"difficulty": [3], "Status": ["mine"], "agent": ["rev"]})
    query = "select difficulty, status, Status_column, states from samples where partition = 'mine'"
    assert rows(plane, query) == [(3, "pending", "mine", None)]
    assert rows(plane, "select count(difficulty) from samples") == [(1,)]


def test_steps_show_every_metric(plane: DataPlane) -> None:
    query = "select step, weight_version, samples, loss, tokens_per_s, exact_kl from steps"
    assert rows(plane, query) == [(1, 0, 4, 0.25, 80.0, None)]


def test_a_count_that_is_no_number_is_null(plane: DataPlane) -> None:
    plane.put("train", ["n"], {"prompt": ["p"]})
    plane.seal(2, ["n"])
    plane.record_trained(2, {"trained_tokens": float("nan"), "loss": float("inf"), "accuracy/rev": 0.5})
    query = 'select trained_tokens, loss, "accuracy/rev" from steps order by step'
    assert rows(plane, query) == [(5, 0.25, None), (None, float("inf"), 0.5)]


def test_events_tell_what_happened(plane: DataPlane) -> None:
    assert rows(plane, "select count(*) > 5, min(seq), count(distinct seq) = count(*) from events") == [(True, 0, True)]
    assert rows(plane, "select step from events where kind = 'step_sealed'") == [(1,)]
    assert rows(plane, "select worker from events where kind = 'claimed' order by seq desc limit 1") == [("w7",)]


def test_blocks_tell_who_wrote_them(plane: DataPlane) -> None:
    query = "select task, partition, rows, columns[1], bytes > 0 from blocks where task = 'generate'"
    assert rows(plane, query) == [("generate", "train", 4, "input_ids", True)]


def test_nan_and_infinities_survive(plane: DataPlane) -> None:
    plane.put("train", ["x"], {"reward": [float("-inf")], "advantages": [[float("nan"), float("inf")]]})
    query = "select reward, isnan(advantages[1]), advantages[2] from samples where sample_id = 'x'"
    assert rows(plane, query) == [(float("-inf"), True, float("inf"))]


def test_an_empty_store_has_every_view() -> None:
    with open_plane("memory://") as plane:
        for view in ("samples", "tokens", "steps", "blocks"):
            assert run_sql(plane, f"select * from {view}").num_rows == 0
        assert run_sql(plane, "select agent, avg(gap) from tokens where trained group by agent").num_rows == 0


def test_structs_and_lists_come_back_as_arrow(plane: DataPlane) -> None:
    table = run_sql(plane, "select sampling, input_ids from samples where sample_id = 's1'")
    assert pa.types.is_struct(table.schema.field("sampling").type)
    assert table.schema.field("input_ids").type.value_type == pa.int32()
    assert table.to_pylist()[0]["sampling"]["temperature"] == 0.5


def test_show_tables_and_describe(plane: DataPlane) -> None:
    shown = run_sql(plane, "SHOW TABLES;").column("name").to_pylist()
    assert shown == ["samples", "tokens", "steps", "events", "blocks"]
    described = run_sql(plane, "describe tokens").to_pylist()
    gap = next(row for row in described if row["column_name"] == "gap")
    assert (gap["column_type"], gap["unit"]) == ("FLOAT", "nats")
    assert [row["column_name"] for row in described] == run_sql(plane, "from tokens limit 0").column_names


def test_finite_says_whose_gap_is_a_number(plane: DataPlane) -> None:
    query = "select position, isnan(gap) or isinf(gap), finite from tokens where sample_id = 'r1' order by position"
    assert rows(plane, query) == [(0, None, False), (1, False, True), (2, None, False), (3, False, True)]
    plane.replace("train", ["r1"], {"teacher_logprobs": [[0.0, -math.inf, 0.0, math.nan]]})
    assert rows(plane, query) == [(0, None, False), (1, True, False), (2, None, False), (3, True, False)]
    assert rows(plane, "select count(finite), count(*) from tokens where sample_id = 'r1'") == [(4, 4)]


def test_a_mean_over_finite_tokens_ignores_the_others(plane: DataPlane) -> None:
    plane.replace("train", ["r2"], {"teacher_logprobs": [[0.0, math.nan, 0.0, -1.0]]})
    query = "select isnan(avg(gap)), avg(gap) filter (where finite), count(*) filter (where finite) from tokens"
    assert rows(plane, f"{query} where agent = 'rev' and trained") == [(True, (0.5 + 2.0 + 2.0) / 3, 3)]
