"""Exports: other programs read them, and a step lives on without its run."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from pyarrow import json as arrow_json
from pyarrow import parquet

from dataplane import open_plane
from tests.workers.runs import run, small_config
from workers.cli.app import main
from workers.replay import replay


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3)
    return run(config, tmp_path_factory.mktemp("export") / "run").path


def export(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["export", *map(str, arguments)])
    return int(left.value.code or 0)


def test_parquet_holds_every_row_and_value(finished: Path, tmp_path: Path) -> None:
    assert export(finished, tmp_path / "out") == 0
    with open_plane(finished / "plane", mode="r") as plane:
        samples, tokens = plane.sql("from samples"), plane.sql("from tokens")
    written = parquet.read_table(tmp_path / "out" / "samples.parquet")
    assert written.column_names == samples.column_names and written.num_rows == samples.num_rows
    assert written.sort_by("sample_id")["loss"].to_pylist() == samples.sort_by("sample_id")["loss"].to_pylist()
    [(rows, gap)] = duckdb.sql(f"select count(*), sum(gap) from '{tmp_path}/out/tokens.parquet'").fetchall()
    assert rows == tokens.num_rows and gap == pytest.approx(sum(g for g in tokens["gap"].to_pylist() if g is not None))


def test_json_lines_keep_one_type_a_column(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    with open_plane(tmp_path / "run" / "plane") as plane:
        [spoilt, *_] = plane.members(1)
        plane.replace("train", [spoilt], {"gap_mean": [float("nan")]})
        expected = len(plane.rows("train", step=1))
    assert export(tmp_path / "run", tmp_path / "out", "--format", "jsonl", "--where", "step = 1") == 0
    read = arrow_json.read_json(tmp_path / "out" / "samples.jsonl")
    by_id = dict(zip(read["sample_id"].to_pylist(), read["gap_mean"].to_pylist(), strict=True))
    assert len(by_id) == expected and by_id[spoilt] is None and isinstance(by_id[max(by_id)], float)
    [(rows,)] = duckdb.sql(f"select count(*) from read_json('{tmp_path}/out/samples.jsonl')").fetchall()
    assert rows == expected


def test_an_exported_step_is_opened_and_replayed_without_its_run(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "out", "--step", "2") == 0
    shutil.rmtree(tmp_path / "run")
    with replay(tmp_path / "out", 2) as again:
        report = again.run("teacher", "baseline")
        assert [stage.columns["advantages"].rows for stage in report.stages[1:]] == [4]
        assert report.verdict in ("identical", "within_tolerance")
        assert again.run(overrides={"on_policy_distillation.proximal_teacher_alpha": 0.5}).change is not None
    with open_plane(tmp_path / "out" / "plane", mode="r") as plane:
        assert plane.sql("select status, count(*) as n from samples group by 1").to_pylist() == [
            {"status": "trained", "n": 4}
        ]


def test_an_exported_recipe_says_nothing_of_the_store_it_came_from(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    recipe = tmp_path / "run" / "config.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("url: null", "url: rediss://someone:secret@far:6379/0", 1))
    assert recipe.read_text() != text
    assert export(tmp_path / "run", tmp_path / "out", "--step", "1") == 0
    assert (tmp_path / "out" / "config.yaml").read_text() == text


def test_a_stage_whose_weights_stayed_behind_says_so(finished: Path, tmp_path: Path) -> None:
    assert export(finished, tmp_path / "out", "--step", "3") == 0
    with replay(tmp_path / "out", 3) as again:
        report = again.run("student")
    assert report.verdict == "not_run" and "step 1, which could make them again" in str(report.reason)


def test_with_its_weights_an_exported_step_is_replayed_whole(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "out", "--step", "3", "--weights") == 0
    shutil.rmtree(tmp_path / "run")
    with replay(tmp_path / "out", 3) as again:
        report = again.run("student", "train")
    assert (report.verdict, report.stages[0].columns["student_logprobs"].equal) == ("identical", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "9"], "step 9 of partition 'train' is not sealed; steps 1 to "),
        (["--where", "rewardd = 1"], "opd: where 'rewardd = 1': no column 'rewardd' (did you mean 'reward'"),
        (["--step", "1", "--where", "reward = 1"], "leave --where out"),
    ],
)
def test_bad_input_leaves_nothing_behind(finished: Path, tmp_path: Path, capsys, arguments, message: str) -> None:
    assert export(finished, tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(finished: Path, tmp_path: Path, capsys) -> None:
    assert export(finished, tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
