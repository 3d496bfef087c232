"""The journal's frames: records in, records out, torn tails told from damage.

    frame = length u32 | check of the length u32 | xxh3 of the payload u64 | payload (a msgpack record)

A process that dies while appending leaves the beginning of a frame: a *torn tail*. A machine that loses power may
leave zeros. Both are cut by the next writer and merely waited for by followers. Anything else that does not
check is damage and raises :class:`~schemas.errors.CorruptData`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import xxhash

from dataplane.backends.storage import Storage
from schemas.errors import CorruptData, StoreError
from schemas.records import AnyRecord, Claimed, Noted, Record, Released, Renewed

_HEADER = struct.Struct("<IIQ")
_LENGTH = struct.Struct("<I")

#: Records that a power cut may take with it.
_INFORMATIONAL = (Claimed, Renewed, Released, Noted)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyRecord).decode


def frame(record: Record) -> bytes:
    """*record* as it stands in the journal."""
    payload = _encode(record)
    length = len(payload)
    return _HEADER.pack(length, _length_check(length), xxhash.xxh3_64_intdigest(payload)) + payload


def frames(data: bytes, start: int = 0) -> Iterator[tuple[int, AnyRecord]]:
    """``(end, record)`` for each whole frame; *start* is the journal offset of ``data[0]``, *end* counts from it too.

    Stops at a torn tail. Raises CorruptData at damage.
    """
    view, at = memoryview(data), 0
    while len(view) - at >= _HEADER.size:
        length, check, digest = _HEADER.unpack_from(view, at)
        body = at + _HEADER.size
        if check != _length_check(length):
            if not any(view[at:]):
                return
            raise CorruptData(_damage(start + at, "its length does not check"))
        if body + length > len(view):
            return
        payload = view[body : body + length]
        if xxhash.xxh3_64_intdigest(payload) != digest:
            if body + length == len(view) and not any(payload[-1:]):
                return  # a power cut: the last frame's pages did not all reach the disk
            raise CorruptData(_damage(start + at, "its checksum differs"))
        at = body + length
        yield start + at, _record(payload, start + at)


class Place(NamedTuple):
    """How many records a snapshot holds, and the number of the first that is still in the journal."""

    seq: int
    first_seq: int


class Journal:
    """The writer's or a follower's place in a store's journal.

    ``position`` is the offset behind the last record read or written; ``seq`` counts records from 0, ``first_seq`` of
    them before the kept part; ``snapshot_at`` is where the snapshot stands.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.position = 0
        self.seq = 0
        self.first_seq = 0
        self.snapshot_at = 0

    def read(self) -> Iterator[AnyRecord]:
        """Records that came since the last call, oldest first."""
        data = self.storage.journal(self.position)
        for end, record in frames(data, self.position):
            self.position = end
            self.seq += 1
            yield record

    def go_to(self, position: int, place: Place) -> None:
        """The catalog stands where a snapshot stands."""
        self.position = self.snapshot_at = position
        self.seq, self.first_seq = place

    def cut_tail(self) -> None:
        """Drop what lies behind the last whole record: the writer's right, after reading everything."""
        self.storage.cut(self.position)

    def append(self, record: Record) -> None:
        """Write *record* behind the last one."""
        data = frame(record)
        self.storage.append(data, durable=not isinstance(record, _INFORMATIONAL))
        self.position += len(data)
        self.seq += 1


def _length_check(length: int) -> int:
    return xxhash.xxh32_intdigest(_LENGTH.pack(length))


def _record(payload: memoryview, end: int) -> AnyRecord:
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        raise StoreError(f"journal record that ends at byte {end}: {error}; is it of a newer version?") from None


def _damage(offset: int, why: str) -> str:
    return f"journal: the record at byte {offset} is damaged ({why}); what comes before it is whole"
