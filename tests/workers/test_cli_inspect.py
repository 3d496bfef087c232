"""``opd ls`` and ``opd sql``, as they are called."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from dataplane import open_plane
from dataplane.inspector.cookbook import cookbook
from tests.dataplane.sql_run import fill, validate
from workers.cli.app import main

GAPS = "select agent, avg(gap) as gap from tokens where trained group by agent order by agent"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run directory whose store has a trained step and a checkpoint."""
    directory = tmp_path_factory.mktemp("run")
    with open_plane(directory / "plane") as plane:
        fill(plane)
        validate(plane)
        plane.record_published(1, "checkpoints/step_000001")
        plane.record_checkpoint(0, "elsewhere/checkpoints/step_000000")
        plane.record_checkpoint(1, "elsewhere/checkpoints/step_000001")
    (directory / "checkpoints" / "step_000001").mkdir(parents=True)
    return str(directory)


@pytest.fixture
def opd(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs one command: ``(exit code, stdout, stderr)``."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_a_table(run: str, opd) -> None:
    code, out, err = opd("sql", run, GAPS)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["agent   gap", "─────  ────", "rev    1.25", "sort   -0.5"]


def test_a_store_directory_is_a_run_too(run: str, opd) -> None:
    assert opd("sql", f"{run}/plane", GAPS) == opd("sql", run, GAPS)


def test_json_is_an_array_of_objects(run: str, opd) -> None:
    code, out, _ = opd("sql", run, GAPS, "--format", "json")
    assert code == 0 and json.loads(out) == [{"agent": "rev", "gap": 1.25}, {"agent": "sort", "gap": -0.5}]
    assert json.loads(opd("sql", run, "select 1 where false", "--format", "json")[1]) == []


def test_json_of_what_json_has_not(run: str, opd) -> None:
    query = (
        "select 'nan'::float a, 'inf'::double b, ['-inf'::float, 1.5, null] c, sum(token_id) d, {'x': 'nan'::float} e, "
        "timestamp '2024-02-03 04:05:06' f, 1 as n, 2 as n, map {'k': 7} m from tokens where sample_id = 's1'"
    )
    code, out, _ = opd("sql", run, query, "--format", "json")
    expected = {"a": "NaN", "b": "Infinity", "c": ["-Infinity", 1.5, None], "d": 14, "e": {"x": "NaN"}, "m": {"k": 7}}
    assert code == 0 and json.loads(out) == [{**expected, "f": "2024-02-03T04:05:06", "n": 1, "n_1": 2}]


def test_csv(run: str, opd) -> None:
    query = "select sample_id, error, token_mask from samples where sample_id in ('s1', 'slow') order by 1"
    _, out, _ = opd("sql", run, query, "--format", "csv")
    assert list(csv.reader(io.StringIO(out))) == [
        ["sample_id", "error", "token_mask"],
        ["s1", "", "[false, false, true]"],
        ["slow", "timed_out: no answer in 2 s", ""],
    ]


def test_a_file_by_its_ending(run: str, opd, tmp_path: Path) -> None:
    out = tmp_path / "gaps.parquet"
    code, said, err = opd("sql", run, GAPS, "--out", str(out))
    assert (code, said, err) == (0, "", f"{out}: 2 rows, {out.stat().st_size:,} bytes\n")
    assert parquet.read_table(out).to_pydict() == {"agent": ["rev", "sort"], "gap": [1.25, -0.5]}


def test_a_failed_query_leaves_no_file(run: str, opd, tmp_path: Path) -> None:
    failing = "select case when range > 200000 then 'x' else '1' end::int from range(300000)"
    code, _, err = opd("sql", run, failing, "--out", str(tmp_path / "out.csv"))
    assert code == 2 and "Could not convert" in err and list(tmp_path.iterdir()) == []
    code, _, err = opd("sql", run, GAPS, "--out", str(tmp_path / "no" / "out.csv"))
    assert code == 2 and "does not exist" in err


def test_the_query_may_come_from_standard_input(run: str, opd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n from samples;\n"))
    assert opd("sql", run, "-", "--format", "csv")[1].split() == ['"n"', "10"]


def test_a_recipe_of_the_cookbook_by_number_or_title(run: str, opd) -> None:
    known = cookbook()
    titled = next(each for each in known if each["title"] == "Throughput of each stage")
    for name, wanted in (("1", known[0]), (str(known.index(titled) + 1), titled), ("OUGHPUT of each", titled)):
        assert opd("sql", run, "--recipe", name) == opd("sql", run, wanted["query"])
    assert opd("sql", run, "--recipe", "throughput of each stage")[0] == 0


def test_a_recipe_that_none_or_several_could_be_is_exit_2_and_lists_them(run: str, opd) -> None:
    for name, found in (("worst", "2"), ("nothing like it", "none"), ("", "none"), ("99", "none")):
        code, out, err = opd("sql", run, "--recipe", name)
        assert (code, out) == (2, "") and f"{found} of the cookbook's fits; there are: 1 Which agent" in err
    assert opd("sql", run, "select 1", "--recipe", "1")[::2] == (
        2,
        "opd: --recipe is a query itself; leave the other one out\n",
    )


def test_explain_names_what_is_read(run: str, opd) -> None:
    _, out, _ = opd("sql", run, "select avg(reward) from samples", "--explain", "--format", "json")
    assert {(row["source"], row["column"]) for row in json.loads(out)} == {
        ("train", "reward"),
        ("validation", "reward"),
    }


def test_two_runs_in_one_query(run: str, opd) -> None:
    query = "select count(*) as n from samples join b.samples using (partition, sample_id)"
    assert opd("sql", run, query, "--attach", f"b={run}", "--format", "csv")[1].split() == ['"n"', "10"]
    code, _, err = opd("sql", run, query, "--attach", run)
    assert code == 2 and "expected NAME=RUN" in err


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select gapp from tokens", "no column 'gapp' (did you mean 'gap'?)"),
        ("drop view samples", "a query only reads"),
        (" ", "query: it is empty; expected one statement"),
        ("select 1; select 2", "expected one statement, got 2"),
        ("select * from read_csv('/etc/passwd')", "file system operations are disabled"),
    ],
)
def test_a_bad_query_is_exit_2_and_one_line(run: str, opd, query: str, message: str) -> None:
    code, out, err = opd("sql", run, query)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("verb", [("ls",), ("sql", "select 1")])
def test_a_run_that_is_not_there(verb: tuple[str, ...], opd, tmp_path: Path) -> None:
    code, out, err = opd(verb[0], str(tmp_path / "none"), *verb[1:])
    assert (code, out) == (2, "") and "does not exist" in err
    code, out, err = opd(verb[0], str(tmp_path), *verb[1:])
    assert (code, out) == (2, "") and "there is no store in it" in err and list(tmp_path.iterdir()) == []


def test_ls_lists_what_is_there(run: str, opd) -> None:
    code, out, _ = opd("ls", run)
    assert code == 0 and "1 failed, 1 in_flight, 1 masked, 1 pending, 1 quarantined, 3 trained" in out
    assert out.endswith(
        "steps: 1 trained, 1 sealed\nweights: 1 versions, newest 1\n"
        f"checkpoints: step 0 (dropped), step 1 ({run}/checkpoints/step_000001)\n"
    )


def test_a_query_may_begin_with_a_comment(run: str, opd) -> None:
    assert opd("sql", run, f"-- the gaps\n{GAPS}") == opd("sql", run, GAPS)


@pytest.mark.parametrize("verb", [("ls",), ("sql", "select 1")])
def test_a_store_whose_journal_was_cut_is_read_with_a_warning(verb: tuple[str, ...], opd, tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["prompt"])
        plane.put("train", ["a"], {"prompt": ["x"]})
    assert opd(verb[0], str(tmp_path), *verb[1:])[2] == ""
    [journal] = (tmp_path / "plane" / "journal").iterdir()
    os.truncate(journal, journal.stat().st_size - 1)
    code, _, err = opd(verb[0], str(tmp_path), *verb[1:])
    assert code == 0 and "its journal lacks its end" in err and f"`opd check {tmp_path}` says more" in err


def test_ls_as_json(run: str, opd) -> None:
    found = json.loads(opd("ls", run, "--format", "json")[1])
    train, validation = found["partitions"]
    assert (train["name"], train["rows"], validation["status"]) == ("train", 8, {"done": 2})
    assert {"name": "student_logprobs", "type": "large_list<float>", "rows": 4} in train["columns"]
    assert found["bytes"] == train["bytes"] + validation["bytes"] > 0
    assert found["checkpoints"][1] == {"step": 1, "path": f"{run}/checkpoints/step_000001", "there": True}
    assert not found["checkpoints"][0]["there"]


def test_inspection_needs_no_heavy_library(run: str) -> None:
    """Neither verb may load what costs seconds, whatever else is installed."""
    script = (
        "import sys\nfrom workers.cli.app import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as left:\n    code = left.code\n"
        "heavy = {'torch', 'ray', 'pandas', 'polars', 'transformers', 'tensorboard', 'pyarrow.dataset'}\n"
        "print(code or 0, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for command in (["sql", run, GAPS], ["ls", run]):
        done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
        assert done.stderr == "0 []\n"
