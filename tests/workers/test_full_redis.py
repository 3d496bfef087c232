"""A Redis server that fills up while a run goes on is an error that says so; with more memory the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dataplane import open_plane
from schemas.config import RunConfig
from schemas.errors import StoreError
from tests.dataplane.servers import Server
from tests.workers.runs import run, small_config
from workers.cli.app import main

FULL = "the server is full: .*maxmemory.*; clear rows of old steps, or give it more memory"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with room for connections and about five steps of ``bulky`` rows."""
    server = Server("--maxmemory-policy", "noeviction")
    used = server.client().info("memory")["used_memory"]
    server.client().config_set("maxmemory", used + (6000 << 10))
    yield server
    server.close()


@pytest.fixture
def bulky(checkpoints: Path, prompt_file: Path, tmp_path: Path, server: Server) -> RunConfig:
    """Ten steps of four rows whose answers take 128 KiB each."""
    rows = [json.loads(line) | {"answer": "x" * (128 << 10)} for line in prompt_file.read_text().splitlines()]
    (tmp_path / "bulky.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"grpo__max_num_steps": 10, "checkpointing__period": 1, "store__url": server.url}
    return small_config(checkpoints, tmp_path / "bulky.jsonl", **changes)


def test_it_ends_the_run_and_no_row_is_half_written(bulky: RunConfig, tmp_path: Path, server: Server) -> None:
    with pytest.raises(StoreError, match=FULL):
        run(bulky, tmp_path / "run")
    with open_plane(server.url, mode="r") as plane:
        rows, trained = plane.rows("train"), [step.step for step in plane.steps() if step.trained_at]
        assert 4 <= len(rows) < 40 and 0 < len(trained) < 10
        assert {len(answer) for answer in plane.get("train", rows, ["answer"]).values("answer")} == {128 << 10}
        assert min(plane.storage.blocks().values()) > 0  # less than that is a block of which only some was sent


def test_with_more_memory_it_goes_on_as_if_nothing_had_been(
    bulky: RunConfig, tmp_path: Path, server: Server
) -> None:
    with pytest.raises(StoreError, match=FULL):
        run(bulky, tmp_path / "run")
    with pytest.raises(StoreError, match="full"):
        run(bulky, tmp_path / "run", resume=True)
    server.client().config_set("maxmemory", 0)
    run(bulky, tmp_path / "run", resume=True)
    with open_plane(server.url, mode="r") as plane:
        trained = plane.sql("select count(*) n, count(distinct prompt_id) d from samples where status = 'trained'")
        assert trained.to_pylist() == [{"n": 40, "d": 20}]
        assert len(plane.storage.blocks()) == len(plane.blocks())


def test_retention_keeps_a_run_within_its_memory(bulky: RunConfig, tmp_path: Path, server: Server) -> None:
    store = bulky.store.model_copy(update={"retention": 0})
    run(bulky.model_copy(update={"store": store}), tmp_path / "run")
    with open_plane(server.url, mode="r") as plane:
        assert [step.step for step in plane.steps() if step.trained_at] == list(range(1, 11))


def test_the_command_exits_1_and_the_full_store_can_be_asked(bulky: RunConfig, tmp_path: Path, server, capsys) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(bulky.model_dump(mode="json")))
    command = ["run", str(tmp_path / "recipe.yaml"), "--executor", "inline", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 1 and "the server is full" in capsys.readouterr().err
    server.client().config_set("maxmemory", 1 << 20)  # not a byte to spare
    with pytest.raises(SystemExit) as left:
        main(["sql", str(tmp_path / "run"), "select count(*) > 0 as trained from steps", "--format", "csv"])
    assert (left.value.code or 0, capsys.readouterr().out.split()) == (0, ['"trained"', "true"])
