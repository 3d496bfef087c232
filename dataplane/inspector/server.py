"""The local page over a run: loopback only, read-only, nothing fetched from anywhere else.

/                       the page                    /assets/NAME        its parts, from inside the package
/api/run                the run in numbers          /api/steps          metrics, and samples by step and agent
/api/timeline           what every worker did       /api/samples        a page of samples, filtered and sorted
/api/sample             one sample with its tokens  /api/cookbook       useful queries
/api/sql (POST)         a query, in a process of its own
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dataplane import DataPlane
from dataplane.inspector.pages import Pages
from dataplane.inspector.plain import to_json
from dataplane.inspector.queries import ask_apart
from schemas.errors import InputError, OpdError

#: Names under which a browser may reach the page; any other is somebody's trick (DNS rebinding).
HOSTS = ["127.0.0.1", "localhost", "[::1]"]

#: Scripts and styles come from here and nowhere else, nothing inline; the page talks to nobody but this server.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}

#: A longer query is not something that somebody typed.
_MOST_QUERY_BYTES = 100_000


def build_app(plane: DataPlane, url: str, name: str, cookbook: Sequence[dict[str, str]]) -> Starlette:
    """The page over *plane*, which is the store at *url* open for reading, called *name*."""
    pages = Pages(plane, name)

    def api(path: str, answer: Callable[[Request], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(_answered, lambda: (pages.follow(), answer(request))[1])

        return Route(path, endpoint, methods=["GET"])

    def timeline(request: Request) -> Any:
        return pages.timeline(_seconds(request, "start"), _seconds(request, "end"))

    routes = [
        Route("/", _page("index.html")),
        Route("/assets/{name}", _asset),
        api("/api/run", lambda request: pages.run()),
        api("/api/steps", lambda request: pages.steps()),
        api("/api/timeline", timeline),
        api("/api/samples", lambda request: pages.samples(request.query_params)),
        api("/api/sample", lambda request: pages.sample(_said(request, "partition"), _said(request, "id"))),
        api("/api/cookbook", lambda request: list(cookbook)),
        Route("/api/sql", _sql(url), methods=["POST"]),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False), Middleware(_Headers)]
    return Starlette(routes=routes, middleware=guards)


def _sql(url: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _json({"error": "expected application/json"}, 415)  # what another site's form cannot send
        body = await request.body()
        try:
            query = json.loads(body)["query"] if len(body) <= _MOST_QUERY_BYTES else None
        except (ValueError, KeyError, TypeError):
            query = None
        if not isinstance(query, str):
            return _json({"error": f'expected {{"query": text}} of at most {_MOST_QUERY_BYTES} bytes'}, 400)
        answer = await run_in_threadpool(ask_apart, url, query)
        return _json(answer, 400 if "error" in answer else 200)

    return endpoint


def _answered(work: Callable[[], Any]) -> Response:
    try:
        return _json(work())
    except InputError as error:
        return _json({"error": str(error)}, 400)
    except OpdError as error:
        return _json({"error": str(error)}, 503)


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _said(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise InputError(f"{name}: expected a value")
    return value


def _seconds(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise InputError(f"{name}: expected seconds since the epoch, got {text!r}") from None


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return _file(name)

    return endpoint


async def _asset(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    """A file of the assets folder; nothing else has a name that this finds."""
    there = {entry.name: entry for entry in files("dataplane.inspector").joinpath("assets").iterdir()}
    suffix = name.rpartition(".")[2]
    if name not in there or suffix not in _TYPES:
        return Response("not found", 404, media_type="text/plain")
    return Response(there[name].read_bytes(), media_type=_TYPES[suffix])


class _Headers:
    """Every answer carries ``HEADERS``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, receive, sending)
