"""The database of a campaign: a SQLite file, or PostgreSQL by URL.

One transaction writes at a time, on either: histories are then as if everybody had come one after
the other, and no two of them can close a round or take the last free place. On SQLite that is
``BEGIN IMMEDIATE`` behind a lock of the process, so that threads queue instead of polling; on
PostgreSQL an advisory lock. Reads have connections of their own and wait for nobody. What is
committed is on disk (``synchronous=FULL``, in WAL mode).
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from ...errors import InputError, LeapError, MissingData, MissingExtra

ADVISORY_LOCK = 0x1EAF
# A writer that waits for a minute waits for one that is stuck.
BUSY_TIMEOUT_SECONDS = 60


class Unavailable(LeapError, RuntimeError):
    """The database cannot be written to just now: the disk is full, or it is gone."""


class Database:
    """Opens the database of one campaign.

    Arguments:
        place: A file, or a URL such as ``postgresql://localhost/campaign``.
        create: Whether there must be no campaign yet; see :func:`new_database`.
        durable: Whether what is committed must be on disk, for SQLite. A database that is thrown
            away need not wait for that.
    """

    def __init__(self, place: str | Path, *, create: bool = False, durable: bool = True) -> None:
        self.place = str(place)
        self.url = _url(self.place, create)
        self.sqlite = self.url.startswith("sqlite")
        self.engine = _engine(self.url, self.sqlite, durable)
        self.lock = threading.Lock()
        self._check_revision(create)

    def __repr__(self) -> str:
        return f"Database({make_url(self.url).render_as_string()})"

    def _check_revision(self, create: bool) -> None:
        """Checks that there is a campaign, or none, and brings its tables up to date."""
        try:
            with self.engine.connect() as connection:
                now = MigrationContext.configure(connection).get_current_revision()
        except DBAPIError as error:
            if self.sqlite:
                raise MissingData(
                    f"{self.place} cannot be opened as a campaign ({_first_line(error)})."
                ) from error
            raise MissingData(
                f"the database {self!r} cannot be opened ({_first_line(error)}). Is it running, "
                "and is this a campaign of leapfactual?"
            ) from error
        if create and now is not None:
            raise _occupied(self.place)
        if create:
            return
        if now is None:
            raise InputError(
                f"{self.place} holds no campaign. Make one with `leapfactual people create`."
            )
        if now != _newest_revision():
            with self.write() as connection:
                _migrate(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yields a connection to read with; it sees one moment."""
        with _translate_errors(), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yields a connection to write with; all of it happens, or nothing."""
        with self.lock, _translate_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                if not self.sqlite:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
                yield connection

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


@contextmanager
def new_database(place: str | Path) -> Iterator[Connection]:
    """Yields a connection to fill a new database with: afterwards all of it is there, or nothing.

    A file is made under another name first.

    Arguments:
        place: A file, or the URL of a database in which there is no campaign.
    """
    path = None if "://" in str(place) else _check_free(Path(place))
    there = place if path is None else path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    db = Database(there, create=True)
    try:
        with db.write() as connection:
            if MigrationContext.configure(connection).get_current_revision() is not None:
                raise _occupied(place)
            _migrate(connection)
            yield connection
        db.close()
        if path is not None:
            _check_free(path)
            Path(there).rename(path)
    finally:
        db.close()
        if path is not None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{there}{suffix}").unlink(missing_ok=True)


def _check_free(path: Path) -> Path:
    if path.exists():
        raise InputError(f"there is something at {path} already. Give another file.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    return path


def _occupied(place: str | Path) -> InputError:
    return InputError(
        f"there is a campaign at {place} already. A database holds one: give another."
    )


def _migrate(connection: Connection) -> None:
    """Brings the tables to what this version of leapfactual expects."""
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raises :class:`Unavailable` where the database fails, so that nothing is acknowledged."""
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(f"the database failed ({_first_line(error)}).") from error


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).splitlines()[0] if str(error.orig) else type(error.orig).__name__


def _url(place: str, create: bool) -> str:
    if "://" not in place:
        path = Path(place)
        if not create and not path.is_file():
            raise MissingData(
                f"there is no campaign at {path}. Make one with `leapfactual people create`."
            )
        return f"sqlite:///{path.absolute()}"
    try:
        url = make_url(place)
    except ArgumentError as error:
        raise InputError(f"{place!r} is no URL of a database ({error}).") from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if url.get_backend_name() == "sqlite":
        raise InputError("give a SQLite file by its path, without sqlite://.")
    raise InputError(
        f"campaigns are kept in SQLite, by file, or in PostgreSQL, by URL; got {place!r}."
    )


def _engine(url: str, sqlite: bool, durable: bool) -> Engine:
    options: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 16, "max_overflow": 48}
    if sqlite:
        options["connect_args"] = {"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False}
    else:
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    try:
        engine = create_engine(url, **options)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise MissingExtra(
            "PostgreSQL needs psycopg, which is not installed. Run `pip install "
            "'leapfactual[postgres]'`."
        ) from error
    if sqlite:
        event.listen(
            engine, "connect", partial(_prepare, synchronous="FULL" if durable else "OFF")
        )
        event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, record: object, *, synchronous: str) -> None:  # noqa: ANN401 - of the driver
    """Sets up a connection of SQLite; transactions are begun by hand."""
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={synchronous}",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_SECONDS * 1000}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@cache
def _newest_revision() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


def alembic_config() -> Config:
    """Returns the configuration of alembic, which has no file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
