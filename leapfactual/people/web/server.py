"""The server: the page on a socket, and a worker beside it."""

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import uvicorn

from ...errors import InputError
from ..store.database import Database
from .app import application


def serve(
    db: Database,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    hosts: Iterable[str] = (),
    secure: bool = False,
    worker: bool = True,
    bundle: str | Path | None = None,
    device: str = "cpu",
    on_start: Callable[[str], object] = lambda _: None,
) -> None:
    """Serves a campaign until Ctrl-C, and does its jobs in a process beside.

    Arguments:
        db: The database.
        host: The address to listen on.
        port: The port; 0 for one that is free.
        hosts: The names that the page may be called by, besides those of this computer.
        secure: Whether the page is reached by https alone.
        worker: Whether to do the jobs, too.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
        on_start: Called with the address once it is listened on.
    """
    app = application(db, hosts=hosts, secure=secure)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        if worker:
            from ..worker import worker_process

            stack.enter_context(worker_process(db, bundle, device))
        on_start(f"http://{host}:{listening.getsockname()[1]}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be listened on ({_reason(error)}). Give another --port or "
            "--host."
        ) from error


def _reason(error: OSError) -> str:
    return str(error) if error.errno is None or error.errno < 0 else os.strerror(error.errno)
