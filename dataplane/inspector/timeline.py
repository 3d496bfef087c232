"""Who did what when: the claims of every worker as spans on its lane, and the marks between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

#: Events that end a claim, and what became of it.
ENDS = {"committed": "done", "released": "released"}

#: Events shown as marks across all lanes.
MARKS = ("step_sealed", "step_trained", "published", "checkpointed", "epoch_opened", "validated", "run_started")

#: Spans sent at once; closer ones on a lane are drawn as one.
MOST_SPANS = 4000


class EventsReader(Protocol):
    """What has a journal."""

    def events(self) -> pa.Table: ...


@dataclass
class Span:
    """Work on some rows: seconds since the epoch; ``end`` is None while it goes on."""

    lane: str
    task: str
    start: float
    end: float | None
    rows: int
    outcome: str = "running"
    count: int = 1


def timeline(reader: EventsReader, start: float | None = None, end: float | None = None) -> dict[str, Any]:
    """Lanes with their spans and how busy they were, and marks, between *start* and *end* (seconds since the epoch).

    ``busy`` is the share of the window in which the lane had a claim: the rest is waiting.
    """
    table = reader.events().select(["time", "kind", "partition", "task", "claim", "worker", "step", "version", "rows"])
    events = table.set_column(0, "time", table["time"].cast(pa.int64())).to_pylist()
    times = [event["time"] / 1e6 for event in events]
    first, last = min(times, default=0.0), max(times, default=0.0)
    low = first if start is None else max(start, first)
    high = last if end is None else min(end, last)
    spans = [span for span in _spans(events) if span.start <= high and (span.end is None or span.end >= low)]
    lanes = [_lane(name, [s for s in spans if s.lane == name], low, high) for name in _lanes(spans)]
    marks = [_mark(e) for e in events if e["kind"] in MARKS and low <= e["time"] / 1e6 <= high]
    return {"first": first, "last": last, "start": low, "end": high, "lanes": lanes, "marks": marks}


def _spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    open_claims: dict[str, Span] = {}
    spans, before = [], 0.0
    for event in events:
        at, claim = event["time"] / 1e6, event["claim"]
        if event["kind"] == "claimed":
            lane = event["worker"] or event["task"] or "?"
            span = Span(lane, f"{event['task']}", at, None, event["rows"] or 0)
            open_claims[claim] = span
            spans.append(span)
        elif claim in open_claims and event["kind"] in ENDS:  # some of the rows, or the last of them
            open_claims[claim].end, open_claims[claim].outcome = at, ENDS[event["kind"]]
        elif event["kind"] == "opened":  # a new writer: what the one before had given out is void since its last word
            for span in open_claims.values():
                if span.end is None:
                    span.end, span.outcome = before, "lost"
            open_claims.clear()
        before = at
    return spans


def _lanes(spans: Sequence[Span]) -> list[str]:
    """In the order in which samples meet them."""
    order = {"generator": 0, "teacher": 1, "trainer": 2}
    return sorted({span.lane for span in spans}, key=lambda lane: (order.get(lane.partition(":")[0], 3), lane))


def _lane(name: str, spans: Sequence[Span], low: float, high: float) -> dict[str, Any]:
    window = max(high - low, 1e-9)
    covered = _covered([(max(s.start, low), min(s.end if s.end is not None else high, high)) for s in spans])
    drawn = _thinned(spans, window / MOST_SPANS, high)
    return {
        "name": name,
        "busy": covered / window,
        "busy_s": covered,
        "claims": len(spans),
        "rows": sum(span.rows for span in spans),
        "spans": [[s.task, s.start, s.end, s.rows, s.outcome, s.count] for s in drawn],
    }


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _thinned(spans: Sequence[Span], closer_s: float, high: float) -> list[Span]:
    """Neighbours of one task that are closer than a pixel become one span, when there are too many to draw."""
    if len(spans) <= MOST_SPANS // 4:
        return list(spans)
    drawn: list[Span] = []
    for span in spans:
        last = drawn[-1] if drawn else None
        near = last is not None and last.task == span.task and last.outcome == span.outcome and last.end is not None
        if near and last is not None and last.end is not None and span.start - last.end < closer_s:
            end = None if span.end is None else max(last.end, span.end)
            drawn[-1] = Span(last.lane, last.task, last.start, end, last.rows + span.rows, last.outcome, last.count + 1)
        else:
            drawn.append(span)
    return drawn


def _mark(event: dict[str, Any]) -> dict[str, Any]:
    number = event["step"] if event["step"] is not None else event["version"]
    return {"time": event["time"] / 1e6, "kind": event["kind"], "number": number}
