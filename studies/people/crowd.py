"""A simulated crowd that votes over HTTP, as browsers do: it opens pages and sends their forms.

Everybody sees the pictures that the page shows. What is simulated is the eye, a network, and the
character: how often somebody is right, how long it takes, and when they have had enough.
"""

import io
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode, urlsplit

from PIL import Image
from torch import Tensor

from leapfactual.imaging import as_images
from leapfactual.types import Classifier

KEY = re.compile(r'name="key" value="([0-9a-f]{32})"')
IDLE_SECONDS = 3.0  # between looks at a page that has no picture
KEEP_ALIVE = 2.0  # servers hang up on connections that are idle for longer


@dataclass(frozen=True)
class Character:
    """How somebody votes.

    Arguments:
        right: How often the answer is what the picture shows; otherwise it is any other class.
        pause: How many seconds somebody takes for a picture, on average.
        patience: After how many votes somebody leaves, with a picture in their hands.
    """

    right: float
    pause: float
    patience: int | None = None


@dataclass
class Voter:
    """One of the crowd, with the latencies and failures that they saw.

    Arguments:
        token: Their invitation.
        character: How they vote.
        seed: The seed of their chances.
    """

    token: str
    character: Character
    seed: int
    given: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def run(
        self, url: str, see: Callable[[bytes], int], classes: int, stop: threading.Event
    ) -> None:
        """Votes until it is told to stop, or leaves.

        Servers hang up on connections that are idle, so those are opened anew, as browsers do.
        """
        chance = random.Random(self.seed)
        host = urlsplit(url).netloc
        connection = HTTPConnection(host, timeout=60)
        used = 0.0

        def call(what: str, method: str, path: str, form: dict[str, str] | None = None) -> bytes:
            nonlocal used
            if time.monotonic() - used > KEEP_ALIVE:
                connection.close()
            headers = {"Host": host, "Cookie": f"leapfactual={self.token}"}
            body = None
            if form is not None:
                body = urlencode(form)
                headers["Origin"] = f"http://{host}"
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            started = time.perf_counter()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            used = time.monotonic()
            self.seconds.setdefault(what, []).append(time.perf_counter() - started)
            if answer.status not in (200, 303):
                self.failures.append(f"{what}: {answer.status}")
            return content

        while not stop.is_set():
            try:
                found = KEY.search(call("task", "GET", "/task").decode())
                if found is None:
                    stop.wait(chance.uniform(0.5, 1.5) * IDLE_SECONDS)
                    continue
                picture = call("image", "GET", f"/image/{found[1]}")
                if self.character.patience is not None and self.given >= self.character.patience:
                    return
                stop.wait(chance.expovariate(1 / self.character.pause))
                answer = see(picture)
                if chance.random() >= self.character.right:
                    answer = (answer + chance.randrange(1, classes)) % classes
                call("vote", "POST", "/vote", {"key": found[1], "answer": str(answer)})
                self.given += 1
            except (OSError, HTTPException) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                connection.close()
                time.sleep(0.2)
        connection.close()


class Eye:
    """Sees what a picture shows, as a network does; looks at each but once.

    Arguments:
        classifier: The network.
    """

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self.known: dict[bytes, int] = {}
        self.lock = threading.Lock()

    def __call__(self, content: bytes) -> int:
        """Returns the class of a picture."""
        with self.lock:
            if content not in self.known:
                with Image.open(io.BytesIO(content)) as image:
                    x: Tensor = as_images(image)
                self.known[content] = int(self.classifier(x).argmax())
            return self.known[content]


def vote(
    voters: Sequence[Voter],
    url: str,
    see: Callable[[bytes], int],
    classes: int,
    done: Callable[[], bool],
    timeout: float = 600.0,
) -> float:
    """Lets everybody vote at once until it is done, and returns the seconds that took."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=voter.run, args=(url, see, classes, stop), daemon=True)
        for voter in voters
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    while not done() and time.monotonic() - started < timeout:
        time.sleep(0.5)
    took = time.monotonic() - started
    stop.set()
    for thread in threads:
        thread.join(70)
    return took
