"""``PlaneReader``: the verbs that change nothing, the same on a live plane and on a read-only follower."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import pyarrow as pa

from dataplane.blocks import BlockReader
from dataplane.events import events_table
from dataplane.fetch import Memory, fetch
from dataplane.follower import Follower
from dataplane.host import CatalogHost
from dataplane.journal import frames
from dataplane.reader import Clock, schema_from
from dataplane.remote import RemoteHost
from dataplane.server import HostServer
from dataplane.storage import Storage
from schemas import records
from schemas.batch import Batch
from schemas.columns import TRAIN
from schemas.errors import InputError, StoreError, did_you_mean
from schemas.records import Located

Where = Mapping[str, Any]


class PlaneReader:
    """Reads blocks itself; which block has a value is asked of the host or of a follower's own catalog."""

    def __init__(
        self,
        storage: Storage,
        mode: Literal["w", "r"] = "w",
        clock: Clock = time.time,
        remote: RemoteHost | None = None,
    ) -> None:
        self.storage = storage
        self.url = storage.url
        self.mode = mode
        self._reader = BlockReader(storage)
        self._host: CatalogHost | Follower | RemoteHost
        if remote is not None:
            self._host = remote
        else:
            self._host = (CatalogHost if mode == "w" else Follower)(storage, self._reader, clock)
        self._server: HostServer | None = None
        self._schemas: dict[str, pa.Schema] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the store. Batches already read stay valid; leases end."""
        if not self._closed:
            self._closed = True
            if self._server is not None:
                self._server.close()
            if isinstance(self._host, RemoteHost):
                self._host.close()
            self._reader.close()
            self.storage.close()

    @property
    def address(self) -> str:
        """What :func:`dataplane.connect` takes in another process of this machine; served from the first time it is asked."""
        if isinstance(self._host, RemoteHost):
            return self._host.address
        if not isinstance(self._host, CatalogHost):
            raise StoreError(f"{self.url} is open read-only, and hosts nothing; other processes open it read-only too")
        if self._server is None:
            self._server = HostServer(self._host)
        return self._server.address

    def take_served_seconds(self) -> float:
        """Processor seconds spent on answers to other processes since the last call."""
        return self._server.take_seconds() if self._server is not None else 0.0

    def get(
        self,
        partition: str,
        ids: Sequence[str],
        columns: Sequence[str],
        missing: Literal["raise", "null"] = "raise",
        copy: bool = True,
    ) -> Batch:
        """*columns* of rows in the order asked, repeats allowed.

        Raises MissingRows naming ids and columns, unless *missing* is "null". With *copy* the memory is the
        batch's own; without, it may be a private map of the stored bytes: either way, writing into it changes nothing
        stored.
        """
        if missing not in ("raise", "null"):
            raise InputError(f"missing: expected 'raise' or 'null', got {missing!r}")
        ids = list(ids)
        memory: Memory = "copy" if copy else "private"

        def locate() -> Located:
            return self._host.locate(partition, ids, list(columns), missing)

        return Batch(ids, fetch(self._reader, locate, self.refresh, memory), writable=True)

    def refresh(self) -> int:
        """Follow the writer: read what the journal has gained; the number of new records."""
        return self._host.refresh()

    def rows(
        self,
        partition: str,
        *,
        have: Sequence[str] = (),
        lack: Sequence[str] = (),
        sealed: bool | None = None,
        failed: bool | None = None,
        where: Where | None = None,
        step: int | None = None,
    ) -> list[str]:
        """Ids of rows that meet every condition, in row order."""
        return self._host.rows(partition, list(have), list(lack), sealed, failed, wanted(where), step)

    def progress(self, partition: str) -> records.Progress:
        """Counts of rows, failures by code, and rows by state in each task."""
        return self._host.progress(partition)

    def members(self, step: int, partition: str = TRAIN) -> list[str]:
        """Ids of a sealed step, in order."""
        return self._host.members(step, partition)

    def steps(self) -> list[records.Step]:
        """Sealed steps, with metrics where trained in the latest epoch."""
        return self._host.steps()

    def published(self) -> list[records.Weights]:
        """Weight versions of the latest epoch, oldest first."""
        return self._host.published()

    def checkpoints(self) -> list[records.Checkpoint]:
        """Checkpoints of the latest epoch, oldest first."""
        return self._host.checkpoints()

    @property
    def epoch(self) -> int:
        """How often the run went back to a checkpoint."""
        return self._host.epoch

    def partitions(self) -> dict[str, pa.Schema]:
        """Declared columns by partition."""
        return {name: schema_from(data) for name, data in self._host.partitions().items()}

    def ids(self, partition: str) -> list[str]:
        """Every row's id, in row order."""
        return self._host.ids(partition)

    def table(self, partition: str, columns: Sequence[str]) -> pa.Table:
        """*columns* (``sample_id`` too) of every row, in row order; missing is null. Shared memory: do not write."""
        return fetch(self._reader, lambda: self._host.locate_all(partition, list(columns)), self.refresh, "shared")

    def row_state(self, partition: str) -> pa.Table:
        """A row a row, in row order: error, step, trained, attempt, claimed, missing, complete."""
        return self._host.row_state(partition)

    def events(self, with_ids: bool = False) -> pa.Table:
        """The journal, a row a record; *with_ids* adds the samples each one is about, and those that failed."""
        return events_table((record for _, record in frames(self.storage.journal())), with_ids)

    def sql(self, query: str, parameters: Any = None) -> pa.Table:
        """The result of one read-only query over ``samples``, ``tokens``, ``steps``, ``events`` and ``blocks``."""
        from dataplane.sql import run_sql  # DuckDB is loaded by those who ask

        return run_sql(self, query, parameters)

    def blocks(self) -> pa.Table:
        """Lineage: a row a block."""
        return self._host.blocks()

    def _schema(self, partition: str) -> pa.Schema:
        """The partition's schema; declared once, so kept."""
        if partition not in self._schemas:
            self._schemas.update(self.partitions())
        if partition not in self._schemas:
            known = self._schemas
            raise InputError(
                f"no partition {partition!r}{did_you_mean(partition, known)}; create_partition comes first"
            )
        return self._schemas[partition]


def wanted(where: Where | None) -> dict[str, list[Any]] | None:
    if not where:
        return None
    return {name: list(v) if isinstance(v, (list, tuple, set)) else [v] for name, v in where.items()}
