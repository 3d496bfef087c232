"""Replay, export and the page over a run whose store is in Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane import open_plane
from dataplane.inspector.queries import ask_apart
from schemas.config import load_recipe
from schemas.errors import InputError
from tests.dataplane.servers import shared_server
from tests.workers.runs import run, small_config
from workers.cli.app import main
from workers.replay import replay


@pytest.fixture(scope="module")
def url() -> str:
    return f"{shared_server().url}?prefix=replayed"


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory, url: str) -> Path:
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=2, store__url=url)
    return run(config, tmp_path_factory.mktemp("redis") / "run").path


def test_every_stage_is_replayed_from_the_run_directory(finished: Path) -> None:
    assert not (finished / "plane").exists()
    with replay(finished, 2) as again:
        report = again.run()
    assert [stage.verdict for stage in report.stages[1:]] == ["identical", "identical", "identical"]
    assert report.stages[0].verdict in ("identical", "within_tolerance")


def test_a_url_is_enough(finished: Path, url: str) -> None:
    with replay(url, 1) as again:
        assert again.source.config() == load_recipe(str(finished / "config.yaml"), ["store.url=null"])
        report = again.run("student", "baseline")
    assert (report.verdict, report.versions_changed) == ("identical", {})


def test_a_recipe_may_be_given_beside_a_url(finished: Path, url: str) -> None:
    with replay(url, 1, config=finished / "config.yaml") as again:
        assert again.run("baseline").verdict == "identical"
    with pytest.raises(InputError, match="--config FILE"):
        replay(url, 1, config=finished / "none.yaml")


def test_a_step_leaves_redis_for_good(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["export", str(finished), str(tmp_path / "out"), "--step", "2"])
    assert not left.value.code
    with replay(tmp_path / "out", 2) as again:
        assert again.run("baseline").verdict == "identical"


def test_a_query_apart_reads_redis_too(finished: Path, url: str) -> None:
    with open_plane(url, mode="r") as plane:
        rows = len(plane.rows("train"))
        assert ask_apart(plane.url, "select count(*) as n from samples where partition = 'train'")["rows"] == [[rows]]
