"""The page of a run, served for a test."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from dataplane import open_plane
from dataplane.inspector.cookbook import cookbook
from dataplane.inspector.server import build_app

#: What a model might write to break a page.
NASTY = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'`${1}"


@contextlib.contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of the page over *run*, in a thread of this process."""
    with open_plane(run / "plane", mode="r") as plane, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app = build_app(plane, plane.url, "a <b>run</b>", cookbook())
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def fetch(url: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, body (JSON where it is JSON) and headers of an answer."""
    data = None if body is None else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"content-type": "application/json", **given})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, _body(response), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _body(error), dict(error.headers)


def _body(response: Any) -> Any:
    text = response.read().decode()
    return json.loads(text) if response.headers.get("content-type") == "application/json" else text
