"""Keeping a lease while its rows are worked on."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dataplane import Claim
from schemas.errors import StoreError


@contextmanager
def renewing(claim: Claim, lease_s: float) -> Iterator[None]:
    """Renew *claim* every third of its lease from a thread of its own; an endless lease needs none.

    When it cannot be renewed any more the commit will say so.
    """
    if math.isinf(lease_s):
        yield
        return
    done = threading.Event()

    def renew() -> None:
        while not done.wait(lease_s / 3):
            try:
                claim.renew()
            except StoreError:
                return

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
