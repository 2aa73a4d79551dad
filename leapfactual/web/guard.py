"""What every request must pass, before anything is done for it.

A server often runs on somebody's own computer, where any web page that a browser has open could
reach it. So the ``Host`` must be one that is allowed (a name that an attacker made to point here
is not), and whatever changes something must come from a page of ours, by its ``Origin``. Bodies
are cut off while they stream in. No answer can be framed, sniffed or run a stranger's script.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "[::1]")
SAFE_METHODS = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Creates the middleware that refuses requests from elsewhere, and bodies that are too long.

    Arguments:
        app: The application.
        hosts: The names that it may be called by, besides those of this computer.
        max_bytes: How long a body may be.
        policy: What its pages may load besides their own styles and scripts, in the words of a
            content security policy.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str] = (),
        *,
        max_bytes: int,
        policy: str = "img-src 'self'",
    ) -> None:
        self.app, self.hosts = app, {*LOCAL, *(host.lower() for host in hosts)}
        self.max_bytes = max_bytes
        self.headers = {**HEADERS, "content-security-policy": f"{POLICY}; {policy}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await PlainTextResponse(refusal[1], refusal[0])(
                scope, receive, self._add_headers(send)
            )
            return
        await self._limit_body(scope, receive, self._add_headers(send))

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Returns why a request is refused, if it is."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in self.hosts:
            return 400, (
                "This server is not called by that name. Start it with --allow-host NAME to let "
                "it be.\n"
            )
        if method in SAFE_METHODS:
            return None
        origins = headers.getlist("origin")
        if len(origins) != 1 or not _same(origins[0], hosts[0]):
            return 403, "This must come from a page of this server itself.\n"
        length = headers.get("content-length")
        if length is not None and (
            len(length) > 9 or not length.isdecimal() or int(length) > self.max_bytes
        ):
            return 413, f"At most {self.max_bytes} bytes are taken.\n"
        return None

    async def _limit_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and cuts off a body that is too long."""
        taken, begun = 0, False

        async def count_bytes() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                raise TooLong
            return message

        async def note_start(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, count_bytes, note_start)
        except TooLong:
            if not begun:
                text = f"At most {self.max_bytes} bytes are taken.\n"
                await PlainTextResponse(text, 413)(scope, receive, send)

    def _add_headers(self, send: Send) -> Callable[[Message], Awaitable[None]]:
        """Adds the security headers to every response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        return send_with_headers


class TooLong(Exception):
    """A body went on for too long."""


def _name(host: str) -> str:
    """Returns a host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _same(origin: str, host: str) -> bool:
    """Returns whether a page came from where the request goes."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.strip().lower()


class RateLimiter:
    """Creates a token bucket for every person: so many requests at once, then so many a second.

    Arguments:
        burst: How many at once.
        rate: How many a second.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, burst: int = 60, rate: float = 3.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.burst, self.rate, self.clock = burst, rate, clock
        self.state: dict[int, tuple[float, float]] = {}

    def allows(self, person: int) -> bool:
        """Returns whether a person may make a request now, and counts it."""
        now = self.clock()
        left, then = self.state.get(person, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        self.state[person] = (left - 1 if left >= 1 else left, now)
        return left >= 1
