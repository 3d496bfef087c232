"""Fixtures of the store's contract: every test that asks for ``store`` or ``plane`` runs on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane import DataPlane
from tests.dataplane.stores import BACKENDS, KINDS, FakeClock, Store, pipeline


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    kind, backend = KINDS[request.param]
    store = kind(BACKENDS[backend](tmp_path), clock)
    yield store
    store.end()


@pytest.fixture
def plane(store: Store) -> Iterator[DataPlane]:
    """An open plane with partition ``train`` and its tasks declared, no rows."""
    with store.open() as plane:
        yield pipeline(plane)
