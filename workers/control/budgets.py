"""How much of a step may be lost, and what is said when it is more."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.columns import FAILURE_CODES
from schemas.config import FailuresConfig
from schemas.errors import JobFailed


def check_budget(lost: Mapping[str, str], asked: int, budgets: FailuresConfig) -> None:
    """Raise JobFailed if more of the *asked* rows are lost (id to error) than may be."""
    quarantined = {i: e for i, e in lost.items() if FAILURE_CODES.get(code_of(e)) == "quarantined"}
    others = {i: e for i, e in lost.items() if i not in quarantined}
    for rows, share, name in (
        (others, budgets.max_failed_share, "max_failed_share"),
        (quarantined, budgets.max_quarantined_share, "max_quarantined_share"),
    ):
        if len(rows) > share * asked:
            raise JobFailed(
                f"expected {asked} samples, got {max(0, asked - len(lost))}: {len(rows)} lost is more than "
                f"failures.{name} allows ({share:.0%}): {summarise(rows)}"
            )


def check_size(lost: Mapping[str, str], asked: int, budgets: FailuresConfig) -> None:
    """Raise JobFailed if what is left is less than a step is trained on. Never silently on less than was asked."""
    if asked - len(lost) < budgets.min_step_fraction * asked:
        raise JobFailed(
            f"expected {asked} samples, got {asked - len(lost)}, less than failures.min_step_fraction "
            f"({budgets.min_step_fraction:.0%}) of them: {summarise(lost)}"
        )


def code_of(error: str) -> str:
    """The code that opens an error."""
    return error.partition(":")[0]


def summarise(errors: Mapping[str, str]) -> str:
    """The commonest reasons, each with a sample to look at."""
    by_reason: dict[str, list[str]] = {}
    for sample_id, error in errors.items():
        by_reason.setdefault(error, []).append(sample_id)
    worst = sorted(by_reason.items(), key=lambda item: -len(item[1]))[:3]
    return "; ".join(f"{len(ids)} x {error} (e.g. {ids[0]})" for error, ids in worst)
