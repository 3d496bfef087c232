"""What a query reads, what it may not do, and what it says when it is wrong."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dataplane import DataPlane, open_plane
from dataplane.sql import Limits, explain_sql, run_sql, stream_sql
from dataplane.sql.load import Source
from dataplane.sql.plan import Planner
from schemas.errors import CorruptData, InputError
from tests.dataplane.sql_run import fill, validate

QUERIES = [
    "select * from samples limit 3",
    "select * from tokens",
    "select count(*) from samples",
    "select count(*) from tokens",
    "select 1 from samples",
    "select exists(from tokens where gap > 1)",
    "select status, count(*) from samples group by 1 order by 1",
    "select agent, avg(gap) from tokens where trained group by agent order by agent",
    "select s.step, t.loss, avg(s.reward) from samples s join steps t using (step) group by all order by all",
    "select a.position, b.gap from tokens a join tokens b using (sample_id) where a.position > b.position order by all",
    "select sample_id, position, gap from tokens where step = 1 and trained order by gap, sample_id limit 3",
    "with t as materialized (from tokens) select count(*) filter (where trained) from t",
    "select sample_id, (select count(*) from tokens t where t.sample_id = s.sample_id) n from samples s order by 1",
    "select samples from samples order by sample_id limit 1",
    "select sampling.temperature, list_sum(student_logprobs) from samples order by all",
    "select agent from (select * from samples union all select * from samples) order by agent",
    "pivot samples on agent using count(*) group by status order by status",
    "pivot (select agent, status, reward from samples) on status using avg(reward) order by agent",
    "unpivot (select sample_id, agent, teacher from samples) on agent, teacher order by all",
    "select columns('.*_id') from samples order by all",
    "summarize select reward, agent from samples",
    "from samples select agent, row_number() over (partition by agent order by sample_id) r qualify r < 3 order by all",
    "select 1 where false",
    "values (1), (2)",
    "-- a comment\nselect max(step) from samples;",
    "select e.kind, count(*) from events e group by 1 order by 1",
    "select task, sum(rows) from blocks group by all order by all",
    "select agent from samples where error like 'bad%' or step in (select step from steps) order by 1",
]

#: Statements that would write, reach out, or change the connection.
REFUSED = [
    "copy samples to '{path}'",
    "copy (select 1) to '{path}'",
    "with w as (copy samples to '{path}' returning *) select * from w",
    "explain analyze copy samples to '{path}'",
    "export database '{path}'",
    "attach '{path}' as other",
    "create table t as select 1",
    "create view v as select 1",
    "drop view samples",
    "insert into samples values (1)",
    "update samples set reward = 1",
    "delete from samples",
    "install httpfs",
    "load httpfs",
    "set memory_limit = '100GB'",
    "reset memory_limit",
    "pragma enable_profiling",
    "pragma database_list",
    "call pragma_version()",
    "checkpoint",
    "vacuum",
    "begin",
    "use memory",
    "prepare p as select 1",
    "create secret s (type s3)",
    "update extensions",
    "select * from read_csv('/etc/passwd')",
    "select * from read_text('/etc/passwd')",
    "select * from read_blob('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from '{path}.parquet'",
    "select * from read_parquet('https://example.com/x.parquet')",
    "select * from read_json('http://example.com/x.json')",
    "select * from glob('/etc/*')",
    "select * from sniff_csv('/etc/passwd')",
    "select * from duckdb_secrets()",
    "from enable_logging(storage = 'file', storage_path = '{path}')",
    "from enable_profiling(save_location = '{path}')",
    "select getenv('HOME')",
    "select * from hidden",
    "select 1; select 2",
    "",
]


@pytest.fixture(scope="module")
def plane() -> Iterator[DataPlane]:
    with open_plane("memory://") as opened:
        fill(opened)
        validate(opened)
        yield opened


def everything(plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every query load every column."""
    whole = {name: [column.name for column in columns] for name, columns in Source(plane).views.items()}
    monkeypatch.setattr(Planner, "needed", lambda *_: whole)


@pytest.mark.parametrize("query", QUERIES)
def test_loading_only_what_is_needed_changes_no_answer(
    plane: DataPlane, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned = run_sql(plane, query)
    everything(plane, monkeypatch)
    assert str(pruned.to_pylist()) == str(run_sql(plane, query).to_pylist())


def test_a_scalar_query_reads_no_token_column(plane: DataPlane) -> None:
    query = "select agent, status, avg(reward) from samples where step = 1 group by all"
    read = {(row["source"], row["column"]) for row in explain_sql(plane, query).to_pylist()}
    train = {("train", "agent"), ("train", "reward"), ("train", "sample_mask")}
    assert read == train | {("validation", "agent"), ("validation", "reward")}


def test_a_token_query_reads_the_lists_it_needs(plane: DataPlane) -> None:
    query = "select agent, avg(gap) from tokens where trained group by agent"
    reads = [row for row in explain_sql(plane, query).to_pylist() if row["source"] == "train"]
    assert {row["column"] for row in reads} == {
        *("agent", "input_ids", "token_mask", "sample_mask", "student_logprobs", "teacher_logprobs"),
    }
    assert next(row for row in reads if row["column"] == "student_logprobs")["bytes"] >= 14 * 4


def test_counting_reads_nothing(plane: DataPlane) -> None:
    assert explain_sql(plane, "select count(*) from samples").num_rows == 0


def test_damaged_token_columns_do_not_matter_to_scalar_queries(tmp_path: Path) -> None:
    with open_plane(tmp_path) as plane:
        fill(plane)
    minus_three, minus_four = struct.pack("<f", -3.0), struct.pack("<f", -4.0)
    damaged = [path for path in tmp_path.rglob("*") if path.is_file() and minus_three in path.read_bytes()]
    for path in damaged:
        path.write_bytes(path.read_bytes().replace(minus_three, minus_four))
    with open_plane(tmp_path, mode="r") as plane:
        assert run_sql(plane, "select avg(reward) a from samples").to_pylist() == [{"a": 0.625}]
        with pytest.raises(CorruptData, match="student_logprobs"):
            run_sql(plane, "select avg(student_logprob) from tokens")


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_only_reads_the_store(plane: DataPlane, query: str, tmp_path: Path) -> None:
    hidden = pa.table({"x": [1]})
    with pytest.raises(InputError):
        run_sql(plane, query.format(path=tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [] and hidden.num_rows == 1
    assert run_sql(plane, "select count(*) n from samples").to_pylist() == [{"n": 10}]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select gapp from tokens", "no column 'gapp' (did you mean 'gap'?); see: describe tokens"),
        ("select t.rewrd from samples t", "no column 'rewrd' (did you mean 'reward'?); see: describe samples"),
        ("select * from tokns", "no table 'tokns' (did you mean 'tokens'?); there are samples, tokens, steps"),
        ("select averge(gap) from tokens", "averge does not exist! (did you mean 'avg'?)"),
        ("selec 1", 'syntax error at or near "selec"'),
        ("copy samples to 'x'", "COPY statements are not possible, a query only reads"),
        ("select 1; select 2", "expected one statement, got 2"),
        ("select sum(agent) from samples", "sum(VARCHAR)"),
        ("select agent::int from samples", "Could not convert string 'rev' to INT32"),
    ],
)
def test_a_wrong_query_is_told_what_is_wrong(plane: DataPlane, query: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_sql(plane, query)
    assert str(caught.value).startswith("query: ") and message in str(caught.value)
    assert "\n" not in str(caught.value) and "EXPLAIN" not in str(caught.value)


def test_a_query_is_stopped_when_its_time_is_over(plane: DataPlane) -> None:
    endless = "select count(*) from range(1000000000000)"
    with pytest.raises(InputError, match="stopped after 0.2 s"):
        run_sql(plane, endless, limits=Limits(timeout_s=0.2))
    with (
        pytest.raises(InputError, match="stopped after 0.2 s"),
        stream_sql(plane, "select * from range(1000000000000)", limits=Limits(timeout_s=0.2)) as batches,
    ):
        for _ in batches:
            pass


def test_a_query_keeps_to_its_memory(plane: DataPlane) -> None:
    with pytest.raises(InputError, match="more memory than it may use"):
        run_sql(plane, "select len(list(range)) from range(100000000)", limits=Limits(memory_bytes=100 << 20))


def test_parameters_fill_placeholders(plane: DataPlane) -> None:
    query = "select count(*) n from tokens where sample_id = ? and position > ?"
    assert run_sql(plane, query, ["r1", 1]).to_pylist() == [{"n": 2}]
    named = run_sql(plane, "select agent from samples where sample_id = $id", {"id": "s1' or true"})
    assert named.num_rows == 0


def test_sums_of_integers_are_integers(plane: DataPlane) -> None:
    table = run_sql(plane, "select sum(token_id) s, sum(9223372036854775807::hugeint) big from tokens")
    assert table.schema.field("s").type == pa.int64()
    assert pa.types.is_decimal(table.schema.field("big").type)


def test_batches_hold_the_same_as_the_table(plane: DataPlane) -> None:
    query = "select sample_id, position, gap from tokens order by all"
    with stream_sql(plane, query) as batches:
        assert batches.read_all().to_pylist() == run_sql(plane, query).to_pylist()


def test_an_error_while_streaming_is_ours(plane: DataPlane) -> None:
    query = "select case when range > 300000 then 'x' else '1' end::int from range(400000)"
    with pytest.raises(InputError, match="Could not convert"), stream_sql(plane, query) as batches:
        for _ in batches:
            pass


def test_two_stores_in_one_query(plane: DataPlane) -> None:
    with open_plane("memory://") as other:
        other.create_partition("train", ["agent", "reward"])
        other.put("train", ["r1"], {"agent": ["rev"], "reward": [0.25]})
        query = "select a.reward x, b.reward y from samples a join other.samples b using (sample_id)"
        assert run_sql(plane, query, attach={"other": other}).to_pylist() == [{"x": 1.0, "y": 0.25}]
        assert "other.samples" in run_sql(plane, "show tables", attach={"other": other}).column("name").to_pylist()
        with pytest.raises(InputError, match="letters, digits"):
            run_sql(plane, "select 1", attach={"a-b": other})


def test_rows_that_come_and_go_meanwhile_stay_whole() -> None:
    """Every row holds its own number twice, whatever a writer puts and clears beside the reader."""
    stop = threading.Event()
    with open_plane("memory://") as plane:
        plane.create_partition("p", {"a": pa.int32(), "b": pa.int32()})

        def write() -> None:
            for number in range(10_000):
                if stop.is_set():
                    return
                plane.put("p", [f"id{number}"], {"a": [number], "b": [number]})
                plane.fail("p", {f"id{number}": f"lost: {number}"})
                if number % 100 == 99:
                    plane.clear("p", [f"id{number - 50}"])

        writer = threading.Thread(target=write)
        writer.start()
        wrong = "select count(*) n from samples where a != b or sample_id != 'id' || a or error != 'lost: ' || a"
        found = [run_sql(plane, wrong).to_pylist()[0]["n"] for _ in range(5)]
        stop.set()
        writer.join()
    assert found == [0] * 5


def test_a_follower_answers_after_blocks_went(tmp_path: Path) -> None:
    with open_plane(tmp_path) as writer:
        writer.create_partition("p", {"a": pa.int32()})
        for number in range(3):
            writer.put("p", [f"id{number}"], {"a": [number]})
        with open_plane(tmp_path, mode="r") as reader:
            writer.clear("p", ["id1"])
            found = run_sql(reader, "select sample_id, a from samples order by a").to_pylist()
    assert [tuple(row.values()) for row in found] == [("id0", 0), ("id2", 2)]


def test_a_follower_sees_a_run_in_progress(tmp_path: Path) -> None:
    with open_plane(tmp_path) as writer, open_plane(tmp_path, mode="r") as reader:
        fill(writer)
        assert run_sql(reader, "select * from samples").num_rows == 0
        reader.refresh()
        counts = run_sql(reader, "select status, count(*) n from samples group by 1").to_pylist()
        assert {row["status"]: row["n"] for row in counts}["in_flight"] == 1


def test_names_that_sql_does_not_tell_apart(tmp_path: Path) -> None:
    with open_plane("memory://") as plane:
        plane.create_partition("Train", {"Agent": pa.string(), "agent": pa.string(), "o'clock": pa.int8()})
        plane.create_partition("train", ["agent"])
        plane.put("Train", ["x"], {"Agent": ["big"], "agent": ["small"], "o'clock": [5]})
        plane.put("train", ["x"], {"agent": ["other"]})
        found = run_sql(plane, 'select partition, agent, Agent_column, "o\'clock" from samples').to_pylist()
        assert [tuple(row.values()) for row in found] == [("Train", "small", "big", 5), ("train", "other", None, None)]
