"""The catalog is the journal's fold, and what the host keeps beside it agrees with it, whatever happened."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane import DataPlane, open_plane
from dataplane.backends.memory import MemoryStorage
from dataplane.catalog.catalog import Catalog
from dataplane.catalog.journal import Journal
from dataplane.numbers import ReadySet, from_runs, run_length, to_runs
from schemas.errors import InputError, LeaseLost
from tests.dataplane.state import catalog_of, durable
from tests.dataplane.stores import FakeClock, pipeline

NAMES = [f"s{i}" for i in range(7)]
IDS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
TASKS = st.sampled_from(["generate", "teacher", "train"])
WHERE = st.sampled_from([None, {"teacher": "math"}, {"teacher": ["math", "code"], "group_id": "g"}])

WRITES = {"generate": ["input_ids", "generation_logprobs"], "teacher": ["teacher_logprobs"], "train": []}

ACTIONS = st.one_of(
    st.tuples(st.just("admit"), IDS, st.sampled_from(["math", "code"]), st.sampled_from(["g", "h"])),
    st.tuples(st.just("replace"), IDS, st.sampled_from(["input_ids", "teacher"])),
    st.tuples(st.just("claim"), TASKS, st.integers(1, 5), WHERE, st.booleans()),
    st.tuples(st.just("commit"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("sleep"), st.integers(1, 40)),
    st.tuples(st.just("clear"), IDS),
    st.tuples(st.just("fail"), IDS),
    st.tuples(st.just("requeue"), IDS, st.sets(TASKS, min_size=1)),
    st.tuples(st.just("seal"), st.integers(1, 3), IDS),
    st.tuples(st.just("trained"), st.integers(1, 3)),
    st.tuples(st.just("checkpoint"), st.integers(1, 3)),
    st.tuples(st.just("epoch"), st.integers(0, 2)),
)


class Driver:
    """Does what an action says; the store may refuse it."""

    def __init__(self, plane: DataPlane, clock: FakeClock) -> None:
        self.plane, self.clock, self.claims = plane, clock, []  # type: ignore[var-annotated]

    def __call__(self, name: str, *args: Any) -> None:
        with suppress(InputError, LeaseLost, IndexError):
            getattr(self, name)(*args)

    def admit(self, ids: list[str], teacher: str, group: str) -> None:
        self.plane.put("train", ids, {"prompt": ids, "teacher": [teacher] * len(ids), "group_id": [group] * len(ids)})

    def replace(self, ids: list[str], column: str) -> None:
        values = {"input_ids": [[1, 2]] * len(ids), "teacher": ["code"] * len(ids)}
        self.plane.replace("train", ids, {column: values[column]})

    def claim(self, task: str, limit: int, where: dict[str, Any] | None, by_group: bool) -> None:
        claim = self.plane.claim("train", task, limit, lease_s=30, where=where, by_group=by_group)
        self.claims += [claim] if claim else []

    def commit(self, at: int, failed: int) -> None:
        claim = self.claims[at]
        ids = claim.sample_ids[failed:]
        errors = dict.fromkeys(claim.sample_ids[:failed], "stale: x")
        claim.commit({name: [[1]] * len(ids) for name in WRITES[claim.task]}, ids, errors)

    def release(self, at: int) -> None:
        self.claims.pop(at).release()

    def sleep(self, seconds: int) -> None:
        self.clock.sleep(seconds)

    def clear(self, ids: list[str]) -> None:
        self.plane.clear("train", ids)

    def fail(self, ids: list[str]) -> None:
        self.plane.fail("train", dict.fromkeys(ids, "lost: gone"))

    def requeue(self, ids: list[str], tasks: set[str]) -> None:
        self.plane.requeue("train", ids, sorted(tasks))

    def seal(self, step: int, ids: list[str]) -> None:
        self.plane.seal(step, ids)

    def trained(self, step: int) -> None:
        self.plane.record_trained(step, {"loss": 0.5})

    def checkpoint(self, step: int) -> None:
        self.plane.record_checkpoint(step, "c")

    def epoch(self, after: int) -> None:
        self.plane.new_epoch(after)


def fold(storage: MemoryStorage) -> Catalog:
    catalog = Catalog()
    for record in Journal(storage).read():
        catalog.apply(record)
    return catalog


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_folding_the_journal_again_gives_the_same_catalog(actions: list[tuple[Any, ...]]) -> None:
    storage, clock = MemoryStorage(), FakeClock()
    with open_plane(storage, clock=clock) as plane:
        driver = Driver(pipeline(plane), clock)
        for action in actions:
            driver(*action)
        live = durable(catalog_of(plane))
        assert durable(fold(storage)) == live == durable(fold(storage))
        assert set(storage.blocks()) == {block for block, *_ in live["blocks"]}


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, max_size=40), WHERE)
def test_claims_find_exactly_the_rows_that_are_ready(
    actions: list[tuple[Any, ...]], where: dict[str, Any] | None
) -> None:
    clock = FakeClock()
    with open_plane(MemoryStorage(), clock=clock) as plane:
        driver = Driver(pipeline(plane), clock)
        for action in actions:
            driver(*action)
        clock.sleep(100)
        for task, reads in {"generate": ["prompt"], "teacher": ["input_ids"]}.items():
            tasks = durable(catalog_of(plane))["partitions"]["train"]["tasks"]
            done = {i for i, over in zip(plane.ids("train"), tasks[task][1], strict=True) if over}
            ready = [i for i in plane.rows("train", have=reads, failed=False, where=where) if i not in done]
            claim = plane.claim("train", task, where=where)
            assert (claim.sample_ids if claim else []) == ready


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_claims_by_group_take_exactly_the_groups_that_are_whole(actions: list[tuple[Any, ...]]) -> None:
    clock = FakeClock()
    with open_plane(MemoryStorage(), clock=clock) as plane:
        driver = Driver(pipeline(plane), clock)
        for action in actions:
            driver(*action)
        clock.sleep(100)
        over = durable(catalog_of(plane))["partitions"]["train"]["tasks"]["teacher"][1]
        done = {i for i, flag in zip(plane.ids("train"), over, strict=True) if flag}
        whole: list[str] = []
        for group in ("g", "h"):
            left = [i for i in plane.rows("train", failed=False, where={"group_id": group}) if i not in done]
            whole += left if set(left) <= set(plane.rows("train", have=["input_ids"])) else []
        claim = plane.claim("train", "teacher", by_group=True)
        assert sorted(claim.sample_ids if claim else []) == sorted(whole)


@given(st.lists(st.integers(0, 40), unique=True))
def test_runs_hold_any_order(numbers: list[int]) -> None:
    runs = to_runs(np.array(numbers, dtype=np.int64))
    assert from_runs(runs).tolist() == numbers
    assert run_length(runs) == len(numbers)


def test_neighbouring_rows_are_one_run() -> None:
    assert to_runs(np.array([4, 5, 6, 2, 3, 9])) == [4, 3, 2, 2, 9, 1]


@given(st.sets(st.integers(0, 5000)), st.sets(st.integers(0, 5000)), st.integers(1, 40))
def test_a_ready_set_gives_its_smallest_members(first: set[int], second: set[int], limit: int) -> None:
    ready = ReadySet(np.zeros(3, np.bool_))
    for members, wanted in ((first, True), (second, False)):
        ready.set(np.array(sorted(members), dtype=np.int64), np.full(len(members), wanted))
    left = sorted(first - second)
    assert ready.first(limit).tolist() == left[:limit]
    assert ready.first(None).tolist() == left
    assert len(ready) == len(left)
    asked = np.array([-1, 0, 7, 5000, 1 << 20])  # and for some that it never heard of
    assert ready.has(asked).tolist() == [position in left for position in asked.tolist()]
