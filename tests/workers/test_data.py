"""Prompts from files: what is usable, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from schemas.config.job import DataSource
from schemas.errors import InputError
from workers.data import Order, load_prompts


def load(tmp_path, *lines, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return load_prompts([DataSource(path=str(path), **options)], "data.train")


def values(found, *columns):
    return list(zip(*(found.table[column].to_pylist() for column in columns), strict=True))


def test_text_messages_and_defaults_become_prompts(tmp_path):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]
    found = load(
        tmp_path, {"prompt": "rev ab", "answer": "ba", "agent": "rev"}, {"messages": chat, "answer": 4}, agent="math"
    )
    assert values(found, "prompt", "answer", "agent", "prompt_id") == [
        ("rev ab", "ba", "rev", "rows:1"),
        ("2+2?", "4", "math", "rows:2"),
    ]
    first, second = found.table["messages"].to_pylist()[:2]
    assert first is None and json.loads(second) == chat


def test_rows_of_gym_environments_are_understood(tmp_path):
    parts = [
        {"role": "user", "content": [{"type": "input_text", "text": "which "}, {"type": "input_text", "text": "one?"}]}
    ]
    rows = [
        {"responses_create_params": {"input": "what?"}, "agent_ref": {"name": "qa_agent"}, "expected_answer": "that"},
        {"responses_create_params": {"input": parts}, "agent_ref": {"name": "mc_agent"}, "expected_answer": "B"},
    ]
    found = load(tmp_path, *rows, answer_field="expected_answer")
    assert values(found, "prompt", "agent", "answer") == [
        ("what?", "qa_agent", "that"),
        ("which one?", "mc_agent", "B"),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"prompt": "x"', "not JSON"),
        ("[1, 2]", "expected an object, got list"),
        ({"agent": "a"}, "no prompt"),
        ({"prompt": "  ", "agent": "a"}, "no prompt"),
        ({"prompt": "x"}, "no agent"),
        ({"prompt": "x", "agent": "a", "answer": [1]}, "answer: expected text or a number, got list"),
        ({"messages": [{"content": "x"}], "agent": "a"}, "must be an object with role and content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_image"}]}], "agent": "a"}, "type 'input_image'"),
        ({"messages": [{"role": "assistant", "content": "x"}], "agent": "a"}, "the last message is the assistant's"),
    ],
)
def test_an_unusable_row_is_reported_with_line_and_reason(tmp_path, row, reason):
    found = load(tmp_path, {"prompt": "fine", "agent": "a"}, row)
    assert len(found) == 1
    assert "rows.jsonl:2: " in found.rejected[0] and reason in found.rejected[0]


def test_nothing_usable_is_an_error_that_says_why(tmp_path):
    with pytest.raises(InputError, match="no usable prompt in .*it is empty"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"rows.jsonl:1: no agent"):
        load(tmp_path, {"prompt": "x"})


def test_rows_left_out_are_named_and_counted(tmp_path):
    found = load(tmp_path, {"prompt": "fine", "agent": "a"}, *[{"x": 1}] * 12)
    lines = found.left_out("data.train")
    assert len(lines) == 11 and lines[0].startswith("prompt left out: ") and "rows.jsonl:2: " in lines[0]
    assert lines[-1] == "data.train: 12 of 13 rows left out, 1 used"
    assert load(tmp_path, {"prompt": "fine", "agent": "a"}).left_out("data.train") == []


def test_a_text_file_says_what_was_expected(tmp_path):
    (tmp_path / "notes.txt").write_text("# Notes\nfoo\n")
    with pytest.raises(InputError, match=r"notes.txt; expected an object with prompt, answer and agent in each line"):
        load_prompts([DataSource(path=str(tmp_path / "notes.txt"))], "data.train")


def test_a_missing_file_names_itself(tmp_path):
    with pytest.raises(InputError, match="nowhere.jsonl.: no such file"):
        load_prompts([DataSource(path=str(tmp_path / "nowhere.jsonl"))], "data.train")


def test_order_takes_every_prompt_once_an_epoch_and_depends_on_the_seed_alone():
    order = Order(7, seed=3)
    first, second = order.rows(0, 7), order.rows(7, 7)
    assert sorted(first) == sorted(second) == list(range(7)) and first != second
    assert order.rows(5, 4) == [*first[5:], *second[:2]] and order.rows(0, 23)[:14] == first + second
    assert Order(7, seed=3).rows(0, 7) == first != Order(7, seed=4).rows(0, 7)


def test_rows_are_routed_by_their_agent(tmp_path):
    found = load(tmp_path, *({"prompt": "p", "agent": agent} for agent in ("b", "a", "b")))
    assert found.routed({"a": "x", "b": "y"}.__getitem__).table["teacher"].to_pylist() == ["y", "x", "y"]
    assert found.routed(lambda agent: None).table["teacher"].null_count == 3
