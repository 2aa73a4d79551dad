"""How soon the studio answers: clicks in a real browser, the dial, and twenty people at once.

Starts `leapfactual studio` on the digits that ship. In Debian's chromium, classes are clicked, and
it is timed until the answer is drawn; right after each click the dial is moved through all of its
positions. Then twenty clients ask questions for a minute, one after the other each, as fast as
they are answered.

    python -m benchmarks.studio --clicks 50 --people 20 --seconds 60
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles

import httpx
from playwright.sync_api import sync_playwright

# Clicks a class, and tells after how many milliseconds the answer has been drawn.
CLICK = """(k) => new Promise((done) => {
  const started = performance.now();
  const seen = new MutationObserver(() => {
    if (!document.querySelector("#cards article")) return;
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - started));
  });
  seen.observe(document.querySelector("#cards"), { childList: true });
  document.querySelectorAll(".class")[k].click();
})"""
# Moves the dial, and tells after how many milliseconds that answer has been drawn.
DIAL = """(position) => new Promise((done) => {
  const started = performance.now();
  const dial = document.querySelector("#dial");
  dial.value = position;
  dial.dispatchEvent(new Event("input"));
  const look = () => document.querySelector("#dial-says").textContent.includes("on its way")
    ? requestAnimationFrame(look) : done(performance.now() - started);
  look();
})"""


@contextmanager
def studio() -> Iterator[str]:
    """Starts a studio, and gives its address."""
    command = [sys.executable, "-m", "leapfactual", "studio", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = re.search(r"http://\S+", line)
                if found:
                    yield found[0]
                    return
            raise RuntimeError("the studio did not start")
        finally:
            process.terminate()


def click(url: str, clicks: int) -> None:
    """Clicks classes, and moves the dial after each."""
    generator = random.Random(0)
    answers: list[float] = []
    dials: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_selector(".class:not([disabled])")
        positions = int(page.get_attribute("#dial", "max") or 0) + 1
        for _ in range(clicks):
            page.evaluate(DIAL, 0)
            answers.append(page.evaluate(CLICK, generator.randrange(10)))
            dials += [page.evaluate(DIAL, position) for position in range(1, positions)]
            page.keyboard.press("j")
            page.wait_for_timeout(300)
        browser.close()
    report("click to answer", answers)
    report("dial to answer, right after the click", dials)


async def ask(url: str, people: int, seconds: float) -> None:
    """Asks questions for some time, everybody one after the other."""
    first: list[float] = []
    whole: list[float] = []
    errors: list[str] = []
    home = url.partition("/open/")[0]
    until = time.perf_counter() + seconds

    async def person(number: int) -> None:
        generator = random.Random(number)
        async with httpx.AsyncClient(
            base_url=home, headers={"origin": home}, timeout=60, follow_redirects=True
        ) as client:
            await client.get(url)
            while time.perf_counter() < until:
                question = {
                    "browser": str(number),
                    "key": str(generator.randrange(200)),
                    "target": generator.randrange(10),
                    "position": generator.randrange(6),
                    "cells": "",
                }
                started, events = time.perf_counter(), 0
                async with client.stream("POST", "/walk", json=question) as response:
                    if response.status_code != 200:
                        errors.append(str(response.status_code))
                        continue
                    async for line in response.aiter_lines():
                        if not line:
                            continue
                        event = json.loads(line.removeprefix("data: "))
                        if event["event"] == "error":
                            errors.append(event["text"])
                        if event["event"] == "found":
                            events += 1
                            if events == 1:
                                first.append(1000 * (time.perf_counter() - started))
                whole.append(1000 * (time.perf_counter() - started))
                if events != 6:
                    errors.append(f"{events} answers instead of 6")

    started = time.perf_counter()
    await asyncio.gather(*map(person, range(people)))
    took = time.perf_counter() - started
    print(f"{people} at once for {took:.0f} s: {len(whole)} questions, {len(errors)} errors")
    for error in sorted(set(errors)):
        print(f"  {errors.count(error)} × {error}")
    report("  first answer", first)
    report("  all positions of the dial", whole)


def report(what: str, values: list[float]) -> None:
    """Prints the median and the 95th percentile."""
    print(
        f"{what}: median {median(values):.0f} ms, p95 {quantiles(values, n=20)[-1]:.0f} ms, of "
        f"{len(values)}",
        flush=True,
    )


def main() -> None:
    """Starts, clicks, asks, and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studio", description=__doc__)
    parser.add_argument("--clicks", type=int, default=50)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with studio() as url:
        if given.clicks:
            click(url, given.clicks)
        asyncio.run(ask(url, given.people, given.seconds))


if __name__ == "__main__":
    main()
