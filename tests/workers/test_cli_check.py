"""``opd check`` on a store: exit codes, text, JSON, repair; and stores on a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dataplane import open_plane
from tests.dataplane.servers import shared_server
from tests.dataplane.stores import pipeline
from tests.dataplane.test_claims import admit
from workers.cli.app import main


def opd(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with open_plane(tmp_path / "plane") as plane:
        admit(pipeline(plane), 3)
    return tmp_path / "plane"


def test_a_clean_store_exits_0(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opd("check", str(store)) == 0
    assert "6 records, 1 blocks" in (out := capsys.readouterr().out) and out.endswith("clean\n")


def test_a_missing_block_exits_1_until_it_is_repaired(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((store / "blocks").iterdir()).unlink()
    assert opd("check", str(store), "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], [problem["kind"] for problem in found["problems"]]) == (False, ["missing_block"])
    assert opd("check", str(store), "--repair") == 0
    assert "repaired: 3 rows: cleared prompt" in capsys.readouterr().out
    assert opd("check", str(store)) == 0


def test_a_store_on_a_server_is_listed_asked_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{shared_server().url}?prefix={tmp_path.name}"
    with open_plane(url) as plane:
        admit(pipeline(plane), 3)
    assert [opd("ls", url), opd("check", url), opd("sql", url, "select count(*) n from samples")] == [0, 0, 0]
    assert "train: 3 rows" in capsys.readouterr().out


def test_a_place_without_a_store_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opd("check", str(tmp_path)) == 2
    assert "there is no store in it; expected a run" in (err := capsys.readouterr().err) and "mode=" not in err


def test_a_store_that_somebody_writes_is_not_repaired(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_plane(store):
        assert opd("check", str(store), "--repair") == 1
        said = capsys.readouterr().err
        assert f"by process {os.getpid()}; end it first, or only read beside it" in said and "mode=" not in said
        assert opd("check", str(store)) == 0
