"""Blocks: from columns to the bytes of an Arrow IPC file, and back under suspicion.

A block is one record batch with the columns of one ``put`` and, last, ``sample_id``. Writing copies nothing large:
the parts handed to the backend are the arrays' own buffers. Reading trusts nothing: length, schema and row count must
be what the journal says, and the first time a process reads a column of a block it checks the column's checksum
and runs Arrow's full validation over it, so that a damaged or hostile file is an error and not a crash.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from dataplane.backends.storage import BytesLike, Storage
from dataplane.blocks.canonical import canonical, checksum
from dataplane.blocks.messages import read_batch
from schemas.columns import SAMPLE_ID
from schemas.errors import CorruptData, StoreError
from schemas.records import Block

#: Parsed blocks kept for the next read; each holds one memory map (the kernel allows 65,530 a process).
MAX_OPEN = 2048

#: Bytes kept of open blocks that are no maps but copies in memory.
MAX_OPEN_BYTES = 256 << 20

#: What a file says in its schema's metadata, for whoever finds it without a record.
PARTITION = "partition"

#: The values of a smaller block are copied on their way to the file: one piece costs less than many.
_COPY_BELOW = 64 << 10

_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)


def lay_out(schema: pa.Schema, columns: Mapping[str, pa.Array], ids: Sequence[str]) -> tuple[Block, list[BytesLike]]:
    """A block of *columns*, a value per id, and the parts of its file. *schema* is theirs, with ``sample_id`` last."""
    arrays = [*map(canonical, columns.values()), pa.array(ids, pa.string())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    parts = _together(batch) if batch.get_total_buffer_size() < _COPY_BELOW else _apart(batch)
    block = Block(
        id=_new_id(),
        size_bytes=sum(map(len, parts)),  # type: ignore[arg-type]  # bytes or pyarrow.Buffer
        rows=len(ids),
        columns=(*columns, SAMPLE_ID),
        checksums=tuple(map(checksum, arrays)),
    )
    return block, parts


def _together(batch: pa.RecordBatch) -> list[BytesLike]:
    """A file in one piece."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return [sink.getvalue()]


def _apart(batch: pa.RecordBatch) -> list[BytesLike]:
    """A file in the pieces that it consists of, the values where they are."""
    sink = _Parts()
    with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_file(file, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.parts


def write(storage: Storage, schema: pa.Schema, columns: Mapping[str, pa.Array], ids: Sequence[str]) -> Block:
    """Lay a block out and write it. Hashing comes first: it brings the values into the cache that writing reads from.

    Raises StoreError for more bytes than *storage* takes at once, before any is sent.
    """
    block, parts = lay_out(schema, columns, ids)
    limit = storage.max_block_bytes
    if limit is not None and block.size_bytes > limit:
        largest = max(columns, key=lambda name: columns[name].nbytes)
        raise StoreError(
            f"{len(ids)} rows of {block.size_bytes:,} bytes ({columns[largest].nbytes:,} of them in column "
            f"{largest!r}): more than the {limit:,} that {storage.url} takes at once; put fewer rows at a time"
        )
    storage.write(block.id, parts)
    return block


def _new_id() -> str:
    """Unique without asking anybody, and sorting by the time of writing."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


class _Parts:
    """A file that keeps what is written to it as it came: Arrow's own buffers, not copied."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[BytesLike] = []

    def write(self, part: BytesLike) -> int:
        self.parts.append(part)
        return len(part)  # type: ignore[arg-type]  # bytes or pyarrow.Buffer

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def decode(block: Block, data: BytesLike) -> pa.RecordBatch:
    """The record batch in *data*, as far as its frame goes: values are not yet checked.

    Raises CorruptData when length, columns or row count are not what the journal says.
    """
    size = len(data)  # type: ignore[arg-type]  # every backend returns sized buffers
    if size != block.size_bytes:
        raise CorruptData(f"block {block.id}: expected {block.size_bytes} bytes, got {size}; it was cut or overwritten")
    try:
        head, batch = read_batch(pa.py_buffer(data))
        named = head.names == block.columns and len(block.checksums) == len(block.columns)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        raise CorruptData(f"block {block.id}: not a readable Arrow file ({error})") from None
    if not named or batch.num_rows != block.rows:
        raise CorruptData(f"block {block.id}: its columns or rows are not those of the journal")
    return batch


class BlockReader:
    """Columns of blocks, each checked on its first read in this process; recently used blocks stay open."""

    def __init__(self, storage: Storage, max_open: int = MAX_OPEN) -> None:
        self._storage = storage
        self._max_open = max_open
        self._open: OrderedDict[str, tuple[pa.RecordBatch, int]] = OrderedDict()  # with the bytes that each costs
        self._open_bytes = 0
        self._checked: dict[str, set[str]] = {}
        self._guard = threading.Lock()

    def column(self, block: Block, field: pa.Field) -> pa.Array:
        """One column as :meth:`shared` gives it."""
        return self.shared(block, [field])[0]

    def shared(self, block: Block, fields: Iterable[pa.Field]) -> list[pa.Array]:
        """Whole columns as stored, shared: not to be written to. Raises CorruptData, BlockGone."""
        with self._guard:
            held = self._open.get(block.id)
            if held is not None:
                self._open.move_to_end(block.id)
        batch = held[0] if held is not None else self._keep(block)
        return [self._checked_column(block, batch, field) for field in fields]

    def private(self, block: Block, fields: Iterable[pa.Field]) -> list[pa.Array]:
        """Whole columns in memory of the caller's own, mapped afresh: writing there reaches nobody else."""
        batch = decode(block, self._storage.private(block.id))
        return [self._checked_column(block, batch, field) for field in fields]

    def forget(self, blocks: Iterable[str]) -> None:
        """Close these blocks: they are gone."""
        with self._guard:
            for block in blocks:
                self._open_bytes -= self._open.pop(block, (None, 0))[1]
                self._checked.pop(block, None)

    def close(self) -> None:
        with self._guard:
            self._open.clear()
            self._open_bytes = 0

    def _keep(self, block: Block) -> pa.RecordBatch:
        batch = decode(block, self._storage.view(block.id))
        mapped = self._storage.maps_from
        cost = block.size_bytes if mapped is None or block.size_bytes < mapped else 0
        with self._guard:
            if block.id not in self._open:
                self._open[block.id] = batch, cost
                self._open_bytes += cost
            while len(self._open) > self._max_open or self._open_bytes > MAX_OPEN_BYTES:
                left, (_, cost) = self._open.popitem(last=False)
                self._open_bytes -= cost
                if self._max_open < MAX_OPEN:
                    self._checked.pop(left, None)  # a guest never hears that a block is gone
        return batch

    def _checked_column(self, block: Block, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        array = batch.column(block.columns.index(field.name))
        if field.name not in self._checked.get(block.id, ()):
            verify(block, field, array)
            with self._guard:
                self._checked.setdefault(block.id, set()).add(field.name)
        return array


def verify(block: Block, field: pa.Field, array: pa.Array) -> None:
    """Raise CorruptData unless *array* is valid, of the declared type, and has the journal's checksum."""
    what = f"block {block.id}, column {field.name!r}"
    if array.type != field.type:
        raise CorruptData(f"{what}: its type is not {field.type}")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptData(f"{what}: {error}") from None
    if checksum(array) != block.checksums[block.columns.index(field.name)]:
        raise CorruptData(f"{what}: its bytes are not those that were written (checksum differs)")
