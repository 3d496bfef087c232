"""Snapshots: the catalog as bytes and back, so that a store opens without folding its whole journal.

    snapshot = magic | format u32 | seq u64 | first seq u64 | length u64 | xxh3 of the payload u64 | payload (msgpack)

``seq`` counts the records folded in; ``first seq`` is that of the journal's first record that is kept. Reading trusts
nothing: what does not check, or does not fit together, is :class:`~schemas.errors.CorruptData`.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from dataplane.backends.storage import BytesLike
from dataplane.catalog.blocktable import BlockTable
from dataplane.catalog.catalog import Catalog
from dataplane.catalog.journal import Place
from dataplane.catalog.leases import Lease, Leases
from dataplane.catalog.partition import Cells, Partition, Task
from dataplane.numbers import Grown, from_runs, to_runs
from schemas.errors import CorruptData, StoreError
from schemas.snapshot import SavedLease, SavedPartition, SavedTask, Snapshot

FORMAT = 1

_HEADER = struct.Struct("<4sIQQQQ")
_MAGIC = b"OPDS"

#: Bytes before the payload.
HEADER_BYTES = _HEADER.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


def pack(catalog: Catalog, place: Place) -> list[BytesLike]:
    """The parts of a snapshot's bytes."""
    payload = _encode(_saved(catalog))
    head = _HEADER.pack(_MAGIC, FORMAT, *place, len(payload), xxhash.xxh3_64_intdigest(payload))
    return [head, payload]


def place_of(data: BytesLike) -> Place:
    """The place of a snapshot, without reading the rest. Raises CorruptData."""
    view = memoryview(data)  # type: ignore[arg-type]  # every backend gives buffers
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise CorruptData("snapshot: not one of this store's; open with the journal alone, or run opd check --repair")
    _, version, seq, first_seq, _, _ = _HEADER.unpack_from(view)
    if version > FORMAT:
        raise StoreError(f"snapshot format {version}: this version reads up to {FORMAT}; upgrade it")
    return Place(seq, first_seq)


def unpack(data: BytesLike) -> tuple[Catalog, Place]:
    """The catalog in *data*. Raises CorruptData, StoreError for a newer format."""
    place = place_of(data)
    view = memoryview(data)  # type: ignore[arg-type]
    *_, length, digest = _HEADER.unpack_from(view)
    payload = view[_HEADER.size :]
    if len(payload) != length or xxhash.xxh3_64_intdigest(payload) != digest:
        raise CorruptData("snapshot: its checksum differs; it was cut or overwritten (opd check --repair)")
    try:
        return _catalog(_decode(payload)), place
    except (msgspec.DecodeError, pa.ArrowException, ValueError, KeyError, IndexError) as error:
        raise CorruptData(f"snapshot: does not fit together ({error})") from None


def _saved(catalog: Catalog) -> Snapshot:
    return Snapshot(
        partitions=[_saved_partition(partition) for partition in catalog.partitions.values()],
        blocks=catalog.blocks.saved(),
        free=catalog.blocks.free(),
        steps=list(catalog.steps.values()),
        members=catalog.members,
        published=catalog.published,
        checkpoints=catalog.checkpoints,
        put_ids=list(catalog.put_ids),
        epoch=catalog.epoch,
        facts=catalog.facts,
        leases=[
            SavedLease(x.claim, x.partition, x.task, to_runs(x.numbers), x.attempt, x.worker, x.deadline)
            for x in catalog.leases.all()
        ],
    )


def _saved_partition(partition: Partition) -> SavedPartition:
    size = partition.size

    def data(array: Grown) -> bytes:
        return array.data[:size].tobytes()

    tasks = [
        SavedTask(t.name, list(t.reads), list(t.writes), *map(data, (t.missing, t.done, t.claimed, t.attempt)))
        for t in partition.tasks.values()
    ]
    return SavedPartition(
        name=partition.name,
        arrow_schema=partition.schema.serialize().to_pybytes(),
        next_number=partition.next_number,
        packed=partition.packed,
        ids=partition.ids,
        numbers=data(partition.numbers),
        live=data(partition.live),
        failed=data(partition.failed),
        step=data(partition.step),
        cells={name: (data(cells.block), data(cells.row)) for name, cells in partition.cells.items()},
        tasks=tasks,
        errors=partition.errors,
        superseded=partition.superseded,
    )


def _catalog(saved: Snapshot) -> Catalog:
    catalog = Catalog()
    catalog.partitions = {one.name: _partition(one, len(saved.blocks)) for one in saved.partitions}
    catalog.blocks = BlockTable.restored(saved.blocks, saved.free)
    catalog.steps = {step.step: step for step in saved.steps}
    catalog.members = saved.members
    catalog.published, catalog.checkpoints, catalog.epoch = saved.published, saved.checkpoints, saved.epoch
    catalog.put_ids.update(dict.fromkeys(saved.put_ids))
    catalog.leases = _leases(saved.leases)
    catalog.facts = saved.facts
    return catalog


def _leases(saved: list[SavedLease]) -> Leases:
    leases = Leases()
    for one in saved:
        numbers = from_runs(one.runs)
        leases.grant(Lease(one.claim, one.partition, one.task, numbers, one.attempt, one.worker, one.deadline))
    return leases


def _partition(saved: SavedPartition, blocks: int) -> Partition:
    partition = Partition(saved.name, pa.ipc.read_schema(pa.py_buffer(saved.arrow_schema)))
    size = partition.size = len(saved.ids)
    partition.next_number, partition.packed, partition.ids = saved.next_number, saved.packed, saved.ids
    partition.errors, partition.superseded = saved.errors, saved.superseded
    partition.numbers = _grown(np.int64, 0, saved.numbers, size)
    partition.live = _grown(np.bool_, True, saved.live, size)
    partition.failed = _grown(np.bool_, False, saved.failed, size)
    partition.step = _grown(np.int32, 0, saved.step, size)
    for name, (block, row) in saved.cells.items():
        cells = partition.cells[name] = Cells(0)
        cells.block, cells.row = _grown(np.int32, -1, block, size), _grown(np.int32, 0, row, size)
        if size and int(cells.block.data.max()) >= blocks:
            raise ValueError(f"column {name!r} names a block that is not there")
    for one in saved.tasks:
        task = partition.tasks[one.name] = Task(one.name, one.reads, one.writes, 0)
        task.missing = _grown(np.int16, len(one.reads), one.missing, size)
        task.done = _grown(np.bool_, False, one.done, size)
        task.claimed = _grown(np.bool_, False, one.claimed, size)
        task.attempt = _grown(np.int32, 0, one.attempt, size)
    partition.index = _index(partition)
    return partition


def _index(partition: Partition) -> dict[str, int]:
    numbers = partition.numbers.data[: partition.size].tolist()
    index = dict(zip(partition.ids, numbers, strict=True))
    index.pop("", None)  # rows that are gone
    return index


def _grown(dtype: Any, fill: int | bool, data: bytes, size: int) -> Grown:
    array = Grown(dtype, fill, 0)
    array.data = np.frombuffer(data, dtype=dtype).copy()
    if len(array.data) != size:
        raise ValueError(f"expected {size} entries, got {len(array.data)}")
    return array


