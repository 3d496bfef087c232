"""put, get, add a column and clear: the store, TransferQueue, a bare write, memcpy and redis-py take turns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import redis
from redis.connection import PythonRespSerializer

from benchmarks.batch import COLUMNS, batch, names, raw
from benchmarks.measure import Contender, interleaved
from benchmarks.transferqueue import Queue
from dataplane import DataPlane, open_plane


def plane_at(url: str) -> DataPlane:
    """An open store with the batch's columns."""
    plane = open_plane(url)
    plane.create_partition("train", COLUMNS)
    return plane


def torch_of(plane: DataPlane, ids: list[str], columns: tuple[str, ...] = COLUMNS, copy: bool = True) -> list[Any]:
    """Columns as torch, jagged."""
    found = plane.get("train", ids, columns, copy=copy)
    return [found.jagged(name) for name in columns]


def bare_write(path: Path, data: np.ndarray) -> None:
    """The bytes, to a new file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    left = memoryview(data)
    while len(left):
        left = left[os.write(fd, left) :]
    os.close(fd)


def large(folder: Path, queue: Queue, rounds: int) -> dict[str, float]:
    """Seconds for 512 rows × 3 columns."""
    columns, ids, first = batch(), names(512), names(512, "first")
    fields, data, held = queue.fields(columns), raw(columns), names(512, "held")
    target, bare = np.empty_like(data), folder / "bare"
    mixed = [held[row] for row in np.random.default_rng(1).permutation(512).tolist()]
    with plane_at(str(folder / "plane")) as plane:
        plane.put("train", held, columns)
        queue.put(held, fields)
        return interleaved(
            {
                "put plane": Contender(
                    lambda: plane.put("train", ids, columns), after=lambda: plane.clear("train", ids)
                ),
                "put plane at once": Contender(
                    lambda: plane.put("train", ids, columns),
                    before=lambda: plane.put("train", first, columns),
                    after=lambda: plane.clear("train", [*first, *ids]),
                ),
                "put transferqueue": Contender(lambda: queue.put(ids, fields), after=lambda: queue.clear(ids)),
                "put bare write": Contender(lambda: bare_write(bare, data), after=bare.unlink),
                "get plane": Contender(lambda: torch_of(plane, held)),
                "get plane copy=False": Contender(lambda: torch_of(plane, held, copy=False)),
                "get plane permuted": Contender(lambda: torch_of(plane, mixed)),
                "get plane copy=False touched": Contender(
                    lambda: [values.sum() for values, _ in torch_of(plane, held, copy=False)]
                ),
                "get transferqueue": Contender(lambda: queue.get(held, list(COLUMNS))),
                "memcpy": Contender(lambda: np.copyto(target, data)),
            },
            rounds,
        )


def small(folder: Path, queue: Queue, rounds: int) -> dict[str, float]:
    """Seconds for 64 rows × 1 column: get, add, clear."""
    columns, held, ids = batch(64, seed=2), names(64, "small"), names(64, "add")
    one, first = {COLUMNS[2]: columns[COLUMNS[2]]}, {COLUMNS[0]: columns[COLUMNS[0]]}
    fields, field, before = queue.fields(columns), queue.fields(one), queue.fields(first)
    with plane_at(str(folder / "small")) as plane:
        plane.put("train", held, columns)
        queue.put(held, fields)
        return interleaved(
            {
                "get 64×1 plane": Contender(lambda: torch_of(plane, held, COLUMNS[1:2])),
                "get 64×1 transferqueue": Contender(lambda: queue.get(held, [COLUMNS[1]])),
                "add column plane": Contender(
                    lambda: plane.put("train", ids, one), before=lambda: plane.put("train", ids, first)
                ),
                "clear plane": Contender(lambda: plane.clear("train", ids)),
                "add column transferqueue": Contender(
                    lambda: queue.put(ids, field), before=lambda: queue.put(ids, before)
                ),
                "clear transferqueue": Contender(lambda: queue.clear(ids)),
            },
            rounds,
        )


def on_redis(url: str, socket: str, rounds: int) -> dict[str, float]:
    """Seconds for the large batch on a server, against pipelined SETs and GETs of the same bytes in 1 MB values."""
    columns, ids, held = batch(), names(512), names(512, "held")
    data = memoryview(raw(columns))
    chunks = {f"raw:{at}": data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)}
    kept = {f"kept:{at}": chunk for at, chunk in chunks.items()}
    client = redis.Redis(unix_socket_path=socket, socket_read_size=1 << 20)
    encode = client.connection_pool.get_encoder().encode
    client.connection_pool.connection_kwargs["command_packer"] = PythonRespSerializer(6000, encode)

    def pipelined(command: str, values: dict[str, memoryview]) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for key, chunk in values.items():
            pipe.execute_command(command, key, *([chunk] if command == "SET" else []))
        return pipe.execute()

    pipelined("SET", kept)

    with plane_at(url) as plane:
        plane.put("train", held, columns)

        def forget() -> None:
            plane._reader.close()  # so that values come from the server, not from what this process keeps

        return interleaved(
            {
                "redis put plane": Contender(
                    lambda: plane.put("train", ids, columns), after=lambda: plane.clear("train", ids)
                ),
                "redis put raw": Contender(lambda: pipelined("SET", chunks), after=lambda: client.unlink(*chunks)),
                "redis get plane": Contender(lambda: torch_of(plane, held, copy=False), before=forget),
                "redis get raw": Contender(lambda: pipelined("GET", kept)),
            },
            rounds,
        )
