"""Keeping a lease while its rows are worked on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dataplane import Claim
from schemas.errors import StoreError


class Keeper:
    """Renews the claim in hand every third of its lease, from one thread that ends when a third passed without one.

    An endless lease needs none. When a claim cannot be renewed any more its commit will say so.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._guard = threading.Lock()
        self._held: Claim | None = None
        self._running = False

    @contextmanager
    def keeping(self, claim: Claim, lease_s: float) -> Iterator[None]:
        """Hold *claim* meanwhile."""
        if math.isinf(lease_s):
            yield
            return
        with self._guard:
            self._held = claim
            if not self._running:
                self._running = True
                threading.Thread(target=self._renew, args=(lease_s / 3,), name="lease", daemon=True).start()
        try:
            yield
        finally:
            self._held = None

    def _renew(self, every_s: float) -> None:
        while True:
            self._sleep(every_s)
            with self._guard:
                claim = self._held
                if claim is None:
                    self._running = False
                    return
            with suppress(StoreError):
                claim.renew()
