"""The command studio: what it is opened with, and a server that a kill cannot harm."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from http.cookiejar import CookieJar

import pytest
from typer.testing import CliRunner

from leapfactual.cli import app
from leapfactual.errors import InputError, MissingData, MissingExtra


def run(*words):
    result = CliRunner().invoke(app, ["studio", *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("digits", "photos"), InputError, "brings its own pictures"),
        (("--oracle", "models.py:f"), InputError, "brings its own pictures"),
        (("my-bundle",), InputError, "which pictures"),
        (("my-bundle", "photos"), MissingData, "my-bundle"),
        (("--device", "hpu"), InputError, "cannot be used"),
        (("--host", "256.1.1.1"), InputError, "cannot be listened on"),
    ],
)
def test_what_is_off_is_said_in_a_sentence(tmp_path, monkeypatch, words, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        run(*words, "--no-browser")


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    module = sys.modules["leapfactual.cli.studio"]
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'leapfactual\[studio\]'"):
        run()


class Server:
    """The command in a process of its own, and a client with its cookie."""

    def __init__(self, folder, port=0):
        words = ["studio", "--no-browser", "--port", port, "--kept", folder / "kept"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leapfactual", *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        for line in self.process.stdout:
            if found := re.search(r"(http://[^/]+)/open/\S+", line):
                self.home, self.url = found[1], found[0]
                break
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self.client = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
        self.client.open(self.url).read()

    def stop(self, number):
        self.process.send_signal(number)
        with self.process as process:
            return process.wait(20)

    def post(self, path, text):
        headers = {"origin": self.home, "content-type": "application/json"}
        request = urllib.request.Request(self.home + path, text.encode(), headers)
        return self.client.open(request).read().decode()


def test_what_is_kept_survives_a_kill(tmp_path):
    server = Server(tmp_path)
    walk = '{"browser": "b", "key": "0", "target": 3, "position": 0, "cells": ""}'
    answer = re.search(r'"answer": "(\w+)"', server.post("/walk", walk))[1]
    server.post("/keep", f'{{"answer": "{answer}", "note": "mine"}}')
    server.stop(signal.SIGKILL)
    again = Server(tmp_path)
    assert '"note":"mine"' in again.client.open(again.home + "/kept").read().decode()
    assert again.url != server.url.replace(server.home, again.home), "the word is another one"
    started = time.perf_counter()
    assert again.stop(signal.SIGINT) == 0
    assert time.perf_counter() - started < 10


def test_a_port_that_is_taken_is_named(tmp_path):
    server = Server(tmp_path)
    port = server.home.rpartition(":")[2]
    try:
        with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be listened on"):
            run("--no-browser", "--port", port, "--kept", tmp_path / "other")
    finally:
        server.stop(signal.SIGKILL)
