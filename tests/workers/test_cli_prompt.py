"""``opd sql`` without a query, and what it prints of intervals."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dataplane import open_plane
from dataplane.sql import Limits
from tests.dataplane.sql_run import fill
from workers.cli.app import main
from workers.cli.intervals import interval_text
from workers.cli.output import ResultFormat
from workers.cli.prompt import converse, history_file, statements

SINCE = "select (time - min(time) over ()) + interval 90 minute as since from events order by seq limit 1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("prompt")
    with open_plane(directory / "plane") as plane:
        fill(plane)
    return str(directory)


def typed(*lines: str | type[BaseException]):
    """An ``input`` that is given *lines*, and then the end."""
    left: Iterator[str | type[BaseException]] = iter(lines)

    def ask(prompt: str) -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return ask


def test_a_statement_ends_with_a_semicolon_or_an_empty_line() -> None:
    assert list(statements(typed("select 1", "  as n;", "from steps", "", "", "select 2;"))) == [
        "select 1\n  as n;",
        "from steps",
        "select 2;",
    ]


def test_ctrl_c_drops_what_was_begun_and_quit_leaves(capsys) -> None:
    assert list(statements(typed("select nonsense", KeyboardInterrupt, "select 3;", ".quit", "select 4;"))) == [
        "select 3;"
    ]


def test_help_is_told_and_is_no_statement(capsys) -> None:
    assert list(statements(typed(".help"))) == []
    assert "show tables;" in capsys.readouterr().out


def test_the_prompt_answers_survives_mistakes_and_remembers(
    run: str, capsysbinary, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lines = typed("select gapp from tokens;", "select count(*) as n from samples;")
    with open_plane(Path(run) / "plane", mode="r") as plane:
        converse(plane, {}, Limits(), ResultFormat.csv, ask=lines)
    said = capsysbinary.readouterr()
    assert said.out.split() == [b'"n"', b"8"] and b"no column 'gapp'" in said.err
    assert history_file().is_file() and history_file().is_relative_to(tmp_path)


def test_without_a_query_standard_input_is_one(run: str, capsysbinary, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n from samples"))
    with pytest.raises(SystemExit):
        main(["sql", run, "--format", "csv"])
    assert capsysbinary.readouterr().out.split() == [b'"n"', b"8"]


@pytest.mark.parametrize(
    ("months", "days", "nanoseconds", "text"),
    [
        (0, 0, 0, "00:00:00"),
        (0, 0, 1_500_000_000, "00:00:01.5"),
        (0, 0, -61_000_000_000, "-00:01:01"),
        (0, 2, 3_600_000_000_000, "2 days 01:00:00"),
        (1, 0, 0, "1 month"),
        (14, -1, 0, "14 months -1 day"),
    ],
)
def test_an_interval_as_text(months: int, days: int, nanoseconds: int, text: str) -> None:
    assert interval_text(pa.MonthDayNano([months, days, nanoseconds])) == text


@pytest.mark.parametrize("kind", ["json", "csv", "table", "parquet"])
def test_intervals_are_written_in_every_format(run: str, capsysbinary, kind: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["sql", run, SINCE, "--format", kind])
    assert left.value.code in (0, None) and b"01:30:00" in capsysbinary.readouterr().out


def test_an_interval_inside_a_list(run: str, capsysbinary) -> None:
    with pytest.raises(SystemExit):
        main(["sql", run, "select [interval 2 second] as l", "--format", "json"])
    assert json.loads(capsysbinary.readouterr().out) == [{"l": ["00:00:02"]}]


def test_a_run_whose_recipe_names_another_place_is_read_there(tmp_path: Path, capsysbinary) -> None:
    with open_plane(tmp_path / "elsewhere") as plane:
        fill(plane)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(f"store: {{url: {tmp_path}/elsewhere}}\n")
    with pytest.raises(SystemExit):
        main(["sql", str(tmp_path / "run"), "select count(*) as n from samples", "--format", "csv"])
    assert capsysbinary.readouterr().out.split() == [b'"n"', b"8"]


def test_a_relative_place_is_below_the_directory_that_the_run_was_started_in(tmp_path: Path, capsysbinary) -> None:
    with open_plane(tmp_path / "home" / "stores" / "one") as plane:
        fill(plane)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        f"store: {{url: stores/one}}\nworking_directory: {tmp_path / 'home'}\n"
    )
    with pytest.raises(SystemExit):
        main(["sql", str(tmp_path / "run"), "select count(*) as n from samples", "--format", "csv"])
    assert capsysbinary.readouterr().out.split() == [b'"n"', b"8"]
