"""The routes. Questions are POSTs whose answers come as server-sent events.

==============================  ===========================================================
``/open/TOKEN``, ``/``          the address that is printed, and the page
``/picture/KEY``                a picture, as a PNG
``/bring``                      takes in a picture
``/look``, ``/walk``, ``/others``  questions: what is it, what if, in which other ways
``/keep``, ``/kept`` …          keeps an answer; lists, shows, removes and exports what is kept
==============================  ===========================================================
"""

import io
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from ...errors import LeapError, MissingData
from ...imaging import to_pil
from ...report.colors import PHOTO_CHANGE, PHOTO_SIDE
from ...report.page import read_part, script_json, style_sheet
from ...web.guard import Guard
from ..kept import MAX_NOTE, Kept
from ..studio import Event, Events, Studio
from ..worker import Busy, Worker, answer

HERE = Path(__file__).parent
# A photograph as a camera takes it; a question is far shorter.
MAX_BYTES, MAX_QUESTION = 20 * 2**20, 16_384
SMALL_SIDE, MAX_SIDE = 96, 1024
# Pictures of a page come from its own server, from itself, and from what somebody drops on it.
POLICY = "img-src 'self' data: blob:; connect-src 'self'"
NOT_OPENED = (
    "Open the address that the terminal printed when the studio was started. If it was started "
    "again since, the address is another one."
)
BUSY = "Many questions wait already. Try again in a moment."


class Site:
    """Creates what the routes have in common.

    Arguments:
        studio: What is explained.
        kept: What is kept.
        token: Who knows it may come in.
        cookie: The name of the cookie that holds it; another one for every port.
        worker: Who answers questions.
    """

    def __init__(
        self, studio: Studio, kept: Kept, token: str, cookie: str, worker: Worker
    ) -> None:
        self.studio, self.kept, self.token, self.cookie = studio, kept, token, cookie
        self.worker = worker
        self.files = {
            "cards.js": ("text/javascript", read_part("cards.js")),
            "page.css": ("text/css", style_sheet()),
            **{
                path.name: (
                    "text/javascript" if path.suffix == ".js" else "text/css",
                    path.read_text(encoding="utf-8"),
                )
                for path in (HERE / "static").glob("studio.*")
            },
        }

    def page(self) -> str:
        """Returns the page."""
        about = self.studio.describe()
        head = {
            "title": "Studio",
            "kind": "images",
            "cards": [],
            "columns": [],
            "std": [],
            "plans": [],
            "asked": "",
            "photo": {"side": PHOTO_SIDE, "change": PHOTO_CHANGE},
            "max note": MAX_NOTE,
            **about,
        }
        template = (HERE / "static" / "index.html").read_text(encoding="utf-8")
        template = template.replace("__DIALOGS__", read_part("dialogs.html"))
        return template.replace("__DATA__", script_json(head))

    def check(self, request: Request) -> None:
        """Refuses whoever does not know the token."""
        given = request.cookies.get(self.cookie, "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            raise HTTPException(401, NOT_OPENED)


def site(request: Request) -> Site:
    """Returns what the routes have in common, to whoever may come in."""
    shared: Site = request.app.state.site
    shared.check(request)
    return shared


async def open_page(request: Request) -> Response:
    """Lets in whoever knows the token."""
    shared: Site = request.app.state.site
    given = request.path_params["token"]
    if not secrets.compare_digest(given.encode(), shared.token.encode()):
        raise HTTPException(404, NOT_OPENED)
    response = RedirectResponse("/", 303)
    response.set_cookie(shared.cookie, shared.token, httponly=True, samesite="strict")
    return response


async def page(request: Request) -> Response:
    """Shows the page."""
    return HTMLResponse(site(request).page())


async def file(request: Request) -> Response:
    """Gives a style or a script of the page, which are no secret."""
    shared: Site = request.app.state.site
    found = shared.files.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(found[1], media_type=found[0])


async def picture(request: Request) -> Response:
    """Shows a picture."""
    shared = site(request)
    key = request.path_params["key"]
    side = SMALL_SIDE if "small" in request.query_params else MAX_SIDE
    content = await run_in_threadpool(_png, shared.studio, key, side)
    return Response(content, media_type="image/png", headers={"cache-control": "private"})


def _png(studio: Studio, key: str, side: int) -> bytes:
    buffer, image = io.BytesIO(), to_pil(studio.gallery[key].x[0])
    image.thumbnail((side, side))
    image.save(buffer, format="PNG")
    return buffer.getvalue()


async def bring(request: Request) -> Response:
    """Takes in a picture; it is held in memory only."""
    shared = site(request)
    name = unquote(request.headers.get("x-name", ""))
    content = await request.body()
    taken = await run_in_threadpool(shared.studio.gallery.bring, content, name)
    return JSONResponse({"key": taken.key, "name": taken.name})


async def read_question(request: Request, **kinds: type) -> dict[str, Any]:
    """Returns the fields of a question, each of which must be there and of its type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise HTTPException(415, "JSON is expected.")
    body = await request.body()
    if len(body) > MAX_QUESTION:
        raise HTTPException(413, f"At most {MAX_QUESTION} bytes are taken.")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "This question cannot be read.") from error
    # True and False are whole numbers in Python.
    fits = isinstance(found, dict) and set(found) == set(kinds)
    if not fits or any(type(found[name]) is not kind for name, kind in kinds.items()):
        wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
        raise HTTPException(400, f"This question must have {wanted}.")
    return {name: found[name] for name in kinds}


async def look(request: Request) -> Response:
    """Says what the classifier says of a picture."""
    shared = site(request)
    asked = await read_question(request, browser=str, key=str)
    events = shared.studio.look(asked["key"])
    return await _stream([lambda: events], shared.worker, asked["browser"])


async def walk(request: Request) -> Response:
    """Walks to another class: first as asked, then at all other positions of the dial."""
    shared = site(request)
    asked = await read_question(request, browser=str, key=str, target=int, position=int, cells=str)
    key, target, cells = asked["key"], asked["target"], asked["cells"]
    first = asked["position"]
    # The nearest positions are the likeliest to be looked at next.
    later = sorted(range(len(shared.studio.positions)), key=lambda n: abs(n - first))
    walks = [
        partial(shared.studio.walk, key, target, number, cells)
        for number in dict.fromkeys((first, *later))
    ]
    return await _stream(walks, shared.worker, asked["browser"])


async def others(request: Request) -> Response:
    """Finds several different counterfactuals."""
    shared = site(request)
    asked = await read_question(
        request, browser=str, key=str, target=int, position=int, cells=str, seed=int
    )
    events = shared.studio.other_ways(
        asked["key"],
        asked["target"],
        asked["position"],
        asked["seed"] % 2**31,
        asked["cells"],
    )
    return await _stream([lambda: events], shared.worker, asked["browser"])


async def _stream(
    questions: Sequence[Callable[[], Events]], worker: Worker, owner: str
) -> Response:
    """Answers questions one after the other; only the first is urgent.

    The first event is waited for, so that a refusal is a refusal and no stream.
    """

    async def events() -> AsyncGenerator[Event, None]:
        for n, question in enumerate(questions):
            async for event in answer(worker, question(), owner, urgent=n == 0):
                yield event

    stream = events()
    # None where another question of the same browser came before the answer began.
    first = await anext(stream, None)

    async def lines() -> AsyncIterator[str]:
        try:
            if first is not None:
                yield _line(first)
            async for event in stream:
                yield _line(event)
        except Busy:
            yield _line({"event": "error", "text": BUSY})
        except LeapError as error:
            yield _line({"event": "error", "text": _sentence(error)})
        finally:
            await stream.aclose()

    return StreamingResponse(lines(), media_type="text/event-stream")


def _line(event: Event) -> str:
    return f"data: {json.dumps(event, allow_nan=False)}\n\n"


async def keep(request: Request) -> Response:
    """Keeps an answer; when this is answered, it is on disk."""
    shared = site(request)
    asked = await read_question(request, answer=str, note=str)
    e, name = shared.studio.answer(asked["answer"])
    return JSONResponse(await run_in_threadpool(shared.kept.add, e, name, asked["note"]))


async def kept_list(request: Request) -> Response:
    """Lists what is kept."""
    return JSONResponse(await run_in_threadpool(site(request).kept.items))


async def kept_file(request: Request) -> Response:
    """Shows or exports one that is kept."""
    shared, key = site(request), request.path_params["key"]
    if request.path_params["ending"] == "png":
        content = await run_in_threadpool(shared.kept.picture, key)
        return Response(content, media_type="image/png")
    if request.path_params["ending"] != "safetensors":
        raise HTTPException(404)
    content = await run_in_threadpool(shared.kept.file, key)
    return _download(content, f"{key}.safetensors", "application/octet-stream")


async def remove(request: Request) -> Response:
    """Removes one that is kept."""
    shared = site(request)
    asked = await read_question(request, key=str)
    await run_in_threadpool(shared.kept.remove, asked["key"])
    return JSONResponse({})


async def kept_page(request: Request) -> Response:
    """Exports what is kept as one page."""
    shared = site(request)
    content = await run_in_threadpool(
        shared.kept.page, shared.studio.classes, shared.studio.generator
    )
    return _download(content, "kept.html", "text/html")


async def kept_archive(request: Request) -> Response:
    """Exports what is kept as pictures."""
    content = await run_in_threadpool(site(request).kept.archive)
    return _download(content, "kept.zip", "application/zip")


def _download(content: bytes, name: str, kind: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


# -- what goes wrong --


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


def _refusal(request: Request, code: int, text: str) -> Response:
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        template = (HERE / "static" / "refusal.html").read_text(encoding="utf-8")
        return HTMLResponse(template.replace("__TEXT__", text), code)
    return JSONResponse({"error": text}, code)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = str(error.detail)
    if text == HTTPStatus(error.status_code).phrase:
        text = "There is nothing to see here."
    return _refusal(request, error.status_code, text)


async def _wrong(request: Request, error: Exception) -> Response:
    code = 404 if isinstance(error, MissingData) else 422
    return JSONResponse({"error": _sentence(error)}, code)


async def _busy(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": BUSY}, 503, {"retry-after": "2"})


def application(
    studio: Studio,
    kept: Kept,
    *,
    token: str,
    cookie: str,
    hosts: Iterable[str] = (),
    worker: Worker | None = None,
) -> Starlette:
    """Returns the application.

    Arguments:
        studio: What is explained.
        kept: What is kept.
        token: Who knows it may come in.
        cookie: The name of the cookie that holds it.
        hosts: The names that it may be called by, besides those of this computer.
        worker: Who answers questions. Defaults to a thread of its own.
    """
    routes = [
        Route("/", page),
        Route("/open/{token}", open_page),
        Route("/static/{name}", file),
        Route("/picture/{key}", picture),
        Route("/bring", bring, methods=["POST"]),
        Route("/look", look, methods=["POST"]),
        Route("/walk", walk, methods=["POST"]),
        Route("/others", others, methods=["POST"]),
        Route("/keep", keep, methods=["POST"]),
        Route("/remove", remove, methods=["POST"]),
        Route("/kept", kept_list),
        Route("/kept.html", kept_page),
        Route("/kept.zip", kept_archive),
        Route("/kept/{key}.{ending}", kept_file),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=tuple(hosts), max_bytes=MAX_BYTES, policy=POLICY)],
        exception_handlers={HTTPException: _http, LeapError: _wrong, Busy: _busy},
    )
    app.state.site = Site(studio, kept, token, cookie, worker or Worker())
    return app
