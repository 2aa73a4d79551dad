"""The server: the page on a socket of this computer."""

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

import uvicorn

from ...types import no_op
from ...web.listen import listen
from ..kept import Kept
from ..studio import Studio
from ..worker import Worker
from .app import application


def serve(
    studio: Studio,
    kept: Kept,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    hosts: Iterable[str] = (),
    on_start: Callable[[str], object] = no_op,
    before_each: Callable[[], object] = no_op,
) -> None:
    """Serves a studio until Ctrl-C.

    Arguments:
        studio: What is explained.
        kept: What is kept.
        host: The address to listen on.
        port: The port; 0 for one that is free.
        hosts: The names that the page may be called by, besides those of this computer.
        on_start: Called with the address to open, once it is listened on.
        before_each: Called before each question.
    """
    with listen(host, port) as listening:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(32)
        # Browsers send cookies to all ports of a computer.
        cookie = f"leapfactual_studio_{port}"
        worker = Worker(before_each=before_each)
        app = application(studio, kept, token=token, cookie=cookie, hosts=hosts, worker=worker)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        shown = f"[{host}]" if ":" in host else host
        on_start(f"http://{shown}:{port}/open/{token}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
