"""One sample in the terminal and as JSON: its numbers are those of the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataplane import open_plane
from dataplane.inspector.sample import find_sample
from schemas.errors import InputError
from tests.dataplane.sql_run import fill
from tests.workers.runs import run, small_config
from workers.cli.app import main


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, two responses a prompt."""
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=2, grpo__num_generations_per_prompt=2)
    return run(config, tmp_path_factory.mktemp("show") / "run").path


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["show", *arguments])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_every_token_number_is_that_of_its_column(finished: Path) -> None:
    columns = {"student_logprob": "student_logprobs", "teacher_logprob": "teacher_logprobs", "advantage": "advantages"}
    with open_plane(finished / "plane", mode="r") as plane:
        sample_id = plane.members(2)[3]
        found = find_sample(plane, sample_id)
        stored = plane.get("train", [sample_id], ["input_ids", "token_mask", *columns.values()])
    mask = stored.values("token_mask")[0]
    assert [token["token_id"] for token in found["tokens"]] == stored.values("input_ids")[0]
    for shown, name in columns.items():
        expected = [value if on else None for value, on in zip(stored.values(name)[0], mask, strict=True)]
        assert [token[shown] for token in found["tokens"]] == expected
    gaps = np.float32(stored.values("teacher_logprobs")[0]) - np.float32(stored.values("student_logprobs")[0])
    assert [token["gap"] for token in found["tokens"] if token["gap"] is not None] == gaps[mask].tolist()


def test_the_worst_of_an_agent_is_the_one_with_the_lowest_mean_gap(finished: Path, capsys) -> None:
    with open_plane(finished / "plane", mode="r") as plane:
        rows = plane.get("train", plane.rows("train", have=["gap_mean"]), ["agent", "gap_mean"])
    agents, gaps = rows.values("agent"), rows.values("gap_mean")
    for agent in set(agents):
        lowest = min(zip(gaps, rows.sample_ids, agents, strict=True), key=lambda row: (row[2] != agent, row[0]))[1]
        code, out, _ = show(capsys, str(finished), "--worst", agent, "--format", "json")
        assert (code, json.loads(out)["sample_id"]) == (0, lowest)


def test_a_sample_or_the_worst_of_an_agent_is_asked_for_and_the_agents_are_named(finished: Path, capsys) -> None:
    assert "expected a SAMPLE_ID or --worst AGENT" in show(capsys, str(finished))[2]
    assert "expected a SAMPLE_ID or --worst AGENT" in show(capsys, str(finished), "0000000-0", "--worst", "x")[2]
    code, _, err = show(capsys, str(finished), "--worst", "nobody")
    assert code == 2 and "--worst nobody: no trained sample; agents of the last trained steps: " in err


def test_a_table_of_tokens_and_the_history(finished: Path, capsys) -> None:
    with open_plane(finished / "plane", mode="r") as plane:
        sample_id = plane.members(1)[0]
        gap = plane.sql(f"select gap from tokens where sample_id = '{sample_id}' and gap is not null")["gap"][0].as_py()
    code, out, err = show(capsys, str(finished), sample_id)
    assert (code, err) == (0, "") and "status trained, step 1" in out and f"{round(gap, 4):g}" in out
    history = [line.split()[1:4] for line in out.splitlines() if line[:2].isdigit() and ":" in line[:3]]
    assert ["committed", "teacher", history[4][2]] == history[4] and history[4][2].startswith("teacher:")
    assert "student_logprobs" in out and "same prompt: " in out


def test_history_names_the_weights_of_each_writer(finished: Path) -> None:
    with open_plane(finished / "plane", mode="r") as plane:
        found = find_sample(plane, plane.members(2)[0])
    wrote = {event["task"]: event.get("version") for event in found["history"] if event["kind"] == "committed"}
    assert (wrote["student"], wrote["train"]) == (1, 1) and wrote["generate"] in (0, 1)
    assert len(found["siblings"]) == 2


def test_nothing_that_a_model_wrote_reaches_the_terminal_as_a_command(tmp_path: Path, capsys) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["prompt", "response_text"])
        plane.put("train", ["a"], {"prompt": ["hi"], "response_text": ["\x1b[2J[bold]gone[/bold]"]})
    code, out, _ = show(capsys, str(tmp_path), "a")
    assert code == 0 and "\x1b" not in out and "\\x1b[2J[bold]gone[/bold]" in out


def test_numbers_that_are_not_finite_are_shown_as_they_are(tmp_path: Path, capsys) -> None:
    with open_plane(tmp_path / "plane") as plane:
        fill(plane)
    code, out, _ = show(capsys, str(tmp_path), "s1", "--format", "json")
    assert code == 0 and json.loads(out)["tokens"][2]["gap"] == -0.5
    with open_plane(tmp_path / "plane") as plane:
        plane.replace("train", ["s1"], {"teacher_logprobs": [[0.0, 7.0, float("-inf")]]})
    code, out, _ = show(capsys, str(tmp_path), "s1", "--format", "json")
    token = json.loads(out)["tokens"][2]
    assert (token["gap"], token["finite"]) == ("-Infinity", False)


def test_a_sample_that_is_not_there_is_exit_2_and_the_nearest_one(finished: Path, capsys) -> None:
    code, out, err = show(capsys, str(finished), "0000002-9")
    assert (code, out) == (2, "") and "did you mean '0000002-" in err


def test_a_cleared_sample_is_said_to_be_cleared(tmp_path: Path, capsys) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["prompt"])
        plane.put("train", ["a", "b"], {"prompt": ["x", "y"]})
        plane.clear("train", ["a"])
    code, _, err = show(capsys, str(tmp_path), "a")
    assert code == 2 and "sample 'a' of 'train' was cleared; its last record is of " in err


def test_a_sample_is_looked_for_where_one_says(finished: Path) -> None:
    with (
        open_plane(finished / "plane", mode="r") as plane,
        pytest.raises(InputError, match="in partition 'validation'"),
    ):
        find_sample(plane, plane.members(1)[0], "validation")


def test_looking_and_exporting_need_no_heavy_library(finished: Path, tmp_path: Path) -> None:
    with open_plane(finished / "plane", mode="r") as plane:
        sample_id = plane.members(1)[0]
    script = (
        "import sys\nfrom workers.cli.app import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as left:\n    code = left.code\n"
        "heavy = {'torch', 'ray', 'pandas', 'polars', 'transformers', 'tensorboard', 'starlette'}\n"
        "print(code or 0, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for command in (["show", str(finished), sample_id], ["export", str(finished), str(tmp_path / "out")]):
        done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
        assert done.stderr == "0 []\n"
