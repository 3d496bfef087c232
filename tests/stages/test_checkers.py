"""Reward functions by name."""

import pytest

from schemas.errors import InputError
from stages.checkers import reward


@pytest.mark.parametrize(
    ("checker", "response", "answer", "expected"),
    [
        ("exact", " dcba\n", "dcba", 1.0),
        ("exact", "dcb", "dcba", 0.0),
        ("numeric", "so 12 apples, that is 1,234.50", "1234.5", 1.0),
        ("numeric", "7 and not 8", "7", 0.0),
        ("numeric", "5-3", "3", 1.0),
        ("numeric", "x = -3", "3", 0.0),
        ("numeric", "none", "3", 0.0),
        ("numeric", "1e3", "1000", 1.0),
        ("numeric", "1e99999999999999999999", "1", 0.0),
        ("regex", "the answer is 42.", r"\b4\d\b", 1.0),
        ("regex", "the answer is 421", r"\b4\d\b", 0.0),
        ("tests.stages.test_checkers:half", "any", "thing", 0.5),
    ],
)
def test_verdicts(checker, response, answer, expected):
    assert reward(checker, response, answer) == expected


def half(response_text, answer):
    return 0.5


def test_an_unknown_name_lists_the_known():
    with pytest.raises(InputError, match=r"'numerical' is unknown \(did you mean 'numeric'\?\).*exact, numeric, regex"):
        reward("numerical", "1", "1")


@pytest.mark.parametrize("path", ["no_such_module:f", "tests.stages.test_checkers:nothing", "math:pi", ":f"])
def test_an_import_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(InputError, match="checker"):
        reward(path, "1", "1")


@pytest.mark.parametrize(("checker", "answer"), [("numeric", "many"), ("regex", "(")])
def test_an_answer_the_checker_cannot_read_is_refused(checker, answer):
    with pytest.raises(InputError, match=checker):
        reward(checker, "1", answer)
