"""``Follower``: a catalog that only reads, beside a live writer or over what a finished or crashed one left."""

from __future__ import annotations

import time

from dataplane.backends.storage import Storage
from dataplane.blocks.block import BlockReader
from dataplane.catalog.reader import CatalogReader, Clock


class Follower(CatalogReader):
    """Sees what was committed when it last refreshed. Needs no lock and changes nothing."""

    def __init__(self, storage: Storage, blocks: BlockReader, clock: Clock = time.time) -> None:
        super().__init__(storage, blocks, clock)
        self.refresh()

    def refresh(self) -> int:
        """Read what the journal has gained; leases whose time passed count as over, whether or not the writer lives."""
        with self._guard:
            new = super().refresh()
            self._catalog.end_leases(self.clock())
            return new
