"""Agent-balanced subsets of NeMo-Gym rows and plain ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import xxhash

from schemas.config import DataSource
from schemas.errors import InputError
from workers.cli.app import main
from workers.data import load_prompts
from workers.proxy.subset import build_subset

ROWS = Path(__file__).parents[1] / "data" / "gym_rows.jsonl"


def prompts(directory: Path) -> list[tuple[str, str]]:
    """(agent, text) of every row that was taken."""
    found = load_prompts([DataSource(path=str(directory / "prompts.jsonl"))], "subset")
    assert found.rejected == []
    return list(zip(found.table["agent"].to_pylist(), found.table["prompt"].to_pylist(), strict=True))


def test_every_agent_gives_as_many_rows_and_each_stays_as_it_is(tmp_path) -> None:
    made = build_subset(ROWS, tmp_path / "two", 2)
    assert made.taken == {"danish": 2, "facts": 2, "sums": 2}
    taken = (tmp_path / "two" / "prompts.jsonl").read_bytes().splitlines()
    source = ROWS.read_bytes().splitlines()
    assert [source.index(line) for line in taken] == sorted(source.index(line) for line in taken)
    assert len(taken) == len(set(taken)) == 6


def test_the_same_seed_takes_the_same_rows_and_another_takes_others(tmp_path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build_subset(ROWS, tmp_path / name, 1, seed=seed)
    a, b, c = ((tmp_path / name / "prompts.jsonl").read_bytes() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()


def test_neither_the_order_of_the_file_nor_other_agents_decide_and_more_rows_hold_the_fewer(tmp_path) -> None:
    lines = [line for line in ROWS.read_text().splitlines() if "Danish" not in line]
    (tmp_path / "turned.jsonl").write_text("\n".join(reversed(lines)))
    build_subset(ROWS, tmp_path / "two", 2, agents=["sums", "facts"])
    build_subset(tmp_path / "turned.jsonl", tmp_path / "turned", 2)
    build_subset(ROWS, tmp_path / "three", 3)
    assert sorted(prompts(tmp_path / "two")) == sorted(prompts(tmp_path / "turned"))
    assert set(prompts(tmp_path / "two")) < set(prompts(tmp_path / "three"))


def test_the_manifest_has_hashes_counts_and_what_was_left_out(tmp_path) -> None:
    build_subset(ROWS, tmp_path / "out", 3, seed=5)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    written = (tmp_path / "out" / "prompts.jsonl").read_bytes()
    assert manifest["source"]["sha256"] == hashlib.sha256(ROWS.read_bytes()).hexdigest()
    assert manifest["source"]["rows"] == 15
    assert manifest["outputs"]["prompts.jsonl"] == {
        **{"bytes": len(written), "rows": 9, "sha256": hashlib.sha256(written).hexdigest()},
        "xxh3_64": xxhash.xxh3_64_hexdigest(written),
    }
    assert manifest["agents"]["sums"] == {"usable": 4, "taken": 3}
    assert (manifest["seed"], manifest["per_agent"], manifest["left_out"]["repeated"]) == (5, 3, 1)
    assert sum(manifest["left_out"]["unusable"].values()) == 4
    assert manifest["left_out"]["unusable"]["not JSON"] == 1


def test_an_agent_with_too_few_rows_is_named_and_nothing_is_written(tmp_path) -> None:
    with pytest.raises(InputError, match=r"fewer usable rows of danish, facts; it has danish 3, facts 3, sums 4"):
        build_subset(ROWS, tmp_path / "out", 4)
    assert list(tmp_path.iterdir()) == []
    assert build_subset(ROWS, tmp_path / "sums", 4, agents=["sums"]).taken == {"sums": 4}


def test_a_misspelt_agent_gets_the_nearest_one(tmp_path) -> None:
    with pytest.raises(InputError, match=r"--agent sum: no row of .* is this agent's \(did you mean 'sums'\?\)"):
        build_subset(ROWS, tmp_path / "out", 1, agents=["sum"])


def opd(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["build-proxy", *arguments])
    return int(left.value.code or 0)


def test_the_verb_prints_the_folder_and_says_what_was_left_out(tmp_path, capsys) -> None:
    assert opd(str(tmp_path / "out"), "--from", str(ROWS), "--per-agent", "2", "--agent", "sums") == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out'}\n"
    assert "gym_rows.jsonl:5: " in printed.err and printed.err.endswith("sums 2; 1 repeated rows left out\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from", str(ROWS)], "--from: say with --per-agent how many rows"),
        (["--per-agent", "2"], "only with --from FILE"),
        (["--from", "nowhere.jsonl", "--per-agent", "2"], "prompt file 'nowhere.jsonl': no such file"),
    ],
)
def test_half_a_command_is_refused(tmp_path, capsys, arguments: list[str], reason: str) -> None:
    assert opd(str(tmp_path / "out"), *arguments) == 2
    assert reason in capsys.readouterr().err
