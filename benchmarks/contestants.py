"""Who is measured: our saver, the official one of a database, and the floor, each on its own.

All get the same server, the same driver and the same durability: Postgres with its defaults, SQLite
in WAL mode with the same `synchronous`, which is looked at rather than believed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Pool, create_engine, event, make_url, text
from sqlalchemy.pool import NullPool

from benchmarks.floor import PostgresFloor, SqliteFloor
from benchmarks.sampling import FLOOR, OFFICIAL, OURS
from ckpt_orm import SQLAlchemySaver
from ckpt_orm.compression import compressed


@dataclass
class Contestant:
    """A saver that is set up, and where it stores.

    Attributes:
        name: "ckpt_orm", "official" or "floor".
        saver: the saver itself.
        url: its database.
        loop: the event loop it is called on, for one that is called asynchronously.
    """

    name: str
    saver: Any
    url: URL
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def called(self) -> Any:
        """The saver with plain methods, whatever its colour."""
        return self.saver if self.loop is None else Awaited(self.saver, self.loop)

    def bytes_stored(self) -> int:
        """What the tables and their indexes occupy."""
        with _plain(self.url) as connection:
            if self.url.get_backend_name() == "sqlite":
                connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
                return Path(str(self.url.database)).stat().st_size
            found = connection.scalar(
                text(
                    "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
                )
            )
        return int(found)


class Awaited:
    """An async saver behind plain methods, each run to its end on a loop."""

    def __init__(self, saver: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._saver, self._run = saver, loop.run_until_complete
        self.get_next_version = saver.get_next_version

    def put(self, *args: Any) -> Any:
        return self._run(self._saver.aput(*args))

    def put_writes(self, *args: Any) -> None:
        self._run(self._saver.aput_writes(*args))

    def get_tuple(self, config: Any) -> Any:
        return self._run(self._saver.aget_tuple(config))


@dataclass(frozen=True)
class Arena:
    """A database to measure on, and what our saver is given there.

    Attributes:
        database: "sqlite" or "postgres".
        server: the maintenance database of a Postgres server, for "postgres".
        ours: keyword arguments for `SQLAlchemySaver.from_url`.
        async_driver: the driver of our saver's async calls on Postgres; "psycopg" serves them in
            threads.
    """

    database: str
    server: URL | None
    ours: dict[str, Any] = field(default_factory=dict)
    async_driver: str = "psycopg_async"

    @contextmanager
    def contestants(
        self,
        colour: str = "sync",
        floor: bool = False,
        through: Callable[[URL], URL] = lambda url: url,
    ) -> Iterator[dict[str, Contestant]]:
        """Our saver and the official one, on new databases.

        Args:
            colour: "sync" or "async"; async savers come with a loop to call them on.
            floor: whether the floor is measured too; it is called synchronously.
            through: the URL by which a saver reaches its database.
        """
        with ExitStack() as stack:
            names = (OURS, OFFICIAL, FLOOR) if floor else (OURS, OFFICIAL)
            urls = self._new_databases(names, stack)
            enter = _Sync(stack) if colour == "sync" else _Async(stack, self.async_driver)
            found = {
                OURS: enter.ours(through(urls[OURS]), self.ours),
                OFFICIAL: enter.official(through(urls[OFFICIAL])),
            }
            if floor:
                found[FLOOR] = enter.floor(urls[FLOOR])
            if self.database == "sqlite" and colour == "sync":
                check_durability(found)
            yield {
                name: Contestant(name, saver, urls[name], enter.loop)
                for name, saver in found.items()
            }

    def _new_databases(self, names: tuple[str, ...], stack: ExitStack) -> dict[str, URL]:
        if self.database == "sqlite":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return {name: make_url(f"sqlite:///{folder / name}.db") for name in names}
        assert self.server is not None
        return {name: stack.enter_context(_new_database(self.server, name)) for name in names}


class _Sync:
    """Enters savers that are called synchronously."""

    loop = None

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def ours(self, url: URL, arguments: dict[str, Any]) -> Any:
        saver = self._stack.enter_context(SQLAlchemySaver.from_url(url, **_made(arguments)))
        saver.setup()
        return saver

    def official(self, url: URL) -> Any:
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.checkpoint.sqlite import SqliteSaver

        kind: Any = SqliteSaver if url.get_backend_name() == "sqlite" else PostgresSaver
        saver = self._stack.enter_context(kind.from_conn_string(_dsn(url)))
        saver.setup()
        return saver

    def floor(self, url: URL) -> Any:
        kind: Any = SqliteFloor if url.get_backend_name() == "sqlite" else PostgresFloor
        return self._stack.enter_context(kind(_dsn(url)))


class _Async(_Sync):
    """Enters savers that are called on an event loop."""

    def __init__(self, stack: ExitStack, driver: str) -> None:
        super().__init__(stack)
        self.loop = asyncio.new_event_loop()
        stack.callback(self._end)
        self._driver = driver

    def ours(self, url: URL, arguments: dict[str, Any]) -> Any:
        if url.get_backend_name() == "postgresql":
            url = url.set(drivername=f"postgresql+{self._driver}")
        saver = SQLAlchemySaver.from_url(url, **_made(arguments))
        self._stack.callback(lambda: self.loop.run_until_complete(saver.aclose()))
        self.loop.run_until_complete(saver.asetup())
        return saver

    def official(self, url: URL) -> Any:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        kind: Any = AsyncSqliteSaver if url.get_backend_name() == "sqlite" else AsyncPostgresSaver
        manager = kind.from_conn_string(_dsn(url))
        saver = self.loop.run_until_complete(manager.__aenter__())
        self._stack.callback(
            lambda: self.loop.run_until_complete(manager.__aexit__(None, None, None))
        )
        self.loop.run_until_complete(saver.setup())
        return saver

    def _end(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def accepted(pairs: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The `key=value` pairs as keyword arguments of `from_url`, and the keys it does not know.

    A value is JSON, or else the text itself. A saver of another release may know other arguments;
    those this one does not know are left out, so that one command measures both.
    """
    given = dict(pair.split("=", 1) for pair in pairs)
    found = {key: _value(value) for key, value in given.items()}
    known = {key: value for key, value in found.items() if _takes(key, value)}
    return known, sorted(found.keys() - known.keys())


def _made(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as our saver takes them: a serde by the name of zstd is one that compresses."""
    return arguments | {"serde": compressed()} if arguments.get("serde") == "zstd" else arguments


def _value(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written


def _takes(key: str, value: Any) -> bool:
    if key in inspect.signature(SQLAlchemySaver.from_url).parameters:
        return True
    try:  # the rest goes to `create_engine`, which opens nothing yet
        SQLAlchemySaver.from_url("sqlite:///never-opened.db", **{key: value}).close()
    except TypeError:
        return False
    return True


def check_durability(savers: dict[str, Any]) -> None:
    """Stop if one saver's SQLite connections wait for the disk and another's do not."""
    found = {
        OURS: _synchronous_of(savers[OURS]),
        OFFICIAL: _pragma(savers[OFFICIAL].conn),
    }
    if FLOOR in savers:
        found[FLOOR] = _pragma(savers[FLOOR].connection)
    if len(set(found.values())) != 1:
        raise RuntimeError(f"PRAGMA synchronous differs, so the times would not compare: {found}")


def _synchronous_of(saver: SQLAlchemySaver) -> int:
    seen: list[int] = []

    def look(connection: Any, record: object, proxy: object) -> None:
        seen.append(_pragma(connection))

    saver.close()  # or it would use the connection that it has kept
    event.listen(Pool, "checkout", look)
    try:
        saver.count()
    finally:
        event.remove(Pool, "checkout", look)
    return seen[-1]


def _pragma(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


def _dsn(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def _new_database(server: URL, name: str) -> Iterator[URL]:
    database = f"bench_{name}"
    drop = text(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
    with _plain(server) as connection:
        connection.execute(drop)
        connection.execute(text(f"CREATE DATABASE {database}"))
    yield server.set(database=database)
    with _plain(server) as connection:
        connection.execute(drop)


@contextmanager
def _plain(url: URL) -> Iterator[Any]:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
