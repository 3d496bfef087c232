"""Keeping leases: which claim is renewed when, and when the thread ends."""

from __future__ import annotations

import math
import threading
from queue import Queue

import pyarrow as pa
import pytest

from dataplane import open_plane
from workers.leases import Keeper


class Sleeper:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self.asleep: Queue[float] = Queue()
        self.wake = threading.Semaphore(0)

    def __call__(self, seconds: float) -> None:
        self.asleep.put(seconds)
        assert self.wake.acquire(timeout=10)


@pytest.fixture
def plane():
    with open_plane("memory://", clock=lambda: 0.0) as plane:
        plane.create_partition("p", {"x": pa.int32()})
        plane.declare_task("p", "t", ["x"])
        plane.put("p", ["a", "b"], {"x": [1, 2]})
        yield plane


def renewed(plane) -> list[str]:
    return [e["claim"] for e in plane.events().to_pylist() if e["kind"] == "renewed"]


def test_the_claim_in_hand_is_renewed_every_third_of_its_lease(plane):
    sleeper = Sleeper()
    keeper = Keeper(sleeper)
    first, second = plane.claim("p", "t", limit=1), plane.claim("p", "t", limit=1)
    with keeper.keeping(first, 6.0):
        assert sleeper.asleep.get(timeout=10) == 2.0
        sleeper.wake.release()
        sleeper.asleep.get(timeout=10)
    with keeper.keeping(second, 6.0):  # the same thread goes on
        sleeper.wake.release()
        sleeper.asleep.get(timeout=10)
        assert renewed(plane) == [first.id, second.id]
    sleeper.wake.release()


def test_the_thread_ends_when_a_third_passes_without_a_claim_and_begins_again(plane):
    sleeper = Sleeper()
    keeper = Keeper(sleeper)
    claim = plane.claim("p", "t")
    for _ in range(2):
        with keeper.keeping(claim, 6.0):
            sleeper.asleep.get(timeout=10)
            thread = next(t for t in threading.enumerate() if t.name == "lease" and t.is_alive())
        sleeper.wake.release()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert renewed(plane) == []


def test_a_claim_that_is_over_ends_nothing(plane):
    sleeper = Sleeper()
    claim = plane.claim("p", "t")
    with Keeper(sleeper).keeping(claim, 6.0):
        sleeper.asleep.get(timeout=10)
        claim.release()
        sleeper.wake.release()
        assert sleeper.asleep.get(timeout=10) == 2.0  # refused, and still there
    sleeper.wake.release()


def test_an_endless_lease_needs_no_thread(plane):
    keeper = Keeper(Sleeper())
    with keeper.keeping(plane.claim("p", "t"), math.inf):
        assert not keeper._running
