"""``RemoteHost``: the host's methods, called in the process that hosts the plane."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dataplane.serving.wire import METHODS, ConnectionEnded, location_of, receive, send, value_of
from schemas.errors import InputError, StoreError

#: A thread that waits for news gives way to others this often.
_TURN_S = 0.2


class RemoteHost:
    """Looks like a CatalogHost; every method is one round trip. Threads take turns.

    Raises InputError for an address that is none, StoreError when nobody answers there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._stream, token = _dial(address)
        self._turn = threading.Lock()
        try:
            self.storage_url: str = location_of(self._exchange(token, "greeting"))
        except BaseException:
            self._stream.close()
            raise

    def refresh(self) -> int:
        """Nothing to do: every answer is the host's own and fresh."""
        return 0

    @property
    def epoch(self) -> int:
        """How often the run went back to a checkpoint."""
        return int(self._call("epoch", []))

    def wait(self, position: int, timeout_s: float) -> int:
        """The journal's position once it is past *position*, or after *timeout_s*; other threads get their turns."""
        until = time.monotonic() + timeout_s
        while True:
            left_s = until - time.monotonic()
            now = int(self._call("wait", [position, max(0.0, min(left_s, _TURN_S))]))
            if now > position or left_s <= _TURN_S:
                return now

    def close(self) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, list(arguments))

    def _call(self, method: str, arguments: list[Any]) -> Any:
        return value_of(method, self._exchange([method, arguments], method))

    def _exchange(self, message: Any, what: str) -> bytes:
        try:
            with self._turn:
                send(self._stream, message)
                return receive(self._stream)
        except (OSError, ConnectionEnded) as error:
            raise StoreError(f"the plane at {self.address} is gone ({what}: {error}); start the job again") from error


def _unix(path: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(path)
    except OSError:
        stream.close()
        raise
    return stream


def _dial(address: str) -> tuple[socket.socket, str]:
    """A connected socket, and the token to show."""
    url = urlsplit(address)
    try:
        if url.scheme == "unix":
            return _unix(url.path), ""
        if url.scheme == "tcp" and url.hostname and url.port:
            stream = socket.create_connection((url.hostname, url.port), timeout=30)
            stream.settimeout(None)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream, parse_qs(url.query).get("token", [""])[0]
    except OSError as error:
        raise StoreError(f"no plane answers at {address} ({error}); is the process that hosts it alive?") from error
    raise InputError(f"address {address!r}: expected unix:///path or tcp://host:port?token=…, as the plane gives it")
