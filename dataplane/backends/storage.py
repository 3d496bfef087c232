"""What a backend is: a page of byte verbs. Everything above it (records, rows, Arrow) is the same for all.

A backend keeps **blocks**, immutable named byte strings, and one **journal**, a byte string that only grows.

- *A missing block* raises :class:`BlockGone`; deleting a missing one does nothing.
- *A crash* at any point leaves each block whole or absent, and the journal cut somewhere after its last
  complete ``append``: a reader may see the beginning of a frame at the end, and the next writer ``cut``\\ s it.
- *A second writer* is refused by ``lock`` with :class:`~schemas.errors.StoreLocked`, naming the holder. Anyone may
  write blocks (names never collide); only the holder of the lock may ``append`` and ``cut``. Readers need no lock.
- *Disk or memory full* raises :class:`~schemas.errors.StoreError`; nothing of the failed call remains.
- *A snapshot* stands for the journal up to its position; then the journal may be trimmed there. Who asks for
  bytes before the kept part gets :class:`Trimmed`, and starts again from the snapshot.
- Durability: what a call wrote survives the death of the process; with ``power`` also that of the machine.

Methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from schemas.errors import StoreError

#: Anything with the buffer protocol: bytes, memoryview, pyarrow.Buffer, mmap.
BytesLike = object


REPAIR = "opd check --repair keeps what is whole"


class BlockGone(StoreError, LookupError):
    """No block of this name: cleared meanwhile, or lost."""

    def __init__(self, block: str, store: str) -> None:
        super().__init__(f"block {block!r} is not in {store}: cleared meanwhile, or lost")
        self.block = block


class Trimmed(StoreError):
    """The journal begins later than asked: what came before is in the snapshot."""


class Writer(NamedTuple):
    """Whether a process holds the lock, and where the journal ended when the last one closed cleanly, else None."""

    alive: bool
    closed_at: int | None


class Storage(Protocol):
    """Bytes kept under names, and a journal. See the module's text for missing keys, crashes and second writers."""

    #: Where it is, for messages.
    url: str

    #: The same for another process to open it: with the password, if there is one.
    location: str

    #: From how many bytes on ``view`` is a map of what is there anyway; of less, it costs memory. None: it always does.
    maps_from: int | None

    #: Larger blocks are refused before anything is sent; None for no limit.
    max_block_bytes: int | None

    def lock(self) -> None:
        """Become the one writer. Raises StoreLocked naming the holder."""

    def writer(self) -> Writer:
        """Who has it open, and how the last one ended."""

    def closed(self, position: int) -> None:
        """The holder of the lock is about to ``close``, with all its work done and the journal at *position*."""

    def close(self) -> None:
        """Give up the lock and every handle. Buffers already handed out stay valid."""

    def write(self, block: str, parts: Sequence[BytesLike]) -> None:
        """Keep the concatenation of *parts* under a new name: whole, or not at all."""

    def view(self, block: str) -> BytesLike:
        """The block's bytes, shared and not to be written to."""

    def private(self, block: str) -> BytesLike:
        """The block's bytes in memory of the caller's own: writing there reaches nobody else."""

    def delete(self, blocks: Iterable[str]) -> None:
        """Forget these blocks."""

    def blocks(self) -> dict[str, int]:
        """Every whole block and its size in bytes."""

    def append(self, data: bytes, durable: bool = True) -> None:
        """Add *data* to the journal, whole. Not *durable*: need not survive a power cut."""

    def journal(self, start: int = 0) -> bytes:
        """The journal's bytes from *start* on, as far as they are there. Raises Trimmed."""

    def start(self) -> int:
        """Where the kept journal begins; 0 until it is trimmed."""

    def trim(self, position: int) -> None:
        """Forget the journal before *position*, the place of the snapshot."""

    def save(self, position: int, parts: Sequence[BytesLike]) -> None:
        """Keep a snapshot of the journal up to *position* instead of the one before: whole, or not at all."""

    def saved(self) -> tuple[int, BytesLike] | None:
        """The snapshot and its position, if there is one."""

    def cut(self, size: int) -> None:
        """Drop what lies behind the journal's first *size* bytes."""
