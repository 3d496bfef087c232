"""Scoring spread over data-parallel ranks: each runs its share of the forward passes, all get all results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from safetensors.torch import load, save
from torch import Tensor

from workers.engines.batching import MicroBatch, plan
from workers.ranks import Ranks

#: What one sequence got, by name.
Named = dict[str, Tensor]


def spread(
    lengths: Sequence[int],
    run: Callable[[MicroBatch], list[Named]],
    ranks: Ranks,
    *,
    rows: int,
    tokens: int | None = None,
) -> list[Named]:
    """*run* on every micro-batch, somewhere; what each row got, in the order of *lengths*, on every rank."""
    shares = plan(lengths, ranks.size, rows=rows, tokens=tokens)
    mine = [named for part in shares[ranks.rank] for named in run(part)]
    results = [mine] if ranks.size == 1 else [decode(message) for message in ranks.gather(encode(mine))]
    return in_order(shares, results)


def in_order(shares: Sequence[Sequence[MicroBatch]], results: Iterable[Sequence[Named]]) -> list[Named]:
    """What each row got, in the order of rows, from what the rows of each share got."""
    by_row = {
        row: named
        for share, part in zip(shares, results, strict=True)
        for row, named in zip((row for micro in share for row in micro), part, strict=True)
    }
    return [by_row[row] for row in sorted(by_row)]


def encode(results: Sequence[Named]) -> bytes:
    """*results* as safetensors."""
    return save({f"{at}.{name}": t.contiguous() for at, named in enumerate(results) for name, t in named.items()})


def decode(message: bytes) -> list[Named]:
    """What :func:`encode` was given."""
    results: list[Named] = []
    found = {tuple(key.split(".", 1)): tensor for key, tensor in load(message).items()}
    for at, name in sorted(found, key=lambda key: int(key[0])):
        if int(at) == len(results):
            results.append({})
        results[int(at)][name] = found[at, name]
    return results
