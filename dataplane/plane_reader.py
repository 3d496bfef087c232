"""``PlaneReader``: the verbs that change nothing, the same on a live plane and on a read-only follower."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self

import pyarrow as pa

from dataplane.backends.storage import BlockGone, Storage, Trimmed
from dataplane.blocks.block import BlockReader
from dataplane.blocks.fetch import Memory, fetch
from dataplane.catalog.events import About, events_table
from dataplane.catalog.follower import Follower
from dataplane.catalog.host import CatalogHost
from dataplane.catalog.journal import frames
from dataplane.catalog.reader import Clock, schema_from
from dataplane.catalog.snapshot import place_of
from dataplane.serving.remote import RemoteHost
from dataplane.serving.server import HostServer
from dataplane.upkeep.copying import copy_store
from schemas import messages
from schemas.batch import Batch
from schemas.columns import SAMPLE_ID, TRAIN
from schemas.errors import CorruptData, InputError, StoreError, did_you_mean
from schemas.messages import Located

Where = Mapping[str, Any]

_SAMPLE_ID = pa.field(SAMPLE_ID, pa.string())

#: Blocks that a guest keeps open: it hears of none that is deleted, and a map holds a deleted file's bytes.
GUEST_OPEN = 32


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
        self._reader = BlockReader(storage) if remote is None else BlockReader(storage, GUEST_OPEN)
        self._host: CatalogHost | Follower | RemoteHost
        if remote is not None:
            self._host = remote
        else:
            self._host = (CatalogHost if mode == "w" else Follower)(storage, self._reader, clock)
        self._server: HostServer | None = None
        self._schemas: dict[str, pa.Schema] = {}
        self._asked: dict[tuple[str, tuple[str, ...]], pa.Schema] = {}
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
            if isinstance(self._host, (RemoteHost, CatalogHost)):
                self._host.close()
            self._reader.close()
            self.storage.close()

    @property
    def address(self) -> str:
        """What :func:`dataplane.connect` takes in another process of this machine; served once it is asked for."""
        if isinstance(self._host, RemoteHost):
            return self._host.address
        return self._server.address if self._server is not None else self.serve()

    def serve(self, tcp: str | None = None) -> str:
        """Serve other processes: through a unix socket, or at network interface *tcp* for other machines.

        Gives the address for :func:`dataplane.connect`; with *tcp* it holds a token: who knows it may use the plane.
        Raises StoreError for a plane that hosts nothing.
        """
        if not isinstance(self._host, CatalogHost):
            raise StoreError(f"{self.url} is not hosted here, and only its host can serve it")
        server = HostServer(self._host, tcp)
        if self._server is not None:
            self._server.close()
        self._server = server
        return server.address

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

        Raises MissingRows naming ids and columns, unless *missing* is "null"; StoreError for a block that is lost or
        CorruptData for one that is damaged, whose rows are given up. With *copy* the memory is the
        batch's own; without, it may be a private map of large blocks: either way, writing into it changes nothing
        stored.
        """
        try:
            return self._get(partition, list(ids), list(columns), missing, copy)
        except BlockGone as error:
            self._give_up(error, error.block, "lost")
            raise
        except CorruptData as error:
            self._give_up(error, error.block, "corrupt")
            raise

    def _get(
        self, partition: str, ids: list[str], columns: list[str], missing: Literal["raise", "null"], copy: bool
    ) -> Batch:
        if missing not in ("raise", "null"):
            raise InputError(f"missing: expected 'raise' or 'null', got {missing!r}")
        located = self._host.locate(partition, ids, columns, missing)
        return self._read(partition, ids, columns, located, "copy" if copy else "private", missing)

    def _read(
        self,
        partition: str,
        ids: list[str],
        columns: list[str],
        located: Located,
        memory: Memory,
        missing: Literal["raise", "null"] = "raise",
    ) -> Batch:
        """*columns* of rows that were *located*, maybe a while ago."""

        def again() -> Located:
            self.refresh()
            return self._host.locate(partition, ids, columns, missing)

        table = fetch(self._reader, self._fields(partition, columns), located, again, memory)
        return Batch(ids, table, writable=True)

    def _give_up(self, error: StoreError, block: str, code: str) -> None:
        """Fail the rows that need *block*, if this plane may: nobody should wait for them or train on them."""
        if block and not isinstance(self._host, Follower):
            rows = self._host.lose(block, f"{code}: {error}")
            error.add_note(f"{rows} rows that need it are given up")

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

    def progress(self, partition: str) -> messages.Progress:
        """Counts of rows, failures by code, and rows by state in each task."""
        return self._host.progress(partition)

    def buffered(self, partition: str) -> messages.Buffered:
        """Rows that belong to no step yet and have not failed, and their share of the blocks' bytes."""
        return self._host.buffered(partition)

    def members(self, step: int, partition: str = TRAIN) -> list[str]:
        """Ids of a sealed step, in order."""
        return self._host.members(step, partition)

    def steps(self) -> list[messages.Step]:
        """Sealed steps, with metrics where trained in the latest epoch."""
        return self._host.steps()

    def published(self, last: int = 0) -> list[messages.Weights]:
        """Weight versions of the latest epoch, oldest first: the *last* ones, or all."""
        return self._host.published(last)

    def checkpoints(self) -> list[messages.Checkpoint]:
        """Checkpoints of the latest epoch, oldest first."""
        return self._host.checkpoints()

    def facts(self) -> dict[str, str]:
        """What ``record_fact`` recorded, by name: the latest value of each."""
        return self._host.facts()

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
        located = self._host.locate_all(partition, list(columns))

        def again() -> Located:
            self.refresh()
            return self._host.locate_all(partition, list(columns))

        return fetch(self._reader, self._fields(partition, columns), located, again, "shared")

    def row_state(self, partition: str, columns: Sequence[str] = ()) -> pa.Table:
        """A row a row, in row order: sample_id, error, step, trained, attempt, claimed, missing, complete, or some."""
        return self._host.row_state(partition, list(columns))

    def events(self, with_ids: bool = False, about: tuple[str, str] | None = None) -> pa.Table:
        """The journal as far as it is kept, a row a record; *with_ids* adds the samples it is about and that failed.

        *about* a (partition, sample id): only the records that name it.
        """
        while True:
            saved = self.storage.saved()
            start = self.storage.start()
            first_seq = place_of(saved[1]).first_seq if start and saved is not None else 0
            with suppress(Trimmed):  # between the two: look again
                data = self.storage.journal(start)
                journal = (record for _, record in frames(data, start))
                return events_table(journal, with_ids, first_seq, About(*about) if about is not None else None)

    def is_cut(self) -> bool:
        """Whether the journal ends before the place where its writer closed it: records are missing."""
        writer = self.storage.writer()
        return not writer.alive and writer.closed_at is not None and self._host.read_until() < writer.closed_at

    def save(self, url: str | os.PathLike[str]) -> int:
        """Copy the store as it is now to an empty place (a directory or a redis:// URL); the number of blocks."""
        from dataplane.opening import storage_at

        return copy_store(self.storage, storage_at(url))

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

    def _fields(self, partition: str, columns: Sequence[str]) -> pa.Schema:
        """The fields of *columns*, which the partition has; the same ones are asked for again and again."""
        asked = partition, tuple(columns)
        if asked not in self._asked:
            schema = self._schema(partition)
            fields = [_SAMPLE_ID if name == SAMPLE_ID else schema.field(name) for name in columns]
            self._asked[asked] = pa.schema(fields)
        return self._asked[asked]


def wanted(where: Where | None) -> dict[str, list[Any]] | None:
    if not where:
        return None
    return {name: list(v) if isinstance(v, (list, tuple, set)) else [v] for name, v in where.items()}
