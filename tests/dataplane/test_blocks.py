"""Blocks: exact bytes out, suspicion on the way in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dataplane.backends.memory import MemoryStorage
from dataplane.backends.storage import BytesLike
from dataplane.blocks.block import BlockReader, decode, lay_out
from dataplane.blocks.canonical import canonical, checksum
from schemas.errors import CorruptData, StoreError
from schemas.records import Block

SCHEMA = pa.schema([("input_ids", pa.large_list(pa.int32())), ("prompt", pa.string()), ("reward", pa.float32())])
COLUMNS = {
    "input_ids": pa.array([[1, 2], [], [3, 4, 5]], SCHEMA.field("input_ids").type),
    "prompt": pa.array(["ab", None, "c"]),
    "reward": pa.array([0.5, None, 2.0], pa.float32()),
}
IDS = ["x", "y", "z"]

SAMPLES = [
    pa.array([[1, 2], [], None, [3]], pa.large_list(pa.int32())),
    pa.array([[True], [False, True], []], pa.large_list(pa.bool_())),
    pa.array(["a", "bb", None, "ccc"]),
    pa.array([True, None, False, True]),
    pa.array([{"a": 1, "b": "x"}, None, {"a": 3, "b": "yy"}]),
    pa.array([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]], pa.large_list(pa.list_(pa.float32(), 2))),
    pa.array([1.5, 2.5, -0.0], pa.float16()),
]


def laid(columns: dict[str, pa.Array], ids: list[str] = IDS) -> tuple[Block, list[BytesLike]]:
    fields = [*(SCHEMA.field(name) for name in columns), pa.field("sample_id", pa.string())]
    return lay_out(pa.schema(fields), columns, ids)


def written() -> tuple[Block, bytes]:
    block, parts = laid(COLUMNS)
    return block, b"".join(parts)


def test_a_block_is_an_ordinary_arrow_file() -> None:
    block, data = written()
    table = pa.ipc.open_file(data).read_all()
    assert table.to_pydict() == {**{n: a.to_pylist() for n, a in COLUMNS.items()}, "sample_id": IDS}
    assert block.columns == ("input_ids", "prompt", "reward", "sample_id")
    assert (block.size_bytes, block.rows) == (len(data), 3)


def test_writing_copies_no_large_buffer_and_lays_small_ones_together() -> None:
    values = np.arange(100_000, dtype=np.int32)
    column = pa.LargeListArray.from_arrays(pa.array([0, 100_000]), pa.array(values))
    block, parts = laid({"input_ids": column}, ["x"])
    largest = max(parts, key=len)
    assert largest.address == values.ctypes.data
    whole = pa.ipc.open_file(b"".join(parts)).read_all()
    assert whole.to_pydict() == {"input_ids": [values.tolist()], "sample_id": ["x"]}
    assert decode(block, b"".join(parts)).column(0).equals(column)
    assert len(laid(COLUMNS)[1]) == 1


@pytest.mark.parametrize("place", [0, -1], ids=["begin", "end"])
def test_a_file_that_does_not_begin_or_end_as_arrow_files_do_is_corrupt(place: int) -> None:
    block, data = written()
    damaged = bytearray(data)
    damaged[place] ^= 1
    with pytest.raises(CorruptData, match="not a readable Arrow file"):
        decode(block, bytes(damaged))


def test_a_file_whose_schema_was_damaged_is_corrupt_though_its_kind_was_read_before() -> None:
    block, data = written()
    decode(block, data)
    with pytest.raises(CorruptData):
        decode(block, data.replace(b"prompt", b"prompf"))


@pytest.mark.parametrize("array", SAMPLES, ids=lambda array: str(array.type))
def test_checksums_depend_on_values_and_not_on_how_they_are_sliced(array: pa.Array) -> None:
    part, copy = array[1:], pa.array(array.to_pylist()[1:], array.type)
    assert canonical(part).equals(copy)
    assert checksum(canonical(part)) == checksum(canonical(copy))
    assert checksum(canonical(part)) != checksum(canonical(array[:-1]))


def test_every_flipped_byte_of_values_is_found() -> None:
    block, data = written()
    storage = MemoryStorage()
    harmless = 0
    for at in range(len(data)):
        storage._blocks[block.id] = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            read = {name: BlockReader(storage).column(block, SCHEMA.field(name)) for name in COLUMNS}
        except StoreError:
            continue
        harmless += 1  # padding, or metadata that nobody reads
        assert all(read[name].equals(COLUMNS[name]) for name in COLUMNS)
    assert harmless < len(data)


def test_a_truncated_block_is_corrupt_at_every_length() -> None:
    block, data = written()
    for size in range(len(data)):
        with pytest.raises(CorruptData, match=f"expected {len(data)} bytes, got {size}"):
            decode(block, data[:size])


def test_a_block_with_other_columns_or_rows_is_corrupt() -> None:
    block, _ = written()
    _, parts = laid({"prompt": COLUMNS["prompt"]})
    other = b"".join(parts)
    resized = type(block)(block.id, len(other), block.rows, block.columns, block.checksums)
    with pytest.raises(CorruptData, match="not those of the journal"):
        decode(resized, other)


def test_values_that_no_arrow_reader_may_trust_are_corrupt_even_with_a_matching_checksum() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 3], dtype=np.int32))
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xff\xfea"))
    storage = MemoryStorage()
    block, parts = laid({"prompt": text}, ["x", "y"])
    storage.write(block.id, parts)
    with pytest.raises(CorruptData, match="column 'prompt'.*UTF8"):
        BlockReader(storage).column(block, SCHEMA.field("prompt"))


def test_a_private_read_is_a_map_of_its_own() -> None:
    block, data = written()
    storage = MemoryStorage()
    storage.write(block.id, [data])
    reader = BlockReader(storage)
    (first,) = reader.private(block, [SCHEMA.field("reward")])
    (second,) = reader.private(block, [SCHEMA.field("reward")])
    assert first.buffers()[1].address != second.buffers()[1].address
    assert first.equals(second)


_FUZZ = """
import random, resource, sys
from dataplane.blocks.block import BlockReader
from dataplane.backends.memory import MemoryStorage
from dataplane.backends.storage import BytesLike
from schemas.errors import StoreError
from tests.dataplane.test_blocks import COLUMNS, SCHEMA, written
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
block, data = written()
draw = random.Random(int(sys.argv[1]))
for _ in range(300):
    mutated = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        mutated[draw.randrange(len(data))] = draw.randrange(256)
    storage = MemoryStorage()
    storage.write(block.id, [bytes(mutated)])
    for name in COLUMNS:
        try:
            BlockReader(storage).column(block, SCHEMA.field(name)).to_pylist()
        except StoreError:
            pass
print("alive")
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_hostile_files_are_errors_and_not_crashes(seed: int) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _FUZZ, str(seed)], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_file_is_refused_before_it_is_unpacked(codec: str) -> None:
    columns = {"reward": np.zeros(20_000_000, np.float32), "sample_id": pa.nulls(20_000_000, pa.string())}
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as file:
        file.write_batch(batch)
    data, rows = sink.getvalue(), batch.num_rows
    del batch, columns
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptData, match="it is compressed"):
        decode(Block("b", len(data), rows, ("reward", "sample_id"), (0, 0)), data)
    assert pa.total_allocated_bytes() - before < 1 << 20
