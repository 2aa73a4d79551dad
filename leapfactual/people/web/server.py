"""The server: the page on a socket, and a worker beside it."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import uvicorn

from ...web.listen import listen
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
        listening = stack.enter_context(listen(host, port))
        if worker:
            from ..worker import worker_process

            stack.enter_context(worker_process(db, bundle, device))
        on_start(f"http://{host}:{listening.getsockname()[1]}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
