"""Which rows share a forward pass, from their lengths alone, so that every rank comes to the same answer."""

from __future__ import annotations

from collections.abc import Sequence

#: Rows of one forward pass, as indexes.
MicroBatch = list[int]


def plan(lengths: Sequence[int], replicas: int = 1, *, rows: int, tokens: int | None = None) -> list[list[MicroBatch]]:
    """The micro-batches of each replica.

    Replicas get about the same number of tokens. Without *tokens*, micro-batches are *rows* consecutive rows. With
    it, rows are sorted by length, and a micro-batch takes rows as long as it stays within *tokens*, padding
    included, and *rows*; a row longer than that goes alone. Planning a replica's rows again, in the order of its
    micro-batches, gives the same micro-batches.
    """
    shares = balanced(lengths, replicas)
    if tokens is None:
        return [[share[start : start + rows] for start in range(0, len(share), rows)] for share in shares]
    return [_within(sorted(share, key=lambda row: (lengths[row], row)), lengths, rows, tokens) for share in shares]


def balanced(lengths: Sequence[int], replicas: int) -> list[list[int]]:
    """All rows in *replicas* shares, each in batch order; shares differ by no more tokens than the longest row has.

    The longest row left goes to the share with the fewest tokens.
    """
    if replicas == 1:
        return [list(range(len(lengths)))]
    shares: list[list[int]] = [[] for _ in range(replicas)]
    tokens = [0] * replicas
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        emptiest = min(range(replicas), key=lambda share: (tokens[share], len(shares[share]), share))
        shares[emptiest].append(row)
        tokens[emptiest] += lengths[row]
    return [sorted(share) for share in shares]


def _within(ordered: Sequence[int], lengths: Sequence[int], rows: int, tokens: int) -> list[MicroBatch]:
    """*ordered* rows, ascending in length, cut so that no part of several rows is wider than it may be."""
    parts: list[MicroBatch] = []
    for row in ordered:
        if parts and len(parts[-1]) < rows and (len(parts[-1]) + 1) * lengths[row] <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
