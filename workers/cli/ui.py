"""``opd ui``: a local page over a run."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("ui", epilog="Example: opd ui runs/quickstart --port 8765")(ui)


def ui(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a store directory or a redis:// URL.")],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0 takes a free one.")
    ] = 0,
) -> None:
    """Show a run in the browser: curves, timeline, samples, tokens, SQL. Only on this machine, read-only, live."""
    import socket

    import uvicorn

    from dataplane.inspector.cookbook import cookbook
    from dataplane.inspector.server import build_app
    from schemas.errors import InputError
    from workers.cli.stores import open_store, store_of

    with open_store(run) as plane, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            raise InputError(f"--port {port}: {error.strerror}; give another, or leave it out") from None
        typer.echo(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        name = plane.url if "://" in run else run  # a URL without its password
        page = build_app(plane, store_of(run), name, cookbook())
        settings = uvicorn.Config(page, log_level="warning", lifespan="off", ws="none")
        uvicorn.Server(settings).run(sockets=[listening])
