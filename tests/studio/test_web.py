"""The routes: who may come in, what is refused, and answers as server-sent events."""

import io
import json
import threading

import pytest
from PIL import Image

from leapfactual.imaging import to_pil
from leapfactual.pretrained import load
from leapfactual.studio.kept import Kept
from leapfactual.studio.web.app import MAX_BYTES, MAX_QUESTION, application
from leapfactual.studio.worker import Worker
from tests.studio.conftest import COOKIE, TOKEN

pytest.importorskip("starlette", reason="STARLETTE IS MISSING: THE STUDIO IS NOT TESTED")
from starlette.testclient import TestClient

HOME = "http://127.0.0.1:8123"
ORIGIN = {"origin": HOME}
QUESTION = {"browser": "b", "key": "0", "target": 3, "position": 0, "cells": ""}


@pytest.fixture
def client(app):
    with TestClient(app, HOME, cookies={COOKIE: TOKEN}, headers=ORIGIN) as client:
        yield client


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def digit(n=0):
    file = io.BytesIO()
    to_pil(load().digits.images[n]).save(file, format="PNG")
    return file.getvalue()


def test_the_printed_address_opens_the_page(app):
    with TestClient(app, HOME) as client:
        response = client.get(f"/open/{TOKEN}", follow_redirects=False)
        assert response.status_code == 303
        assert response.headers["location"] == "/"
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        page = client.get("/")
        assert page.status_code == 200
        assert "a small convolutional network" in page.text


PRIVATE = ("/", "/picture/0", "/kept", "/kept.html", "/kept.zip", "/kept/x.png")
POSTS = ("/look", "/walk", "/others", "/bring", "/keep", "/remove")


@pytest.mark.parametrize("cookies", [{}, {COOKIE: "another"}, {"leapfactual": TOKEN}])
def test_without_the_token_nothing_is_shown(app, cookies):
    with TestClient(app, HOME, cookies=cookies, headers=ORIGIN) as client:
        for path in PRIVATE:
            assert client.get(path).status_code == 401, path
        for path in POSTS:
            assert client.post(path, json=QUESTION).status_code == 401, path
        assert client.get("/open/wrong").status_code == 404
        page = client.get("/", headers={"accept": "text/html"})
        assert "that the terminal printed" in page.text


def test_other_hosts_and_origins_are_refused(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    for origin in ("http://evil.example", "http://127.0.0.1:9", "null", HOME + ".evil.example"):
        assert client.post("/look", json={}, headers={"origin": origin}).status_code == 403
    assert client.post("/look", json={}, headers={"origin": ""}).status_code == 403


def test_nothing_comes_from_elsewhere_and_nothing_can_frame_the_page(client):
    headers = client.get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    page = client.get("/").text
    assert (
        "http" not in page.replace("https://", "http").split('<script type="application/json"')[0]
    )
    for name in ("studio.js", "studio.css", "cards.js", "page.css"):
        assert client.get(f"/static/{name}").status_code == 200
    for name in ("index.html", "..%2fapp.py", "app.py", "refusal.html"):
        assert client.get(f"/static/{name}").status_code == 404


def test_a_walk_streams_the_position_that_was_asked_for_first(client, studio):
    answer = events(client.post("/walk", json=QUESTION | {"position": 2}))
    found = [event for event in answer if event["event"] == "found"]
    assert found[0]["position"] == 2
    assert sorted(event["position"] for event in found) == [*range(len(studio.positions))]
    distances = [abs(event["position"] - 2) for event in found]
    assert distances == sorted(distances), "the nearest are likeliest to be looked at next"


def test_looking_and_other_ways(client):
    (seen,) = events(client.post("/look", json={"browser": "b", "key": "0"}))
    assert seen["recognized"] == 7
    (others,) = events(client.post("/others", json=QUESTION | {"seed": 1}))
    assert len(others["found"]) == 4


@pytest.mark.parametrize(
    ("path", "question", "code", "message"),
    [
        ("/walk", QUESTION | {"target": 10}, 422, "There is no class 10"),
        ("/walk", QUESTION | {"position": 99}, 422, "The dial has 6 positions"),
        ("/walk", QUESTION | {"cells": "zz"}, 422, "28 × 28 cells"),
        ("/walk", QUESTION | {"key": "b1"}, 404, "no longer here"),
        ("/walk", QUESTION | {"target": True}, 400, "target (int)"),
        ("/walk", QUESTION | {"target": 1.5}, 400, "target (int)"),
        ("/walk", QUESTION | {"more": 1}, 400, "This question must have"),
        ("/walk", {}, 400, "This question must have"),
        ("/walk", [], 400, "This question must have"),
        ("/walk", QUESTION | {"cells": "0" * MAX_QUESTION}, 413, "bytes"),
        ("/others", QUESTION, 400, "seed (int)"),
        ("/look", {"browser": "b", "key": "../x"}, 404, "no longer here"),
        ("/keep", {"answer": "x", "note": ""}, 404, "Ask again"),
        ("/remove", {"key": "../../x"}, 404, "not kept"),
    ],
)
def test_questions_that_are_off_are_refused_in_a_sentence(client, path, question, code, message):
    response = client.post(path, json=question)
    assert response.status_code == code
    assert message in response.json()["error"]


def test_what_is_no_json_is_refused(client):
    assert client.post("/walk", content=b"{}").status_code == 415
    json_type = {"content-type": "application/json"}
    for content in (b"", b"{", b"\xff", b"[" * 10_000):
        assert client.post("/walk", content=content, headers=json_type).status_code == 400


def test_pictures_are_taken_in_and_too_large_ones_are_not(client, studio):
    response = client.post("/bring", content=digit(), headers={"x-name": "my%20seven"})
    key = response.json()["key"]
    assert response.json()["name"] == "my seven"
    (seen,) = events(client.post("/look", json={"browser": "b", "key": key}))
    assert seen["recognized"] == 7
    assert Image.open(io.BytesIO(client.get(f"/picture/{key}").content)).size == (28, 28)
    before = len(studio.gallery.brought)
    response = client.post("/bring", content=b"<script>", headers={"x-name": "x.png"})
    assert response.status_code == 422
    assert "is no PNG, JPEG, WEBP or TIFF image" in response.json()["error"]

    def stream():
        for _ in range(MAX_BYTES // 2**20 + 1):
            yield bytes(2**20)

    assert client.post("/bring", content=stream()).status_code == 413
    assert len(studio.gallery.brought) == before


def test_answers_are_kept_listed_exported_and_removed(client, kept):
    answer = events(client.post("/walk", json=QUESTION))[0]["answer"]
    item = client.post("/keep", json={"answer": answer, "note": "<i>so</i>"}).json()
    assert Kept(kept.folder).items() == [item], "it is on disk when this is answered"
    assert client.get("/kept").json() == [item]
    key = item["key"]
    assert client.get(f"/kept/{key}.png").headers["content-type"] == "image/png"
    exported = client.get("/kept.html")
    assert "attachment" in exported.headers["content-disposition"]
    assert "\\u003ci>so" in exported.text
    for path in ("/kept.zip", f"/kept/{key}.safetensors"):
        response = client.get(path)
        assert response.status_code == 200
        assert "attachment" in response.headers["content-disposition"]
    assert client.get(f"/kept/{key}.json").status_code == 404
    assert client.get("/kept/..%2f..%2fx.png").status_code == 404
    assert client.post("/remove", json={"key": key}).status_code == 200
    assert client.get("/kept").json() == []


def test_where_many_wait_already_it_says_so(studio, kept):
    gate = threading.Event()

    def waits():
        gate.wait(10)
        yield

    worker = Worker(max_waiting=1)
    worker.submit(waits(), lambda _: None, owner="x")
    while worker.running is None:
        pass
    worker.submit(waits(), lambda _: None, owner="y")
    app = application(studio, kept, token=TOKEN, cookie=COOKIE, worker=worker)
    with TestClient(app, HOME, cookies={COOKIE: TOKEN}, headers=ORIGIN) as client:
        response = client.post("/look", json={"browser": "b", "key": "0"})
    gate.set()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert "Try again in a moment" in response.json()["error"]


def test_an_error_of_the_classifier_shows_no_path_and_no_traceback(studio, kept, monkeypatch):
    app = application(studio, kept, token=TOKEN, cookie=COOKIE)

    def broken(x):
        raise RuntimeError("/home/me/models.py is broken")

    monkeypatch.setattr(studio, "classifier", broken)
    with TestClient(app, HOME, cookies={COOKIE: TOKEN}, headers=ORIGIN) as client:
        response = client.post("/look", json={"browser": "b", "key": "0"})
    assert response.status_code == 422
    assert "home" not in response.text
    assert "The terminal" in response.json()["error"]
