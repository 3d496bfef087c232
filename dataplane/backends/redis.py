"""The Redis backend: Redis 7 or later, or Valkey. Every key begins with ``{prefix}:``.

    {p}:epoch, {p}:writer     how often the store was opened for writing, and by whom: every append checks the epoch
    {p}:blocks                hash: block → size in bytes, negative while it is being sent
    {p}:b:BLOCK:i             chunk i of a block: a header (block, i, count, size, xxh3) and up to a megabyte
    {p}:journal               stream: an entry an append, its id the journal offset it ends at
    {p}:start, {p}:closed, {p}:snapshot      where the kept journal begins; where it was closed; "position block"

A lost connection is waited for and the command sent again. That applies it once: chunks and their sizes are what
they were, and an entry of the journal says where it must go. A server that comes back empty, or with older data, has
another epoch or another end of the journal, and is refused.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from redis.exceptions import RedisError

from dataplane.backends.redis_server import (
    APPEND,
    LEAVE,
    TAKE,
    Connections,
    chunked,
    command,
    count_of,
    set_chunk,
    take_chunk,
)
from dataplane.backends.storage import BlockGone, BytesLike, Trimmed, Writer
from schemas.errors import CorruptData, InputError, StoreError, StoreLocked

#: Records read in one command.
_PAGE = 4096


class RedisStorage:
    """One store on a server. The URL's query takes ``prefix``, ``patience_s``, ``max_block_bytes`` and redis-py's own.

    A password comes from the URL or from OPD_REDIS_PASSWORD (and OPD_REDIS_USERNAME). ``power`` durability needs a
    server that syncs its append-only file always. Raises InputError, and StoreError for one that cannot keep a store.
    """

    maps_from: int | None = None

    def __init__(self, url: str, durability: str = "process", create: bool = True) -> None:
        self._name = f"opd-{secrets.token_hex(8)}"
        server = Connections(url, self._name)
        self.url, self.location = server.address.shown, server.address.location
        self._client, self._call, self._exchange = server.client, server.call, server.exchange
        self._prefix = f"{{{server.address.prefix}}}"
        self._append = self._client.register_script(APPEND)
        self._epoch: int | None = None
        self._end = 0
        self._seen = False
        self._guard = threading.Lock()
        self.max_block_bytes: int | None = self._check_server(durability, server.address.max_block_bytes, create)
        if not create and not self._call(lambda: self._client.exists(self._key("epoch"))):
            raise InputError(f"{self.url}: no store here; whoever opens it for writing makes one")

    def _check_server(self, durability: str, max_block_bytes: int | None, writes: bool) -> int:
        """Refuse a server that drops data, or has no room for who *writes*; the largest block it may be sent."""
        info = self._call(lambda: {**self._client.info("memory"), **self._client.info("persistence")})
        policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
        if policy != "noeviction":
            raise StoreError(f"{self.url}: the server evicts keys ({policy}); set maxmemory-policy to noeviction")
        if writes and limit and int(info["used_memory"]) > 0.98 * limit:
            used = f"{info['used_memory']} of {limit} bytes"
            raise StoreError(f"{self.url}: the server's memory is full ({used}); give it more (CONFIG SET maxmemory)")
        if durability == "power":
            self._check_durable(bool(info.get("aof_enabled")))
        return max_block_bytes or min(limit or 4 << 30, 4 << 30)

    def _check_durable(self, appends: bool) -> None:
        """Refuse a server that a power cut costs what it acknowledged."""
        asked = self._call(lambda: self._client.config_get("append*")) if appends else {}
        found = asked.get("appendfsync") if appends else "none, as appendonly is no"
        if found != "always":
            raise InputError(
                f"{self.url}: durability 'power' needs a server with appendonly yes and appendfsync always, "
                f"got {found}: a power cut would cost what came last; change that, or use durability 'process'"
            )

    # -- the writer -----------------------------------------------------------------------------------------------

    def lock(self) -> None:
        seen = self._call(lambda: self._client.get(self._key("writer"))) or b""
        for wait_s in (0.05, 0.1, 0.2, 0.0):  # the server may not have noticed a death just now
            if not self._connected(seen):
                break
            if not wait_s:
                raise self._taken(seen)
            time.sleep(wait_s)
        mine = f"{self._name} process {os.getpid()} on {os.uname().nodename}"
        keys = [self._key(name) for name in ("epoch", "writer", "closed")]
        epoch = self._call(lambda: self._client.eval(TAKE, 3, *keys, seen, mine))
        if epoch < 0:  # unless it was our own, sent again after a lost connection
            holder = self._call(lambda: self._client.get(self._key("writer"))) or b""
            if holder != mine.encode():
                raise self._taken(holder)
            epoch = int(self._call(lambda: self._client.get(self._key("epoch"))))
        self._epoch, self._seen = epoch, True
        self._end = self._journal_end()

    def _connected(self, holder: bytes) -> bool:
        """Whether the process that *holder* names still has a connection; its death closes all of them."""
        if not holder:
            return False
        name = holder.split()[0].decode()
        return any(client.get("name") == name for client in self._call(lambda: self._client.client_list()))

    def _taken(self, holder: bytes) -> StoreLocked:
        who = " ".join(holder.decode(errors="replace").split()[1:]) or "another process"
        return StoreLocked(f"{self.url} is already open for writing by {who}; end it first, or only read beside it")

    def writer(self) -> Writer:
        holder, closed = self._call(lambda: self._client.mget(self._key("writer"), self._key("closed")))
        return Writer(self._connected(holder or b""), int(closed) if closed is not None and not holder else None)

    def closed(self, position: int) -> None:
        if self._epoch is not None:
            self._call(lambda: self._client.set(self._key("closed"), position))

    def close(self) -> None:
        epoch, self._epoch = self._epoch, None
        try:
            if epoch is not None:
                self._client.eval(LEAVE, 2, self._key("epoch"), self._key("writer"), epoch)
        except RedisError:
            pass  # the connection ends with the process or below, and with it the claim to be the writer
        self._client.connection_pool.disconnect()

    # -- blocks ---------------------------------------------------------------------------------------------------

    def write(self, block: str, parts: Sequence[BytesLike]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]  # type: ignore[arg-type]
        size = sum(map(len, views))
        try:
            self._call(lambda: self._exchange(self._sending(block, size, views)))
        except BaseException:
            self._delete_chunks(block, size)
            raise

    def _sending(self, block: str, size: int, views: Sequence[memoryview]) -> Iterator[list[BytesLike]]:
        """The commands that keep a block; each chunk is hashed while the server takes the one before."""
        yield command(b"HSET", self._key("blocks"), block.encode(), b"%d" % -size)
        for index, payload in enumerate(chunked(views)):
            yield set_chunk(self._chunk(block, index), block, index, count_of(size), size, payload)
        yield command(b"HSET", self._key("blocks"), block.encode(), b"%d" % size)

    def view(self, block: str) -> pa.Buffer:
        return self.private(block)

    def private(self, block: str) -> pa.Buffer:
        size = self._call(lambda: self._client.hget(self._key("blocks"), block))
        if size is None or int(size) < 0:
            self._refuse_empty()
            raise BlockGone(block, self.url)
        count = count_of(int(size))
        buffer = pa.allocate_buffer(int(size))
        out, found = memoryview(buffer).cast("B"), 0
        commands = [command(b"GET", self._chunk(block, index)) for index in range(count)]

        def keep(index: int, value: bytes | None) -> None:
            nonlocal found
            if value is not None:
                take_chunk(block, index, count, int(size), value, out)
                found += 1

        def receive() -> None:
            nonlocal found
            found = 0
            self._exchange(commands, keep)

        self._call(receive)
        if found < count:
            if found:
                raise CorruptData(f"block {block}: {count - found} of its {count} chunks are missing in {self.url}")
            raise BlockGone(block, self.url)
        return buffer

    def delete(self, blocks: Iterable[str]) -> None:
        names = list(blocks)
        if not names:
            return
        sizes = self._call(lambda: self._client.hmget(self._key("blocks"), names))
        for block, size in zip(names, sizes, strict=True):
            if size is not None:
                self._delete_chunks(block, abs(int(size)))

    def _delete_chunks(self, block: str, size: int) -> None:
        keys = [self._chunk(block, index) for index in range(count_of(size))]
        commands = [command(b"UNLINK", *keys[at : at + 1000]) for at in range(0, len(keys), 1000)]
        commands.append(command(b"HDEL", self._key("blocks"), block.encode()))
        self._call(lambda: self._exchange(commands))

    def blocks(self) -> dict[str, int]:
        found = self._call(lambda: self._client.hgetall(self._key("blocks")))
        return {name.decode(): int(size) for name, size in found.items() if not name.startswith(b"snapshot")}

    # -- the journal ----------------------------------------------------------------------------------------------

    def append(self, data: bytes, durable: bool = True) -> None:
        with self._guard:
            if self._epoch is None:
                raise StoreError(f"{self.url} is not open for writing")
            keys = [self._key("epoch"), self._key("journal"), self._key("start")]
            arguments: list[Any] = [self._epoch, self._end, self._end + len(data), data]
            answer = self._call(lambda: self._append(keys=keys, args=arguments))
            if answer != b"done":
                raise self._refused(answer)
            self._end += len(data)

    def _refused(self, answer: bytes) -> StoreError:
        if answer == b"fenced":
            return self._taken(self._call(lambda: self._client.get(self._key("writer"))) or b"")
        if answer == b"empty":
            return StoreError(f"{self.url} lost its data: the server came back empty; what it held is gone")
        return StoreError(f"{self.url}: the server came back with older data than was acknowledged; end the job")

    def journal(self, start: int = 0) -> bytes:
        self._refuse_empty()
        begins = self.start()
        if start < begins:
            raise Trimmed(f"{self.url}: the journal begins at byte {begins}, not {start}")
        parts: list[bytes] = []
        at = start
        while True:
            page = self._entries_behind(at)
            for name, fields in page:
                end, data = int(name.split(b"-")[0]), fields[b"d"]
                parts.append(data[max(0, len(data) - (end - at)) :])
                at = end
            if len(page) < _PAGE:
                return b"".join(parts)

    def _entries_behind(self, at: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return self._call(lambda: self._client.xrange(self._key("journal"), f"{at + 1}-0", "+", _PAGE))

    def start(self) -> int:
        return int(self._call(lambda: self._client.get(self._key("start"))) or 0)

    def trim(self, position: int) -> None:
        with self._guard:
            self._call(lambda: self._client.set(self._key("start"), position))
            self._call(lambda: self._client.xtrim(self._key("journal"), minid=f"{position + 1}-0", approximate=False))
            self._end = max(self._end, position)

    def save(self, position: int, parts: Sequence[BytesLike]) -> None:
        before = self._call(lambda: self._client.get(self._key("snapshot")))
        name = f"snapshot{position}"
        self.write(name, parts)
        self._call(lambda: self._client.set(self._key("snapshot"), f"{position} {name}"))
        if before is not None and before.split()[1].decode() != name:
            self.delete([before.split()[1].decode()])

    def saved(self) -> tuple[int, BytesLike] | None:
        found: bytes | None = None
        while True:
            before, found = found, self._call(lambda: self._client.get(self._key("snapshot")))
            if found is None:
                return None
            position, name = found.decode().split()
            try:
                return int(position), self.private(name)
            except BlockGone:
                if found == before:  # not replaced by a newer one, but lost
                    raise

    def cut(self, size: int) -> None:
        with self._guard:
            behind = self._call(lambda: self._client.xrange(self._key("journal"), f"{size + 1}-0", "+"))
            kept = b""
            for name, fields in behind[:1]:
                begin = int(name.split(b"-")[0]) - len(fields[b"d"])
                kept = fields[b"d"][: max(0, size - begin)]
            if behind:
                with self._client.pipeline(transaction=True) as pipe:
                    pipe.xdel(self._key("journal"), *(name for name, _ in behind))
                    pipe.execute_command("XSETID", self._key("journal"), f"{size - len(kept)}-0")
                    if kept:
                        pipe.xadd(self._key("journal"), {"d": kept}, id=f"{size}-0")
                    self._call(pipe.execute)
            self._end = self._journal_end()

    def _journal_end(self) -> int:
        last = self._call(lambda: self._client.xrevrange(self._key("journal"), count=1))
        return int(last[0][0].split(b"-")[0]) if last else self.start()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}:{name}".encode()

    def _chunk(self, block: str, index: int) -> bytes:
        return f"{self._prefix}:b:{block}:{index}".encode()

    def _refuse_empty(self) -> None:
        """A server that came back without its data must not be taken for an empty store."""
        there = bool(self._call(lambda: self._client.exists(self._key("epoch"))))
        if self._seen and not there:
            raise self._refused(b"empty")
        self._seen = self._seen or there
