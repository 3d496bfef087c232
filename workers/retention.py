"""Heavy payload columns go before the rest of their rows: at a checkpoint, or when what they were for is measured."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane import DataPlane
from schemas.columns import HEAVY, TRAIN
from schemas.config import RunConfig


def drop_columns(plane: DataPlane, partition: str, ids: Sequence[str], columns: Sequence[str]) -> None:
    """Let *columns* of these rows be missing. They lie in blocks of their own, which go with their last row."""
    if ids and columns:
        plane.replace(partition, ids, {name: [None] * len(ids) for name in columns})


class PayloadRetention:
    """Clears payloads of steps that a checkpoint covers, ``store.payload_retention`` steps later."""

    def __init__(self, plane: DataPlane, config: RunConfig) -> None:
        self.plane = plane
        self.retention = config.store.payload_retention
        self._cleared = 0

    def checkpointed(self, step: int) -> None:
        """A complete checkpoint covers every step up to *step*."""
        if self.retention == "never":
            return
        for old in range(self._cleared + 1, step - self.retention + 1):
            for name in HEAVY & set(self.plane.partitions()[TRAIN].names):
                drop_columns(self.plane, TRAIN, self.plane.rows(TRAIN, have=[name], step=old), [name])
            self._cleared = old
