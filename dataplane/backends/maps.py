"""Private memory maps that hold no file descriptor (Python's own ``mmap`` keeps one open for each)."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import pyarrow as pa

from schemas.errors import StoreError

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """Keeps the pages mapped as long as somebody looks at them."""

    def __init__(self, address: int, size: int) -> None:
        weakref.finalize(self, _LIBC.munmap, address, size).atexit = False


def map_private(path: str, least: int = 0) -> pa.Buffer | bytes:
    """The file at *path*, copy-on-write: writing there changes neither the file nor another map of it. A file of
    less than *least* bytes is read instead.

    Raises OSError when the file cannot be opened, StoreError when it is empty or the process has too many maps.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size < least:
            return os.read(fd, size)
        address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    finally:
        os.close(fd)
    if address == _FAILED:
        raise StoreError(f"mapping {path} ({size} bytes) failed: {os.strerror(ctypes.get_errno())}")
    return pa.foreign_buffer(address, size, base=_Map(address, size))
