"""``HostServer``: lets other processes call the host, over a unix socket (mode 0600) or TCP with a token.

One thread per connection. What a connection claimed goes back when it ends, so that a worker that dies gives up
its rows at once.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dataplane.backends.scratch import own_folder
from dataplane.catalog.host import CatalogHost
from dataplane.serving.wire import ConnectionEnded, error_frame, greeting_of, receive, request_of, send
from schemas.errors import InputError, StoreError


class HostServer:
    """Serves *host* until closed; ``address`` is what :func:`dataplane.connect` takes."""

    def __init__(self, host: CatalogHost, tcp: str | None = None) -> None:
        self.host = host
        self.token = secrets.token_urlsafe(24) if tcp else ""
        self._folder: Path | None = None
        self._listener, self.address = self._listen_tcp(tcp) if tcp else self._listen_unix()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        self._served_s = 0.0
        threading.Thread(target=self._accept, name="plane-server", daemon=True).start()

    def _listen_unix(self) -> tuple[socket.socket, str]:
        self._folder = own_folder("plane")
        path = self._folder / "plane"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(128)
        return listener, f"unix://{path}"

    def _listen_tcp(self, interface: str) -> tuple[socket.socket, str]:
        listener = socket.create_server((interface, 0), backlog=128)
        return listener, f"tcp://{interface}:{listener.getsockname()[1]}?token={self.token}"

    def close(self) -> None:
        """End every connection and remove the socket."""
        if self._closed.is_set():
            return
        self._closed.set()
        for stream in (self._listener, *self._connections):
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def take_seconds(self) -> float:
        """Processor seconds spent on answers since the last call."""
        taken, self._served_s = self._served_s, 0.0
        return taken

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._connections.add(stream)
            threading.Thread(target=self._serve, args=(stream,), name="plane-connection", daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        claims: set[str] = set()
        try:
            with stream:
                self._greet(stream)
                while True:
                    request = receive(stream)
                    began = time.thread_time()
                    send(stream, self._answer(request, claims))
                    self._served_s += time.thread_time() - began
        except (ConnectionEnded, OSError, msgspec.DecodeError):
            pass  # the other side went; nothing is owed to it
        finally:
            self._connections.discard(stream)
            self._give_back(claims)

    def _give_back(self, claims: set[str]) -> None:
        """What a connection claimed; a plane that is closing ends every lease anyway."""
        with suppress(StoreError):
            for claim in () if self._closed.is_set() else claims:
                self.host.release(claim)

    def _greet(self, stream: socket.socket) -> None:
        """The token first, then where the blocks are."""
        if not hmac.compare_digest(greeting_of(receive(stream)).encode(), self.token.encode()):
            send(stream, error_frame(InputError("the token is wrong; use the whole address that the plane gives")))
            raise ConnectionEnded("wrong token")
        send(stream, ["ok", self.host.storage.location])

    def _answer(self, request: bytes, claims: set[str]) -> list[Any]:
        try:
            method, arguments = request_of(request)
            found = getattr(self.host, method)
            value = found(*arguments) if callable(found) else found
        except Exception as error:  # whatever it is, the caller sees it, and the connection goes on
            return error_frame(error)
        if method == "claim" and value is not None:
            claims.add(value.claim)
        return ["ok", value]
