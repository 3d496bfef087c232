"""What the Redis backend needs of a server: a URL understood, commands sent in pipelines, patience, chunks.

A chunk is ``header | payload``; the header says which block and which part of it this is, and the payload's xxh3.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import redis
import xxhash
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Silent

from dataplane.backends.storage import BytesLike
from schemas.errors import CorruptData, InputError, StoreError

#: Bytes of a chunk behind its header: with it and the server's own, a megabyte, beyond which allocators waste some.
CHUNK_BYTES = (1 << 20) - 256

#: Smaller pieces of commands are sent together.
_SMALL_BYTES = 16 << 10

#: Chunks sent or asked for before their replies are read.
_PIPELINE = 64

_HEADER = struct.Struct("<4s40sIIQQ")
_MAGIC = b"OPD1"

#: Append ARGV[4] from offset ARGV[2] to ARGV[3], if this is still the epoch ARGV[1] of the store, and only once.
APPEND = """
local epoch = redis.call('GET', KEYS[1])
if not epoch then return 'empty' end
if epoch ~= ARGV[1] then return 'fenced' end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local at = redis.call('GET', KEYS[3]) or '0'
if last[1] then
  at = string.match(last[1][1], '^%d+')
  if at == ARGV[3] and last[1][2][2] == ARGV[4] then return 'done' end
end
if at ~= ARGV[2] then return 'moved' end
redis.call('XADD', KEYS[2], ARGV[3] .. '-0', 'd', ARGV[4])
return 'done'
"""

#: Become the writer ARGV[2] after the writer ARGV[1]; the new epoch, or −1 when another was quicker.
TAKE = """
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[3])
return redis.call('INCR', KEYS[1])
"""

#: Be no writer any more, unless another has come since.
LEAVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
"""

#: How every connection behaves: no answer within the timeout counts as a lost connection.
CONNECTION: dict[str, Any] = {"socket_timeout": 10.0, "socket_read_size": 1 << 20}

_OPTIONS = {"prefix": "opd", "patience_s": "30", "max_block_bytes": ""}


class Address(NamedTuple):
    """A store's URL without and with its password, and the options in it that are ours."""

    shown: str
    location: str
    prefix: str
    patience_s: float
    max_block_bytes: int | None


class Connections:
    """Connections to one server, all under one name; what goes wrong there as a StoreError."""

    def __init__(self, url: str, name: str) -> None:
        self.address, given = understood(url)
        self.url, self.patience_s = self.address.shown, self.address.patience_s
        pool = redis.ConnectionPool.from_url(given, client_name=name, **CONNECTION, **_credentials(given))
        self.client = redis.Redis(connection_pool=pool)

    def exchange(
        self, commands: Iterable[list[BytesLike]], keep: Callable[[int, Any], None] = lambda index, value: None
    ) -> None:
        """Send *commands* in pipelines, each as it comes; ``keep(i, reply)`` of each."""
        pool = self.client.connection_pool
        connection = pool.get_connection()
        whole, done, left = False, 0, iter(commands)
        try:
            while sent := self._sent(connection, islice(left, _PIPELINE)):
                failed: RedisError | None = None
                for index in range(done, done + sent):
                    try:
                        keep(index, connection.read_response(disable_decoding=True))
                    except ResponseError as error:
                        failed = error  # replies that follow must be read all the same
                done += sent
                if failed is not None:
                    whole = True
                    raise failed
            whole = True
        finally:
            if not whole:
                connection.disconnect()
            pool.release(connection)

    @staticmethod
    def _sent(connection: Any, commands: Iterable[list[BytesLike]]) -> int:
        """How many *commands* there were. They leave as one stream, made while it is sent."""
        sent = 0

        def pieces() -> Iterator[BytesLike]:
            nonlocal sent
            for words in commands:
                sent += 1
                yield from words

        stream = _joined(pieces())
        for first in stream:
            connection.send_packed_command(chain((first,), stream))
        return sent

    def call(self, what: Callable[[], Any]) -> Any:
        """The answer of *what*, asked again while the server is away. Raises StoreError."""
        until, wait_s = time.monotonic() + self.patience_s, 0.02
        while True:
            try:
                return what()
            except AuthenticationError as error:
                raise StoreError(f"{self.url}: {error}; put the password into OPD_REDIS_PASSWORD") from error
            except (Unreachable, Silent) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise StoreError(
                        f"{self.url}: its certificate is not trusted ({error}); name the authority that signed it "
                        "with ssl_ca_certs=FILE in the URL, or with SSL_CERT_FILE"
                    ) from error
                if time.monotonic() + wait_s > until:
                    raise StoreError(f"{self.url}: no answer for {self.patience_s:g} s ({error})") from error
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, 1.0)
            except NoPermissionError as error:
                raise StoreError(f"{self.url}: {error}; the store needs an account that may use its keys") from error
            except RedisError as error:
                full = "OOM" in str(error) or "maxmemory" in str(error)
                advice = "; clear rows of old steps, or give it more memory" if full else ""
                raise StoreError(f"{self.url}: {'the server is full: ' if full else ''}{error}{advice}") from error


def understood(url: str) -> tuple[Address, str]:
    """What *url* says, and what redis-py gets of it. Raises InputError."""
    base, _, asked = url.removeprefix("redis+").partition("?")
    query = {name: values[-1] for name, values in parse_qs(asked).items()}
    options = {name: query.pop(name, default) for name, default in _OPTIONS.items()}
    if not options["prefix"] or set(options["prefix"]) & set("{}: "):
        raise InputError(f"store prefix {options['prefix']!r}: expected a text without braces, colons and spaces")
    scheme, _, where = base.partition("://")
    shown = f"{scheme}://{where.rpartition('@')[2]}?prefix={options['prefix']}"
    limit = int(options["max_block_bytes"]) if options["max_block_bytes"] else None
    address = Address(shown, url, options["prefix"], float(options["patience_s"]), limit)
    return address, f"{base}?{urlencode(query)}" if query else base


def _credentials(url: str) -> dict[str, str]:
    found = {"password": os.environ.get("OPD_REDIS_PASSWORD"), "username": os.environ.get("OPD_REDIS_USERNAME")}
    return {} if urlsplit(url).password else {name: value for name, value in found.items() if value}


def count_of(size: int) -> int:
    """Chunks of a block."""
    return -(-size // CHUNK_BYTES) or 1


def command(*words: bytes) -> list[BytesLike]:
    """A command as it goes over the wire."""
    return [b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]


def _joined(pieces: Iterable[BytesLike]) -> Iterator[BytesLike]:
    """*pieces* in their order; small neighbours are one."""
    small = b""
    for piece in pieces:
        if len(piece) < _SMALL_BYTES:  # type: ignore[arg-type]  # bytes or memoryview
            small += bytes(piece)  # type: ignore[call-overload]
            continue
        if small:
            yield small
            small = b""
        yield piece
    if small:
        yield small


def chunked(views: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """*views* laid end to end and cut every ``CHUNK_BYTES``; one empty chunk for nothing."""
    chunk: list[memoryview] = []
    room = CHUNK_BYTES
    for view in views:
        while len(view):
            chunk.append(view[:room])
            view, room = view[len(chunk[-1]) :], room - len(chunk[-1])
            if not room:
                yield chunk
                chunk, room = [], CHUNK_BYTES
    if chunk or not views:
        yield chunk


def set_chunk(
    key: bytes, block: str, index: int, count: int, size: int, payload: Sequence[memoryview]
) -> list[BytesLike]:
    """SET of chunk *index* of *count*, as it goes over the wire: nothing of the payload is copied."""
    digest = xxhash.xxh3_64()
    for part in payload:
        digest.update(part)
    header = _HEADER.pack(_MAGIC, block.encode(), index, count, size, digest.intdigest())
    length = len(header) + sum(map(len, payload))
    return [b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (len(key), key, length, header), *payload, b"\r\n"]


def take_chunk(block: str, index: int, count: int, size: int, value: bytes, out: memoryview) -> None:
    """Copy the payload of *value* to its place in *out*. Raises CorruptData unless it is what was written."""
    payload = memoryview(value)[_HEADER.size :]
    room = out[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
    head = (_MAGIC, block.encode().ljust(40, b"\0"), index, count, size, xxhash.xxh3_64_intdigest(payload))
    if len(payload) != len(room) or _HEADER.unpack_from(value) != head:
        raise CorruptData(f"block {block}: chunk {index} is not what was written (id, size or checksum differ)")
    room[:] = payload
