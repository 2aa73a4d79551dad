"""The routes. Pages are forms; a vote is a POST that is answered with where to go on.

===============================  ==========================================================
``/join/TOKEN``, ``/join``       the invitation, and taking it up
``/task``, ``/image/KEY``        what to look at, and the picture
``/vote``                        the answer
``/owner/join/TOKEN``            the owner's link, and ``/owner`` what it leads to
``/owner/run/RUN``               the way of a run, with its votes
``/owner/adjudicate`` …          what the owner decides
===============================  ==========================================================
"""

import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import func, select
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ...errors import InputError
from ...web.guard import Guard, RateLimiter
from .. import assignment, campaigns, status, transitions, votes
from ..consensus import IMPLAUSIBLE, UNSURE
from ..store import tables as t
from ..store.assets import get_asset
from ..store.database import Database, Unavailable

HERE = Path(__file__).parent
VOTER, OWNER = "leapfactual", "leapfactual_owner"
# The longest form has two short fields.
MAX_BODY_BYTES = 16_384
COOKIE_SECONDS = 90 * 24 * 3600
NOT_INVITED = (
    "Open the link of your invitation first. If you have just done so, it is no longer valid, or "
    "this page is for https alone: ask whoever invited you."
)
REFRESH_SECONDS = 20

pages = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
)


class Site:
    """Creates what the routes have in common: the database, the pages, and who may see them.

    Arguments:
        db: The database.
        secure: Whether cookies are for https alone.
        limiter: How fast one person may go.
    """

    def __init__(
        self, db: Database, secure: bool = False, limiter: RateLimiter | None = None
    ) -> None:
        self.db, self.secure, self.limiter = db, secure, limiter or RateLimiter()
        with db.read() as c:
            self.campaign = transitions.get_campaign(c)
            self.prefix = len(common_folder(list(c.execute(select(t.run.c.name)).scalars())))
        self.classes: list[str] = list(self.campaign.classes)
        self.keys = shortcut_keys(self.classes)

    def page(self, name: str, code: int = 200, **content: object) -> HTMLResponse:
        """Renders a page."""
        html = pages.get_template(name).render(
            campaign=self.campaign.name,
            question=self.campaign.question,
            classes=self.classes,
            keys=self.keys,
            describe_answer=lambda answer: status.describe_answer(answer, self.classes),
            short=lambda name: name[self.prefix :],
            unsure=UNSURE,
            implausible=IMPLAUSIBLE,
            **content,
        )
        return HTMLResponse(html, code)

    def message(self, code: int, heading: str, text: str, again: str = "") -> HTMLResponse:
        """Renders a page with a message, and where to go on."""
        return self.page("message.html", code, heading=heading, text=text, again=again)

    async def voter(self, request: Request) -> int:
        """Returns who sends a request, or refuses."""
        token = request.cookies.get(VOTER, "")
        person = await run_in_threadpool(self._person, token) if token else None
        if person is None:
            raise HTTPException(401, NOT_INVITED)
        return person

    async def limited_voter(self, request: Request) -> int:
        """Returns who sends a request, or refuses, also whoever is too fast."""
        person = await self.voter(request)
        if not self.limiter.allows(person):
            raise HTTPException(429, "That was too fast. Wait a moment, then go on.")
        return person

    def _person(self, token: str) -> int | None:
        with self.db.read() as c:
            return campaigns.find_person(c, token)

    async def owner(self, request: Request) -> None:
        """Refuses whoever is not the owner."""
        token = request.cookies.get(OWNER, "")
        if not token or not await run_in_threadpool(self._owns, token):
            raise HTTPException(
                401, "Open the owner's link first; `leapfactual people owner` makes one."
            )

    def _owns(self, token: str) -> bool:
        with self.db.read() as c:
            return campaigns.is_owner(c, token)


def shortcut_keys(classes: Sequence[str]) -> list[str]:
    """Returns the key for each class: its name, where all have one letter, or 1 to 9.

    Example:
        >>> shortcut_keys(["cat", "dog"])
        ['1', '2']
    """
    names = [name.lower() for name in classes]
    if all(len(name) == 1 and name not in "ux" for name in names) and len(set(names)) == len(
        names
    ):
        return names
    return [str(k) if k <= 9 else "" for k in range(1, len(names) + 1)]


def common_folder(names: Sequence[str]) -> str:
    """Returns the folder that all files are in.

    Example:
        >>> common_folder(["photos/a/1.png", "photos/b/1.png"])
        'photos/'
    """
    folders = [name.split("/")[:-1] for name in names]
    both = zip(min(folders, default=[]), max(folders, default=[]), strict=False)
    return "".join(f"{one}/" for one, other in takewhile(lambda pair: pair[0] == pair[1], both))


def site(request: Request) -> Site:
    """Returns what the routes have in common."""
    shared: Site = request.app.state.site
    return shared


async def read_form(request: Request, *names: str) -> list[str]:
    """Returns the fields of a form, each of which must be there once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is expected.")
    try:
        text = (await request.body()).decode("ascii")
        found = parse_qs(text, keep_blank_values=True, strict_parsing=True, max_num_fields=10)
    except ValueError as error:
        raise HTTPException(400, "This form cannot be read.") from error
    if sorted(found) != sorted(names) or any(len(value) != 1 for value in found.values()):
        raise HTTPException(400, f"This form must have the fields {', '.join(names)}.")
    return [found[name][0] for name in names]


def parse_int(text: str) -> int:
    """Returns a whole number that a client sent, if it can be one of ours."""
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 9:
        raise HTTPException(400, "A number is expected.")
    return int(text)


def _redirect(place: str) -> RedirectResponse:
    return RedirectResponse(place, 303)


class Static(StaticFiles):
    """Serves files that a browser may keep for a while, so that the next picture comes sooner."""

    def file_response(self, *args: Any, **options: Any) -> Response:  # noqa: ANN401
        """Returns a file."""
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "max-age=600"
        return response


# -- those who vote --


async def home(request: Request) -> Response:
    """Shows where to begin."""
    for cookie, place in ((VOTER, "/task"), (OWNER, "/owner")):
        if request.cookies.get(cookie):
            return _redirect(place)
    return site(request).message(
        200, "Welcome", "To take part, open the link of your invitation in this browser."
    )


async def invitation(request: Request) -> Response:
    """Shows an invitation; nothing happens before it is taken up."""
    token, here = request.path_params["token"], site(request)
    if await run_in_threadpool(here._person, token) is None:
        raise HTTPException(404, "This invitation is not valid. Ask for another.")
    return here.page("join.html", token=token, place="/join")


async def join(request: Request) -> Response:
    """Takes up an invitation."""
    (token,) = await read_form(request, "token")
    here = site(request)
    if await run_in_threadpool(here._person, token) is None:
        raise HTTPException(404, "This invitation is not valid. Ask for another.")
    return _set_cookie(_redirect("/task"), VOTER, token, here.secure)


def _set_cookie(response: Response, name: str, token: str, secure: bool) -> Response:
    response.set_cookie(
        name, token, max_age=COOKIE_SECONDS, httponly=True, samesite="strict", secure=secure
    )
    return response


async def task(request: Request) -> Response:
    """Gives the person something to look at."""
    here = site(request)
    person = await here.limited_voter(request)
    offer = await run_in_threadpool(assignment.take, here.db, person, time.time())
    state = await run_in_threadpool(_state, here.db, person)
    late = request.query_params.get("late") == "1"
    if offer is not None:
        return here.page("task.html", offer=offer, late=late, **state)
    response = here.page("waiting.html", late=late, **state)
    if not state["done"]:
        response.headers["refresh"] = str(REFRESH_SECONDS)
    return response


def _state(db: Database, person: int) -> dict[str, Any]:
    """Returns how many answers a person has given, and whether more will be wanted."""
    own = select(func.count()).select_from(t.vote).where(t.vote.c.annotator_id == person)
    with db.read() as c:
        return {
            "given": c.execute(own).scalar_one(),
            "done": campaigns.is_finished(c),
            "paused": transitions.get_campaign(c).paused,
        }


async def image(request: Request) -> Response:
    """Shows a picture to whom it was given."""
    here = site(request)
    person = await here.voter(request)
    found = await run_in_threadpool(_leased_picture, here.db, request.path_params["key"], person)
    if found is None:
        raise HTTPException(404, "There is no such picture.")
    return _picture(found)


def _leased_picture(db: Database, key: str, person: int) -> tuple[str, bytes] | None:
    with db.read() as c:
        row = c.execute(
            select(t.task.c.asset)
            .join(t.lease, t.lease.c.task_id == t.task.c.id)
            .where(t.lease.c.key == key, t.lease.c.annotator_id == person)
        ).one_or_none()
        return None if row is None else get_asset(c, row.asset)


def _picture(found: tuple[str, bytes]) -> Response:
    return Response(
        found[1], media_type=found[0], headers={"cache-control": "private, max-age=3600"}
    )


async def vote(request: Request) -> Response:
    """Takes an answer; when this is answered with a redirection, it is on disk."""
    here = site(request)
    person = await here.limited_voter(request)
    key, answer = await read_form(request, "key", "answer")
    receipt = await run_in_threadpool(
        votes.vote, here.db, person, key, parse_int(answer), time.time()
    )
    return _redirect("/task" if receipt.counted else "/task?late=1")


# -- the owner --


async def owner_link(request: Request) -> Response:
    """Shows the owner's link; nothing happens before it is taken up."""
    token, here = request.path_params["token"], site(request)
    if not await run_in_threadpool(here._owns, token):
        raise HTTPException(404, "This is not the owner's link.")
    return here.page("join.html", token=token, place="/owner/join")


async def owner_join(request: Request) -> Response:
    """Takes up the owner's link."""
    (token,) = await read_form(request, "token")
    here = site(request)
    if not await run_in_threadpool(here._owns, token):
        raise HTTPException(404, "This is not the owner's link.")
    return _set_cookie(_redirect("/owner"), OWNER, token, here.secure)


async def owner(request: Request) -> Response:
    """Shows the status of the campaign."""
    here = site(request)
    await here.owner(request)
    seen = await run_in_threadpool(status.overview, here.db)
    runs = await run_in_threadpool(_runs, here.db)
    tally = await run_in_threadpool(status.tally, here.db, [task for task, _ in seen.stuck])
    decided = request.query_params.get("decided") == "1"
    return here.page("owner.html", seen=seen, runs=runs, tally=tally, decided=decided)


def _runs(db: Database) -> list[Any]:
    with db.read() as c:
        return list(c.execute(select(t.run).order_by(t.run.c.id)).all())


async def owner_run(request: Request) -> Response:
    """Shows the history of a run."""
    here = site(request)
    await here.owner(request)
    number = parse_int(request.path_params["run"])
    history = await run_in_threadpool(status.run_history, here.db, number)
    return here.page("run.html", run=history)


async def owner_image(request: Request) -> Response:
    """Shows any picture of the campaign."""
    here = site(request)
    await here.owner(request)
    digest = request.path_params["digest"]

    def find() -> tuple[str, bytes] | None:
        with here.db.read() as c:
            return get_asset(c, digest)

    found = await run_in_threadpool(find)
    if found is None or not found[0].startswith("image/"):
        raise HTTPException(404, "There is no such picture.")
    return _picture(found)


async def owner_picture(request: Request) -> Response:
    """Shows the picture of a task."""
    here = site(request)
    await here.owner(request)
    number = parse_int(request.path_params["task"])

    def find() -> tuple[str, bytes] | None:
        with here.db.read() as c:
            row = c.execute(select(t.task.c.asset).where(t.task.c.id == number)).one_or_none()
            return None if row is None else get_asset(c, row.asset)

    found = await run_in_threadpool(find)
    if found is None:
        raise HTTPException(404, "There is no such picture.")
    return _picture(found)


async def adjudicate(request: Request) -> Response:
    """Decides a picture that people do not agree on."""
    here = site(request)
    await here.owner(request)
    number, outcome = await read_form(request, "task", "answer")
    await run_in_threadpool(
        votes.adjudicate, here.db, parse_int(number), parse_int(outcome), time.time()
    )
    return _redirect("/owner?decided=1")


async def pause(request: Request) -> Response:
    """Stops giving out tasks, or resumes."""
    here = site(request)
    await here.owner(request)
    (paused,) = await read_form(request, "paused")
    await run_in_threadpool(campaigns.pause, here.db, paused == "1")
    return _redirect("/owner")


# -- what goes wrong --


def _next_link(request: Request) -> str:
    return "/owner" if request.url.path.startswith("/owner") else "/task"


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, text = error.status_code, str(error.detail)
    if text == HTTPStatus(code).phrase:
        text = "There is nothing to see here."
    invited = code != 401 and "/join" not in request.url.path
    response = site(request).message(code, "Sorry", text, _next_link(request) if invited else "")
    if code == 429:
        response.headers["retry-after"] = "5"
    response.headers.update(error.headers or {})
    return response


async def _conflict(request: Request, error: Exception) -> Response:
    return site(request).message(409, "Already stored", str(error), _next_link(request))


async def _refused(request: Request, error: Exception) -> Response:
    return site(request).message(403, "Sorry", str(error), _next_link(request))


async def _wrong(request: Request, error: Exception) -> Response:
    return site(request).message(422, "Sorry", str(error), _next_link(request))


async def _unavailable(request: Request, error: Exception) -> Response:
    text = "Nothing can be shown for the moment. Try again soon."
    if request.method == "POST":
        text = "Your answer was not stored. Go on in a moment, and give it again."
    response = site(request).message(503, "Not just now", text, _next_link(request))
    response.headers["retry-after"] = "5"
    return response


async def alive(request: Request) -> Response:
    """Answers that the server is there."""
    return PlainTextResponse("ok\n")


def application(
    db: Database,
    *,
    hosts: Iterable[str] = (),
    secure: bool = False,
    limiter: RateLimiter | None = None,
) -> Starlette:
    """Returns the application.

    Arguments:
        db: The database.
        hosts: The names that it may be called by, besides those of this computer.
        secure: Whether cookies are for https alone.
        limiter: How fast one person may go.
    """
    routes = [
        Route("/", home),
        Route("/alive", alive),
        Route("/join/{token}", invitation),
        Route("/join", join, methods=["POST"]),
        Route("/task", task),
        Route("/image/{key}", image),
        Route("/vote", vote, methods=["POST"]),
        Route("/owner", owner),
        Route("/owner/join/{token}", owner_link),
        Route("/owner/join", owner_join, methods=["POST"]),
        Route("/owner/run/{run}", owner_run),
        Route("/owner/image/{digest}", owner_image),
        Route("/owner/picture/{task}", owner_picture),
        Route("/owner/adjudicate", adjudicate, methods=["POST"]),
        Route("/owner/pause", pause, methods=["POST"]),
        Mount("/static", Static(directory=HERE / "static")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=tuple(hosts), max_bytes=MAX_BODY_BYTES)],
        exception_handlers={
            HTTPException: _http,
            votes.Conflict: _conflict,
            votes.Refused: _refused,
            InputError: _wrong,
            Unavailable: _unavailable,
        },
    )
    app.state.site = Site(db, secure, limiter)
    return app
