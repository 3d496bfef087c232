"""Which nodes of a cluster the ranks of each role go to. Pure: the cluster is a list of nodes with what is free.

Roles that say how many nodes they span are placed first, the largest before the others, each inside one NVLink
segment if it asks for that; if there is a way to place all of them, it is found. The ranks of all other roles fill
up what is left, a role on as few nodes as it can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.errors import ResourceInsufficientError


@dataclass(frozen=True)
class Node:
    """A node with what is free on it; *segment* names the NVLink segment that it is part of, if it says so."""

    name: str
    cpus: float
    gpus: float = 0.0
    segment: str | None = None


@dataclass(frozen=True)
class Bundles:
    """What a role's *ranks* ask for, each *cpus* and *gpus*.

    With *num_nodes* they are shared out evenly over just so many nodes, else they may be anywhere. *segment_size*
    keeps them inside one NVLink segment, of so many nodes at most.
    """

    ranks: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    num_nodes: int | None = None
    segment_size: int | None = None

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // (self.num_nodes or self.ranks)

    def __str__(self) -> str:
        count = self.ranks_per_node if self.num_nodes else 1
        what = f"{count * self.gpus:g} GPUs and {count * self.cpus:g} CPUs"
        if self.num_nodes is None:
            return f"{self.ranks} × {what}"
        inside = " in one NVLink segment" if self.segment_size else ""
        return f"{self.num_nodes} node{'s' * (self.num_nodes > 1)} with {what} each{inside}"


class _Free(NamedTuple):
    """What is left of a node."""

    gpus: float
    cpus: float

    def holds(self, asked: Bundles) -> int:
        """How many of the ranks fit here."""
        each = ((self.gpus, asked.gpus), (self.cpus, asked.cpus))
        return int(min((free // one for free, one in each if one), default=asked.ranks))

    def without(self, asked: Bundles, ranks: int) -> _Free:
        return _Free(self.gpus - ranks * asked.gpus, self.cpus - ranks * asked.cpus)


#: For each rank of each role the index of its node.
_Placed = dict[str, list[int]]


def place(nodes: Sequence[Node], wanted: Mapping[str, Bundles]) -> dict[str, list[str]]:
    """The node of every rank, by role. Raises ResourceInsufficientError saying what is missing."""
    order = sorted(wanted, key=lambda name: _weight(wanted[name]))
    free = tuple(_Free(node.gpus, node.cpus) for node in nodes)
    found = _search([(name, wanted[name]) for name in order], free, [node.segment for node in nodes], set())
    if found is None:
        raise ResourceInsufficientError(_missing(nodes, wanted))
    return {name: [nodes[index].name for index in found[name]] for name in wanted}


def _weight(asked: Bundles) -> tuple[bool, float, float]:
    """Sorts what is hardest to place to the front."""
    per_node = asked.ranks_per_node * asked.gpus
    return asked.num_nodes is None, -per_node * (asked.num_nodes or 1), -asked.ranks * asked.gpus


def _search(
    todo: Sequence[tuple[str, Bundles]],
    free: tuple[_Free, ...],
    segments: Sequence[str | None],
    dead: set[tuple[int, tuple[tuple[str, _Free], ...]]],
) -> _Placed | None:
    """Places for all of *todo*, or None; *dead* holds what is known to lead nowhere."""
    if not todo:
        return {}
    state = (len(todo), tuple(sorted((segment or "", left) for segment, left in zip(segments, free, strict=True))))
    if state in dead:
        return None
    name, asked = todo[0]
    for choice in _choices(asked, free, segments):
        left = list(free)
        for index in choice:
            left[index] = left[index].without(asked, 1)
        rest = _search(todo[1:], tuple(left), segments, dead)
        if rest is not None:
            return {name: choice, **rest}
    dead.add(state)
    return None


def _choices(asked: Bundles, free: Sequence[_Free], segments: Sequence[str | None]) -> Iterator[list[int]]:
    """Every different way to place one role, the tightest first."""
    if asked.num_nodes is None:
        yield from _anywhere(asked, free)
        return
    fitting = [index for index, left in enumerate(free) if left.holds(asked) >= asked.ranks_per_node]
    among = [fitting]
    if asked.segment_size is not None:
        names = dict.fromkeys(segment for segment in segments if segment is not None)
        among = sorted(([i for i in fitting if segments[i] == name] for name in names), key=len)
    for indexes in among:
        alike: dict[tuple[_Free, str | None], list[int]] = {}
        for index in sorted(indexes, key=lambda i: free[i]):
            alike.setdefault((free[index], segments[index]), []).append(index)
        for picked in _picks(list(alike.values()), asked.num_nodes):
            yield [index for index in sorted(picked) for _ in range(asked.ranks_per_node)]


def _picks(classes: Sequence[list[int]], count: int) -> Iterator[list[int]]:
    """*count* indexes, members of one class being as good as each other."""
    if count == 0:
        yield []
    elif classes:
        first, rest = classes[0], classes[1:]
        for taken in range(min(count, len(first)), -1, -1):
            for others in _picks(rest, count - taken):
                yield first[:taken] + others


def _anywhere(asked: Bundles, free: Sequence[_Free]) -> Iterator[list[int]]:
    """All ranks on the fullest node that has room, else on the emptiest nodes."""
    left, chosen = {index: node.holds(asked) for index, node in enumerate(free)}, list[int]()
    while len(chosen) < asked.ranks:
        missing = asked.ranks - len(chosen)
        enough = [index for index, room in left.items() if room >= missing]
        index = min(enough, key=lambda i: left[i]) if enough else max(left, key=lambda i: left[i], default=-1)
        if left.get(index, 0) == 0:
            return
        ranks = min(left.pop(index), missing)
        chosen += [index] * ranks
    yield chosen


def _missing(nodes: Sequence[Node], wanted: Mapping[str, Bundles]) -> str:
    """Why it cannot be: too few in all, one role that fits nowhere, or all of them together."""
    asked = ", ".join(f"{name} {bundles}" for name, bundles in wanted.items())
    for what, key in (("GPUs", "gpus"), ("CPUs", "cpus")):
        need = sum(bundles.ranks * getattr(bundles, key) for bundles in wanted.values())
        there = sum(getattr(node, key) for node in nodes)
        if need > there:
            return f"cluster: {need:g} {what} are asked for, {there:g} are free: {need - there:g} are missing ({asked})"
    for name, bundles in wanted.items():
        try:
            if len(wanted) > 1:
                place(nodes, {name: bundles})
        except ResourceInsufficientError:
            return f"cluster: {name} asks for {bundles}; {_there(nodes, bundles)}"
    if len(wanted) == 1:
        return f"cluster: {asked.replace(' ', ' asks for ', 1)}; {_there(nodes, next(iter(wanted.values())))}"
    free = ", ".join(f"{node.name} {node.gpus:g} GPUs {node.cpus:g} CPUs" for node in nodes)
    return f"cluster: each of these fits, but not all of them together: {asked}; free: {free}"


def _there(nodes: Sequence[Node], asked: Bundles) -> str:
    """How many nodes could take a share of *asked*."""
    fit = [node for node in nodes if _Free(node.gpus, node.cpus).holds(asked) >= asked.ranks_per_node]
    if asked.segment_size is None:
        return f"{len(fit)} of {len(nodes)} nodes have that much free"
    segments = dict.fromkeys(node.segment for node in nodes if node.segment is not None)
    if not segments:
        return "no node says which segment it is part of; start Ray with --labels nvlink-segment=NAME"
    counts = (f"{name} {sum(node.segment == name for node in fit)}" for name in segments)
    return f"nodes with that much free, by segment: {', '.join(counts)}"
