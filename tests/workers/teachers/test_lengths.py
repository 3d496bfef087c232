"""Longer than the teacher accepts: refused at the start where that is sure, else data on the row; never clipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from schemas.errors import InputError
from stages.routing import TeacherConfig
from tests.workers.runs import query, run, small_config
from workers.cli.app import main
from workers.job import read_inputs
from workers.teachers import lengths

ROWS = [("rev", "rev abcdefgh"), ("sort", "sort 51"), ("sort", "sort 3142"), ("sort", "sort 21")]


@pytest.fixture
def short(checkpoints: Path, tmp_path: Path) -> Path:
    """The checkpoints, with a teacher ``sort`` that accepts 12 tokens; a prompt has 3 more than characters."""
    for model in ("student", "rev", "sort"):
        (tmp_path / model).mkdir()
        for file in (checkpoints / model).iterdir():
            (tmp_path / model / file.name).symlink_to(file)
    settings = json.loads((checkpoints / "sort" / "config.json").read_text())
    (tmp_path / "sort" / "config.json").unlink()
    (tmp_path / "sort" / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 12}))
    return tmp_path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "asked.jsonl", ROWS)


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"prompt": text, "answer": "1", "agent": agent}) + "\n" for agent, text in rows))
    return path


def test_a_prompt_that_fills_its_teacher_is_refused(short: Path, prompts: Path) -> None:
    message = r"data.train: prompt 'asked:3' has 12 tokens, and its teacher 'sort' accepts 12 .*sort\)"
    with pytest.raises(InputError, match=message):
        read_inputs(small_config(short, prompts))


def test_prompts_that_leave_room_are_not_refused(short: Path, prompts: Path) -> None:
    prompts.write_text(prompts.read_text().replace("3142", "314"))
    assert len(read_inputs(small_config(short, prompts)).train) == 4


def test_a_recipe_whose_sequences_all_fit_has_no_prompt_tokenised(short: Path, prompts: Path) -> None:
    config = small_config(short, prompts, policy__max_total_sequence_length=12)
    assert len(read_inputs(config).train) == 4


def test_so_many_of_the_longest_are_looked_at(short: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(prompts, [("sort", f"sort {'1' * digits}") for digits in (2, 1, 4, 3)])
    monkeypatch.setattr(lengths, "LONGEST", 2)
    with pytest.raises(InputError, match="prompt 'asked:3' has 12 tokens"):
        read_inputs(small_config(short, prompts))
    inputs = read_inputs(small_config(short, prompts, policy__max_total_sequence_length=12))
    sort = TeacherConfig("sort", str(short / "sort"), ("sort",))
    assert list(lengths._longest(inputs.train.table, sort, inputs.tokenizer)) == [("asked:3", 12), ("asked:4", 11)]


def test_it_is_exit_2_before_anything_starts(short: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = short / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(small_config(short, prompts).model_dump(mode="json")))
    with pytest.raises(SystemExit) as left:
        main(["run", str(recipe), "--run-dir", str(short / "run"), "--executor", "inline"])
    assert left.value.code == 2 and "'asked:3' has 12 tokens" in capsys.readouterr().err
    assert not (short / "run").exists()


def test_a_row_whose_response_is_too_long_fails_and_is_replaced(short: Path, prompts: Path) -> None:
    write(prompts, [("rev", "rev ab"), ("rev", "rev abcd"), ("sort", "sort 51"), ("rev", "rev abc")])
    changes = {"failures__max_failed_share": 1.0, "grpo__num_prompts_per_step": 2, "grpo__max_num_steps": 4}
    made = run(small_config(short, prompts, **changes), short / "run")
    failed = "select distinct prompt_id, error from samples where status = 'failed'"
    error = "teacher_too_long: 15 tokens exceed the 12 that this model accepts"
    assert query(made, failed) == [("asked:3", error)]
    assert query(made, "select agent, count(*) from samples where status = 'trained' group by 1") == [("rev", 8)]
