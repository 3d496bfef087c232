"""The worker loop: what it commits, and what becomes of rows that go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from dataplane import DataPlane, open_plane
from schemas.batch import Batch
from schemas.errors import LeaseLost
from stages.base import Output
from workers.loop import Worker

INT, TOKENS = pa.int32(), pa.large_list(pa.float32())


@dataclass
class Double:
    """Writes twice what it reads; ``before`` is called first."""

    before: object = lambda batch: None
    task: str = "double"
    reads: tuple[str, ...] = ("x",)
    writes: tuple[str, ...] = ("y",)
    seen: list[list[str]] = field(default_factory=list)

    def __call__(self, batch: Batch) -> Output:
        self.seen.append(batch.sample_ids)
        self.before(batch)
        return Output(batch.sample_ids, {"y": [2 * x for x in batch.values("x")]})


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def plane(now):
    with open_plane("memory://", clock=lambda: now[0]) as plane:
        plane.create_partition("p", {"x": INT, "y": INT})
        plane.declare_task("p", "double", ["x"], ["y"])
        plane.put("p", ["a", "b", "c"], {"x": [1, 2, 3]})
        yield plane


def worker(plane: DataPlane, stage: Double, **options) -> Worker:
    return Worker(plane, "p", stage, **options)


def test_rows_are_claimed_run_and_committed(plane):
    assert worker(plane, Double(), limit=2).run_once().sample_ids == ["a", "b"]
    assert plane.get("p", ["b", "a"], ["y"]).values("y") == [4, 2]
    assert plane.progress("p").tasks["double"].ready == 1


def test_seconds_in_the_store_are_neither_the_stages_nor_those_of_making_ready(plane, monkeypatch):
    spent = [0.0]
    monkeypatch.setattr("workers.loop.time.thread_time", lambda: spent[0])

    def spend(_: object = None) -> None:
        spent[0] += 100.0

    def slow(*arguments: object, **options: object):
        spent[0] += 3.0
        return claim(*arguments, **options)

    claim = plane.claim
    monkeypatch.setattr(plane, "claim", slow)
    busy = worker(plane, Double(before=spend), prepare=spend)
    busy.run_once()
    assert (busy.plane_s, spent[0]) == (3.0, 203.0)


def test_nothing_ready_is_no_turn(plane):
    assert worker(plane, Double()).run_once() is not None
    assert worker(plane, Double()).run_once() is None


def test_what_a_stage_raises_is_recorded_on_its_rows(plane):
    def fail(batch):
        raise ZeroDivisionError("no")

    assert worker(plane, Double(before=fail)).run_once().failed["b"] == "stage_error: ZeroDivisionError: no"
    assert plane.rows("p", failed=True) == ["a", "b", "c"]


def test_an_error_ends_the_job_where_rows_may_not_fail_and_the_rows_go_back(plane):
    def fail(batch):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        worker(plane, Double(before=fail), rows_may_fail=False).run_once()
    assert plane.progress("p").tasks["double"].ready == 3


def test_a_lease_that_ended_meanwhile_throws_the_work_away(plane, now):
    def outlast(batch):
        now[0] += 10

    late = worker(plane, Double(before=outlast), lease_s=5.0)
    late.lease_s, late.plane = 5.0, plane
    assert late.run_once().sample_ids == []
    assert plane.rows("p", have=["y"]) == []
    with pytest.raises(LeaseLost):
        worker(plane, Double(before=outlast), lease_s=5.0, rows_may_fail=False).run_once()


def test_rows_claimed_again_are_run_a_few_at_a_time_then_alone(plane, now):
    for expected in ([["a", "b", "c"]], [["a"], ["b"], ["c"]]):
        plane.claim("p", "double", lease_s=1.0)
        now[0] += 2
        stage = Double(before=lambda batch: None)
        if expected[0] == ["a", "b", "c"]:
            claimed = worker(plane, stage, isolate=True)
            claimed.run_once()
            plane.requeue("p", ["a", "b", "c"], ["double"])
        else:
            worker(plane, stage, isolate=True).run_once()
        assert stage.seen == expected
