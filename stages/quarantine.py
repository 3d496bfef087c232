"""Rows that cannot be trained on because a value at a trained token is not a number.

One NaN would spoil the whole step: the row is set aside with a reason, counted, and the others train.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stages.masking import fill


def finite_rows(values_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Whether every value of a row in *mask_BS* is finite; [B]."""
    return fill(values_BS, mask_BS).isfinite().all(1)


def bad_logprobs(columns: Mapping[str, Tensor], mask_BS: Tensor) -> dict[int, str]:
    """ "bad_logprob: detail" by row, for rows with a NaN or infinite value of some column at a token in *mask_BS*."""
    reasons: dict[int, str] = {}
    for name, values in columns.items():
        bad = ~fill(values, mask_BS).isfinite()
        for row in bad.any(1).nonzero().flatten().tolist():
            position = int(bad[row].nonzero()[0])
            reasons.setdefault(
                row,
                f"bad_logprob: {name} is {values[row, position].item()} at position {position} "
                f"({int(bad[row].sum())} of {int(mask_BS[row].sum())} generated tokens)",
            )
    return reasons
