"""A PostgreSQL of our own, from Debian's packages, for as long as a test takes."""

import os
import shutil
import subprocess
import uuid
from contextlib import contextmanager
from pathlib import Path

MISSING = "PostgreSQL is MISSING: campaigns were tested on SQLite alone (apt install postgresql)"


def programs():
    """Returns the folder of PostgreSQL's programs, if it is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    onpath = shutil.which("initdb")
    return Path(onpath).parent if onpath else None


@contextmanager
def server(folder):
    """Starts a server in a folder, as a user who may; gives a function that makes databases."""
    bin_ = programs()
    place = Path(folder)
    as_user = []
    if os.geteuid() == 0:
        as_user = ["runuser", "-u", "postgres", "--"]
        for parent in [place, *place.parents]:
            if parent.stat().st_uid == 0 and parent not in (Path("/"), Path("/tmp")):
                parent.chmod(0o755)
        shutil.chown(place, "postgres")

    def call(program, *words):
        command = [*as_user, str(bin_ / program), *words]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    data, log = place / "data", place / "log"
    call("initdb", "-D", str(data), "-U", "leap", "-A", "trust", "--no-sync")
    options = f"-k {place} -c listen_addresses='' -c max_connections=300"
    call("pg_ctl", "-D", str(data), "-l", str(log), "-o", options, "-w", "start")

    def make():
        name = f"campaign_{uuid.uuid4().hex[:12]}"
        call("createdb", "-h", str(place), "-U", "leap", name)
        return f"postgresql://leap@/{name}?host={place}"

    try:
        yield make
    finally:
        call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
