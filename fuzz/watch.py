"""What a read may not do: fail without a sentence, take too long or too much, leave its folder."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from leapfactual.errors import LeapError

MAX_SECONDS = 20.0
MAX_BYTES = 1 << 30
# Fewer are no sentence.
MIN_WORDS = 4
# Lies outside of what a read is given. No input of ours holds these bytes.
SECRET = bytes(0xA5 ^ n * 7 % 256 for n in range(4096))
# Some of the secret is enough to know it by.
SECRET_LENGTH = 24
# Long before anything is read now, so that a read shows in a file's time of access.
LONG_AGO = 10**18
# What Python tells a hook of: other programs, other machines, and code that data brings along.
FORBIDDEN = {
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pickle.find_class",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class WrongResultError(Exception):
    """An input was accepted, and what came of it is wrong."""


class TooSlowError(BaseException):
    """An input took too long; not to be taken for an error of the input itself."""


def expect(condition: bool, what: str) -> None:
    """Raises an error where what came of an accepted input is not as promised."""
    if not condition:
        raise WrongResultError(what)


@dataclass(frozen=True)
class Outcome:
    """What came of an input.

    Arguments:
        kind: ``accepted``, ``refused`` or ``escape``.
        reason: What was said, or what went wrong.
        seconds: How long it took.
    """

    kind: str
    reason: str
    seconds: float


class Watch:
    """Creates the watch over the reads of one process.

    Arguments:
        place: A folder that the process has for itself. Inputs go to ``given`` in it; ``outside``
            holds the secret.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.given, self.outside = place, place / "given", place / "outside"
        self.given.mkdir(parents=True)
        self.outside.mkdir()
        for name in ("secret.txt", "secret.png", "secret.npy", "secret.bin"):
            (self.outside / name).write_bytes(SECRET)
        # Code and its libraries may be read, and what the system says of itself.
        roots = (sys.prefix, sys.base_prefix, Path(__file__).parents[1], "/proc", "/sys", "/dev")
        self.readable = tuple(f"{Path(root).resolve()}/" for root in (*roots, "/etc", "/usr"))
        self.writable = tuple(f"{place / name}/" for name in ("given", "cache", "tmp"))
        self.watching, self.seen = False, list[str]()
        self._outside()
        self.before = self._outside()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.watching:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event}{arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            flags = arguments[2]
            writes = isinstance(flags, int) and bool(flags & WRITING)
            allowed = self.writable if writes else (*self.writable, *self.readable)
            if not f"{path}/".startswith(allowed) and path != "/dev/null":
                self.seen.append(f"{'wrote' if writes else 'read'} {path}")

    def _outside(self) -> dict[str, tuple[int, int, int]]:
        """Returns what lies beside the folder that is given: names, sizes, times."""
        found = {}
        for folder in (self.place, self.outside):
            for entry in os.scandir(folder):
                facts = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    found[entry.path] = (0, 0, 0)
                    continue
                os.utime(entry.path, ns=(LONG_AGO, LONG_AGO))
                found[entry.path] = (facts.st_size, facts.st_mtime_ns, facts.st_atime_ns)
        return found

    def run(self, read: Callable[[], None]) -> Outcome:
        """Runs a read and says what came of it."""
        self.seen.clear()
        before = _memory("VmRSS", reset=True)
        started = time.perf_counter()
        kind, reason = "accepted", ""
        try:
            with _alarm(MAX_SECONDS):
                self.watching = True
                try:
                    read()
                finally:
                    self.watching = False
        except LeapError as error:
            kind, reason = "refused", str(error)
            if len(reason.split()) < MIN_WORDS:
                kind, reason = "escape", f"an error without a sentence: {reason!r}"
        except TooSlowError:
            kind, reason = "escape", f"took more than {MAX_SECONDS:g} s\n{traceback.format_exc()}"
        except Exception:
            kind, reason = "escape", traceback.format_exc()
        seconds = time.perf_counter() - started
        escapes = self._escapes(_memory("VmHWM") - before)
        return (
            Outcome("escape", "\n".join(escapes), seconds)
            if escapes
            else Outcome(kind, reason, seconds)
        )

    def _escapes(self, grown: int) -> list[str]:
        found = list(self.seen)
        if grown > MAX_BYTES:
            found.append(f"took {grown / 2**30:.2f} GiB of memory")
        now = self._outside()
        for path in sorted(now.keys() | self.before.keys()):
            if now.get(path) != self.before.get(path):
                found.append(f"{path} outside was {self.before.get(path)}, is {now.get(path)}")
        self.before = self._outside()
        for path in self.given.rglob("*"):
            if path.is_file() and not path.is_symlink() and has_secret(path.read_bytes()):
                found.append(f"{path} holds the secret of a file outside")
        return found


def has_secret(content: bytes) -> bool:
    """Tells whether bytes hold a piece of the secret, at its beginning or in its middle."""
    middle = SECRET[2048 : 2048 + SECRET_LENGTH]
    return SECRET[:SECRET_LENGTH] in content or middle in content


def _memory(field: str, reset: bool = False) -> int:
    """Returns a process's resident memory in bytes, now or at most since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {field}")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
