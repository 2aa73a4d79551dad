"""The routes: only what should pass passes."""

import asyncio
import itertools
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from starlette.datastructures import Headers
from starlette.testclient import TestClient

import leapfactual.people
from leapfactual.people import campaigns, exclusion, votes
from leapfactual.people.store import tables as t
from leapfactual.people.store.database import Unavailable
from leapfactual.people.web.app import MAX_BODY_BYTES, OWNER, VOTER, application, shortcut_keys
from leapfactual.people.worker import Worker
from leapfactual.web.guard import RateLimiter
from tests.people.crowd import Clock

HOME = "http://localhost"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def served(campaign):
    """Makes a campaign with two people, whose first pictures are asked about."""
    made = campaign(name="a campaign")
    made.ada, made.ben = (campaigns.invite(made.db, name) for name in ("Ada", "Ben"))
    worker, clock = Worker(made.db), Clock()
    while worker.once(clock()):
        pass
    made.app = application(made.db, limiter=RateLimiter(burst=10_000))

    def client(token=None, owner=None, **options):
        found = TestClient(
            made.app, base_url=HOME, follow_redirects=False, raise_server_exceptions=True
        )
        if token:
            found.cookies.set(VOTER, token)
        if owner:
            found.cookies.set(OWNER, owner)
        found.headers["origin"] = HOME
        return found

    made.client = client
    return made


def offered(client):
    page = client.get("/task").text
    return re.search(r'name="key" value="([0-9a-f]{32})"', page)[1]


def vote_count(db):
    with db.read() as c:
        return c.execute(select(func.count()).select_from(t.vote)).scalar_one()


def test_a_person_joins_votes_and_is_thanked(served):
    client = served.client()
    assert client.get("/task").status_code == 401
    page = client.get(f"/join/{served.ada}")
    assert page.status_code == 200
    assert "synthetic" in page.text
    assert VOTER not in client.cookies, "a link that is only looked at does nothing"
    joined = client.post("/join", data={"token": served.ada})
    assert joined.status_code == 303
    cookie = joined.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    key = offered(client)
    assert client.get(f"/image/{key}").content.startswith(b"\x89PNG")
    done = client.post("/vote", data={"key": key, "answer": "4"})
    assert (done.status_code, done.headers["location"]) == (303, "/task")
    assert vote_count(served.db) == 1
    assert "Thank you: 1 answer so far" in client.get("/task").text
    again = client.post("/vote", data={"key": key, "answer": "4"})
    assert again.status_code == 303
    assert client.post("/vote", data={"key": key, "answer": "5"}).status_code == 409
    assert vote_count(served.db) == 1


ROUTES = {
    "/": ("GET", None),
    "/alive": ("GET", None),
    "/join/{token}": ("GET", None),
    "/join": ("POST", None),
    "/task": ("GET", "voter"),
    "/image/{key}": ("GET", "voter"),
    "/vote": ("POST", "voter"),
    "/owner": ("GET", "owner"),
    "/owner/join/{owner}": ("GET", None),
    "/owner/join": ("POST", None),
    "/owner/run/1": ("GET", "owner"),
    "/owner/image/{digest}": ("GET", "owner"),
    "/owner/picture/1": ("GET", "owner"),
    "/owner/adjudicate": ("POST", "owner"),
    "/owner/pause": ("POST", "owner"),
    "/static/style.css": ("GET", None),
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
HOSTS = ("localhost", "127.0.0.1:8000", "[::1]:8000", "evil.example", "localhost.evil.example", "")
ORIGINS = ("own", "https://evil.example", "null", None)
TOKENS = ("none", "voter", "owner", "wrong", "voided")


async def ask(app, method, path, headers, form):
    """Sends a request to an application, without a client or a server between the two."""
    body = urlencode(form).encode() if form else b""
    if form:
        headers |= FORM | {"content-length": str(len(body))}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }
    coming, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive():
        return coming.pop() if coming else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    text = b"".join(message.get("body", b"") for message in rest).decode(errors="replace")
    return start["status"], Headers(raw=start["headers"]), text


def test_only_what_should_pass_passes(served):
    voided = campaigns.invite(served.db, "Cleo")
    exclusion.void(served.db, "Cleo")
    key = offered(served.client(served.ada))
    with served.db.read() as c:
        digest = c.execute(select(t.run.c.asset).limit(1)).scalar_one()
    forms = {
        "/join": {"token": served.ada},
        "/owner/join": {"token": served.token},
        "/vote": {"key": key, "answer": "4"},
        "/owner/adjudicate": {"task": "1", "answer": "4"},
        "/owner/pause": {"paused": "0"},
    }
    cookies = {
        "none": {},
        "voter": {VOTER: served.ada},
        "owner": {OWNER: served.token},
        "wrong": {VOTER: "x" * 43, OWNER: served.ada},
        "voided": {VOTER: voided, OWNER: voided},
    }

    async def check(route, method, host, origin, token):
        path = route.format(token=served.ada, owner=served.token, key=key, digest=digest)
        headers = {"host": host}
        if cookies[token]:
            headers["cookie"] = "; ".join(f"{k}={v}" for k, v in cookies[token].items())
        if origin is not None:
            headers["origin"] = f"http://{host}" if origin == "own" else origin
        form = forms.get(route) if method == "POST" else None
        status, got, text = await ask(served.app, method, path, headers, form)
        wanted, who = ROUTES[route]
        case = (route, method, host, origin, token, status)
        passes = False
        if host not in HOSTS[:3]:
            assert status == 400, case
            assert method == "HEAD" or "--allow-host" in text
        elif method not in ("GET", "HEAD") and origin != "own":
            assert status == 403, case
        elif method != wanted and (method, wanted) != ("HEAD", "GET"):
            assert status == 405, case
        elif who is not None and token != who:
            assert status == 401, case
        else:
            assert status in (200, 303, 422), case
            passes = True
        assert got["x-content-type-options"] == "nosniff", case
        assert "default-src 'none'" in got["content-security-policy"], case
        assert "access-control-allow-origin" not in got, case
        return passes

    async def check_all():
        cases = itertools.product(ROUTES, METHODS, HOSTS, ORIGINS, TOKENS)
        return sum([await check(*case) for case in cases])

    assert asyncio.run(check_all()) > 100


def test_a_picture_is_for_whom_it_was_given_to(served):
    ada, ben = served.client(served.ada), served.client(served.ben)
    key = offered(ada)
    assert ada.get(f"/image/{key}").status_code == 200
    assert ben.get(f"/image/{key}").status_code == 404
    assert ben.post("/vote", data={"key": key, "answer": "4"}).status_code == 403
    for other in ("1", "0" * 32, "..%2f..%2fetc%2fpasswd", "' OR 1=1 --"):
        assert ada.get(f"/image/{other}").status_code == 404
    assert vote_count(served.db) == 0


BODIES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(lambda s: s.encode()),
    st.lists(
        st.tuples(st.sampled_from(["key", "answer", "token", "x"]), st.text(max_size=40)),
        max_size=12,
    ).map(lambda pairs: "&".join(f"{k}={v}" for k, v in pairs).encode()),
)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(BODIES, st.sampled_from(["/vote", "/join", "/owner/join", "/owner/pause"]))
def test_no_body_breaks_it(served, body, path):
    client = served.client(served.ada, served.token)
    got = client.post(path, content=body, headers=FORM)
    assert got.status_code in (303, 400, 403, 404, 409, 422)
    assert vote_count(served.db) == 0


def test_a_body_that_does_not_end_is_cut_off(served):
    client = served.client(served.ada)

    def endless():
        for _ in range(10_000):
            yield b"x" * 1024

    assert client.post("/vote", content=endless(), headers=FORM).status_code == 413
    headers = {**FORM, "content-length": str(MAX_BODY_BYTES + 1)}
    assert client.post("/vote", content=b"x", headers=headers).status_code == 413
    assert client.post("/vote", json={"key": "x"}).status_code == 415


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=1>', "{{7777*7777}}"]
)
def test_names_and_labels_are_text(campaign, name):
    classes = tuple(f"{name}{k}" for k in range(10))
    made = campaign(name=name, question=name, classes=classes)
    token = campaigns.invite(made.db, name)
    worker, clock = Worker(made.db), Clock()
    while worker.once(clock()):
        pass
    client = TestClient(application(made.db), base_url=HOME)
    client.cookies.set(VOTER, token)
    client.cookies.set(OWNER, made.token)
    for path in ("/task", "/owner", "/owner/run/1", f"/join/{token}"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "60481729" not in page


def test_who_is_too_fast_waits(campaign):
    made = campaign()
    token = campaigns.invite(made.db, "Ada")
    now = [0.0]
    app = application(made.db, limiter=RateLimiter(burst=3, rate=1.0, clock=lambda: now[0]))
    client = TestClient(app, base_url=HOME)
    client.cookies.set(VOTER, token)
    assert [client.get("/task").status_code for _ in range(5)] == [200] * 3 + [429] * 2
    now[0] = 1.5
    assert client.get("/task").status_code == 200


def test_a_full_disk_acknowledges_nothing(served, monkeypatch):
    client = served.client(served.ada)
    key = offered(client)

    def full(*_):
        raise Unavailable("the database failed (disk full).")

    monkeypatch.setattr(votes, "vote", full)
    got = client.post("/vote", data={"key": key, "answer": "4"})
    assert got.status_code == 503
    assert "not stored" in got.text
    monkeypatch.undo()
    assert client.post("/vote", data={"key": key, "answer": "4"}).status_code == 303


def test_the_page_does_not_say_what_it_is_after(served):
    """Neither the target, nor the leap, nor whether the answer is known."""
    page = served.client(served.ada).get("/task").text
    page = re.sub(r"<button.*?</button>", "", page)
    page = re.sub(r"[0-9a-f]{32}", "", page)
    assert not re.search(r"target|leap|gold|frame|segment|run\b|task\b", page.split("<main>")[1])


def test_keys_are_letters_where_that_is_possible():
    assert shortcut_keys([str(k) for k in range(10)]) == [str(k) for k in range(10)]
    assert shortcut_keys(["U", "X"]) == ["1", "2"]
    assert shortcut_keys([f"class {k}" for k in range(11)])[8:] == ["9", "", ""]


WITHOUT_TORCH = """
import sys, types

# The package itself imports torch, so a stand-in takes its place: only its folder is the real one.
package = types.ModuleType("leapfactual")
package.__path__ = [sys.argv[1]]
sys.modules["leapfactual"] = package
# None in sys.modules makes an import fail.
sys.modules |= dict.fromkeys(["torch", "safetensors", "leapfactual.explainer"])
import leapfactual.people.web.server
from leapfactual import people
people.invite, people.overview, people.Rule
print(*sorted(name for name in sys.modules if name.startswith("leapfactual.")))
"""


def test_the_web_server_needs_no_torch():
    folder = Path(leapfactual.people.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    assert "leapfactual.people.web.app" in imported
    ours = ("leapfactual.people", "leapfactual.web")
    beyond = {name for name in imported if not name.startswith(ours)}
    assert beyond == {"leapfactual.errors", "leapfactual.explainer"}, "the latter is blocked"
