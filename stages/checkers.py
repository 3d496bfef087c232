"""Reward functions by name: response text and answer in, a number out; 1.0 is a right answer.

exact            the response is the answer, surrounding white space aside
numeric          the last number of the response equals the answer's, in value
regex            the answer is a pattern that matches somewhere in the response
module:function  ``function(response_text, answer) -> float`` of an importable module
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module

from schemas.errors import InputError, did_you_mean

Checker = Callable[[str, str], float]

#: A sign belongs to the number unless a digit or word stands before it: "5-3" ends in 3, "x = -3" in -3.
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d{1,4})?")


def reward(checker: str, response_text: str, answer: str) -> float:
    """The verdict of *checker* on a response. Raises InputError for an unknown checker or an answer it cannot read."""
    return float(find_checker(checker)(response_text, answer))


def find_checker(name: str) -> Checker:
    """The reward function called *name*. Raises InputError listing the names."""
    if name in CHECKERS:
        return CHECKERS[name]
    if ":" in name:
        return _imported(name)
    known = f"{', '.join(CHECKERS)}, or module:function"
    raise InputError(f"checker {name!r} is unknown{did_you_mean(name, CHECKERS)}: expected one of {known}")


def exact(response_text: str, answer: str) -> float:
    """1.0 when the response is the answer."""
    return float(response_text.strip() == answer.strip())


def numeric(response_text: str, answer: str) -> float:
    """1.0 when the last number of the response has the value of the answer's last number."""
    expected, found = last_number(answer), last_number(response_text)
    if expected is None:
        raise InputError(f"checker 'numeric': expected a number as answer, got {answer!r}; use 'exact' for text")
    return float(found == expected)


def regex(response_text: str, answer: str) -> float:
    """1.0 when the pattern *answer* is found in the response."""
    try:
        return float(re.search(answer, response_text) is not None)
    except re.error as error:
        raise InputError(f"checker 'regex': answer {answer!r} is not a pattern ({error})") from None


CHECKERS: dict[str, Checker] = {"exact": exact, "numeric": numeric, "regex": regex}


def last_number(text: str) -> Decimal | None:
    """The last number written in *text*; "1,234.50" and "1e3" are numbers. None when there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _imported(path: str) -> Checker:
    module_name, _, attribute = path.partition(":")
    try:
        checker = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"checker {path!r} cannot be imported: {error}") from None
    if not callable(checker):
        raise InputError(f"checker {path!r}: expected a function, got {type(checker).__name__}")
    return checker
