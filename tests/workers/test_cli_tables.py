"""Tables in a terminal."""

from __future__ import annotations

import math

from workers.cli.tables import cell, render

RED = "\x1b[31mred"


def test_numbers_stand_right_and_texts_left() -> None:
    lines = list(render(["agent", "n"], [("rev", 1200), ("sort", None), ("x", 7)]))
    assert lines == ["agent     n", "─────  ────", "rev    1200", "sort   null", "x         7"]


def test_values_in_a_cell() -> None:
    values = [0.1 + 0.2, math.nan, -math.inf, True, None, {"a": 1.5, "b": None}]
    assert [cell(value) for value in values] == ["0.3", "nan", "-inf", "true", "null", "{a: 1.5, b: null}"]


def test_long_lists_are_shortened() -> None:
    assert cell([1, 2, 3, 4]) == "[1, 2, 3, 4]"
    assert cell([1, 2, 3, 4, 5, 6]) == "[1, 2, 3, 4, … 2 more]"


def test_what_a_model_wrote_cannot_act_on_the_terminal() -> None:
    assert cell(RED + "\nnext\u202e") == "\\x1b[31mred\\nnext\\u202e"
    assert all("\x1b" not in line for line in render([RED], [(RED,)]))


def test_the_widest_columns_give_way() -> None:
    lines = list(render(["id", "prompt"], [("a", "x" * 50), ("b", "y")], width=20))
    assert lines == ["id  prompt", "──  ────────────────", "a   " + "x" * 15 + "…", "b   y"]


def test_wide_characters_count_twice() -> None:
    lines = list(render(["text", "n"], [("日本", 1), ("ab", 2)]))
    assert lines[2:] == ["日本  1", "ab    2"]


def test_too_many_columns_become_records() -> None:
    names = [f"column_{k}" for k in range(10)]
    lines = list(render(names, [tuple(range(10)), tuple("x" * 99 for _ in range(10))], width=40))
    assert lines[0].startswith("── 1 ─") and lines[1] == "column_0  0" and lines[11].startswith("── 2 ─")
    assert lines[12] == "column_0  " + "x" * 29 + "…"


def test_no_width_cuts_nothing() -> None:
    assert list(render(["a", "b"], [("x" * 500, "y")]))[2] == "x" * 500 + "  y"


def test_no_rows_take_no_more_width_than_there_is() -> None:
    names = [f"column_{k}" for k in range(10)]
    lines = list(render(names, [], width=40))
    assert lines[0].startswith("no rows of column_0, column_1") and max(map(len, lines)) <= 40
    assert list(render(["a", "bc"], [], width=40)) == ["a  bc", "─  ──"]
