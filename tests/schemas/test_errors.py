"""Each error is also the standard type that a caller would catch."""

from __future__ import annotations

import pytest

from schemas import errors


@pytest.mark.parametrize(
    ("error", "standard"),
    [
        (errors.ConfigError, ValueError),
        (errors.MissingRows, LookupError),
        (errors.StoreLocked, RuntimeError),
        (errors.DeadlinePassed, TimeoutError),
    ],
)
def test_errors_are_standard_types_too(error: type[Exception], standard: type[Exception]) -> None:
    assert issubclass(error, standard)
    assert issubclass(error, errors.OpdError)


def test_missing_rows_carries_ids_and_columns() -> None:
    missing = errors.MissingRows("2 columns are missing", {"a": ("reward", "input_ids")}).missing
    assert missing == {"a": ["reward", "input_ids"]}


def test_did_you_mean_is_silent_without_a_near_word() -> None:
    assert errors.did_you_mean("sort", ["rev", "srot"]) == " (did you mean 'srot'?)"
    assert errors.did_you_mean("sort", ["numeric"]) == ""
