"""WHERE: the engines a saver works on, and what it may do with them.

A URL becomes an engine that is tuned for its database and disposed of with the saver. An
application's own engine is used as it is: its pool, its events, its isolation level are the
application's, and nothing is set on it. No session state is left on a connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from time import sleep
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.pool import Pool, QueuePool, SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from ckpt_orm.errors import InvalidConfig, WrongEngine
from ckpt_orm.failures import sqlite_code
from ckpt_orm.modes import outside
from ckpt_orm.options import check_options
from ckpt_orm.statements import dialect_named
from ckpt_orm.urls import parse

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: Seconds to wait for a server to answer a new connection: libpq's own default is for ever.
CONNECT_TIMEOUT = 10

#: Milliseconds a SQLite connection waits for another one's transaction.
BUSY_TIMEOUT = 10_000

#: The execution option of an engine whose connections are in AUTOCOMMIT from the start.
AUTOCOMMITS = "ckpt_orm_autocommits"

#: The execution option of an engine whose connections may be kept out of its pool.
KEEPS = "ckpt_orm_keeps"

#: What says how a pool treats its connections, and must not be bypassed.
POOLING = {"pool", "poolclass", "pool_pre_ping", "pool_recycle", "creator", "events", "pool_events"}

#: What says how many connections there are.
SIZES = {"pool", "poolclass", "pool_size", "max_overflow"}

#: How many there are at most: all of them stay. SQLAlchemy closes some of the fifteen it allows as
#: soon as they are back, and to open one takes a server as long as several calls.
CONNECTIONS = {"pool_size": 10, "max_overflow": 0}

#: What a new connection is given, by driver.
CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "psycopg": {"connect_timeout": CONNECT_TIMEOUT},
    "psycopg_async": {"connect_timeout": CONNECT_TIMEOUT},
    "psycopg2": {"connect_timeout": CONNECT_TIMEOUT},
    "asyncpg": {"timeout": CONNECT_TIMEOUT},
    "pg8000": {"timeout": CONNECT_TIMEOUT},
    "pysqlite": {"check_same_thread": False, "timeout": BUSY_TIMEOUT / 1000},
    "aiosqlite": {"timeout": BUSY_TIMEOUT / 1000},
}

#: What makes a driver send each statement whole, for a pooler that gives each transaction another
#: connection. asyncpg parses an unnamed statement again with each execution once its cache is off.
POOLER_ARGS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "psycopg_async": {"prepare_threshold": None},
    "psycopg2": {},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": str,
    },
}


def create(url: str | URL, pooler: str | None = None, **kwargs: Any) -> Engine | LoopEngines:
    """The engine of a URL, tuned for its database: a sync one, or one AsyncEngine per event loop.

    A memory database is always served by a sync engine, which is not bound to a loop.

    Raises:
        BadURL: where the URL cannot be read, or its driver does not take its options.
        UnsupportedDialect: for a database other than SQLite and Postgres.
        InvalidConfig: for a pool that is none.
        WrongEngine: for a driver that is not there, or a pooler that it does not work with.
    """
    url = _with_driver(parse(url))
    _check_installed(url)
    check_options(url)
    _check_pool(kwargs.get("pool"))
    arguments = {
        **_defaults(url),
        **_pooler_args(url, pooler),
        **(kwargs.pop("connect_args", None) or {}),
    }
    kwargs["connect_args"] = arguments
    options = kwargs["execution_options"] = {**(kwargs.get("execution_options") or {})}
    options[KEEPS] = not POOLING & kwargs.keys()
    levels = {"isolation_level", "pool"} & (kwargs.keys() | options.keys())
    if url.get_backend_name() == "postgresql" and not levels:
        # Nearly all operations are single statements; otherwise each would set and reset it. A pool
        # that is given may hold connections which were made before, of another level.
        kwargs["isolation_level"] = "AUTOCOMMIT"
        options[AUTOCOMMITS] = True
    if in_memory(url) and "poolclass" not in kwargs:
        # A memory database is its connection: one for all callers, who take turns on it.
        kwargs |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    elif not SIZES & kwargs.keys():
        kwargs |= CONNECTIONS
    if url.get_dialect().is_async:
        return LoopEngines(url, kwargs)
    engine = create_engine(url, **kwargs)
    _tune(engine, _patience(url, arguments))
    return engine


def _defaults(url: URL) -> dict[str, Any]:
    """What a new connection is given besides what the URL says, over which arguments would win."""
    defaults = CONNECT_ARGS.get(url.get_driver_name(), {})
    return {name: value for name, value in defaults.items() if name not in url.query}


def _patience(url: URL, arguments: Mapping[str, Any]) -> int:
    """Milliseconds that a SQLite connection is asked to wait for another one."""
    if url.get_backend_name() != "sqlite":
        return BUSY_TIMEOUT
    return int(float(arguments.get("timeout", url.query.get("timeout"))) * 1000)


#: The extra that installs a driver.
EXTRAS = {
    "psycopg": "postgres",
    "psycopg_async": "postgres,asyncpg",
    "asyncpg": "asyncpg",
    "aiosqlite": "sqlite-async",
}


def _check_installed(url: URL) -> None:
    """Say how to get a driver that is missing.

    Raises:
        WrongEngine: where the driver of the URL, or what it needs, is not installed.
    """
    driver = url.get_driver_name()
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        name = f"ckpt-orm[{EXTRAS[driver]}]" if driver in EXTRAS else driver
        raise WrongEngine(
            f"the driver {driver!r} is not installed: pip install '{name}'"
        ) from error


def _check_pool(pool: object) -> None:
    if pool is not None and not isinstance(pool, Pool):
        kind = pool if isinstance(pool, type) else type(pool)
        raise InvalidConfig(
            f"pool is a {kind.__module__}.{kind.__qualname__}: pass an object of a class in "
            "sqlalchemy.pool, or a class of those as poolclass; for an engine there is "
            "SQLAlchemySaver(engine)"
        )


def _pooler_args(url: URL, pooler: str | None) -> dict[str, Any]:
    if pooler is None:
        return {}
    if pooler != "transaction":
        raise ValueError(f"pooler is {pooler!r}: pass 'transaction', or None without a pooler")
    driver = url.get_driver_name()
    if driver not in POOLER_ARGS:
        raise WrongEngine(
            f"{driver} cannot be used behind a pooler in transaction mode: use one of "
            f"{sorted(POOLER_ARGS)}, or a pooler in session mode"
        )
    return POOLER_ARGS[driver]


def engines_of(engine: Any, async_engine: Any = None) -> tuple[Engine | None, AsyncEngine | None]:
    """The Engine and the AsyncEngine among what an application has; an AsyncEngine may come alone.

    Raises:
        WrongEngine: for anything that is neither, nor bound to one.
    """
    first, second = _bind_of(engine), _bind_of(async_engine)
    if isinstance(first, Engine) and first.dialect.is_async:
        raise WrongEngine(
            f"the driver {first.dialect.driver!r} is an asynchronous one: make the engine by "
            "create_async_engine, or with a synchronous driver"
        )
    if isinstance(first, Engine) and (second is None or _is_async(second)):
        return first, second
    if _is_async(first) and second is None:
        return None, cast("AsyncEngine", first)
    raise WrongEngine(
        "pass an Engine, an AsyncEngine, or an Engine and an AsyncEngine in this order, or a "
        "sessionmaker that is bound to one; for a URL there is SQLAlchemySaver.from_url, for an "
        "open session or connection SQLAlchemySaver(engine).using(session)"
    )


def _is_async(engine: object) -> bool:
    """Whether it is an AsyncEngine, told without importing one."""
    return isinstance(getattr(engine, "sync_engine", None), Engine) and hasattr(engine, "dispose")


def _bind_of(given: Any) -> Any:
    """What a sessionmaker of either colour, or a registry of sessions, is bound to."""
    factory = getattr(given, "session_factory", given)
    return getattr(factory, "kw", {}).get("bind", factory)


def tune(engine: Engine | AsyncEngine) -> None:
    """Give an engine on a SQLite file what concurrent use of one file needs: WAL and patience.

    On each new connection: `journal_mode=WAL`, `busy_timeout` of 10 seconds. `synchronous` keeps
    SQLite's default, FULL. Done by `from_url`; an application calls it for its own engine if it
    wants that. A memory database and Postgres are left as they are.
    """
    _tune(engine, BUSY_TIMEOUT)


def _tune(engine: Engine | AsyncEngine, patience: int) -> None:
    sync: Engine = engine if isinstance(engine, Engine) else engine.sync_engine
    if sync.dialect.name != "sqlite" or in_memory(sync.url):
        return

    # SQLite waits for no lock where it brings a file to WAL, which several processes may at once.
    until_free = Retrying(
        retry=retry_if_exception(_finds_it_locked),
        stop=stop_after_delay(patience / 1000),
        wait=wait_random(0.001, 0.05),
        sleep=sleep if isinstance(engine, Engine) else _sleep_on_loop,
        reraise=True,
    )

    @event.listens_for(sync, "connect")
    def connected(connection: Any, record: object) -> None:
        try:
            with outside(connection):
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout={patience}")
                until_free.copy()(cursor.execute, "PRAGMA journal_mode=WAL")
                cursor.close()
        except Exception:  # the file is no database, or locked
            connection.close()
            raise


def _finds_it_locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and sqlite_code(error) == "SQLITE_BUSY"


def _sleep_on_loop(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))


def _with_driver(url: URL) -> URL:
    """The URL with the driver it means: psycopg for Postgres, pysqlite for a memory database."""
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    return url.set(drivername="sqlite") if in_memory(url) else url


def in_memory(url: URL) -> bool:
    """Whether a URL is that of a SQLite database without a file."""
    return url.get_backend_name() == "sqlite" and (
        url.database in (None, "", ":memory:")
        or url.query.get("mode") == "memory"
        or "mode=memory" in url.database
    )


def leaves_open(engine: Engine | None, async_engine: LoopEngines | GivenEngine | None) -> bool:
    """Whether a pool of theirs may leave a transaction open on what it is given back."""
    is_ended = engine is None or _rolls_back(engine.pool)
    return not (is_ended and (async_engine is None or async_engine.rolls_back))


def _rolls_back(pool: Pool | None) -> bool:
    style = getattr(pool, "_reset_on_return", None)
    return pool is None or getattr(style, "name", "") == "reset_rollback"


def is_prepared(engine: Engine) -> bool:
    """Whether an application's listeners prepare a connection for each caller.

    They may read whose call it is from a context variable, as for row-level security.
    """
    events, is_heard = engine.dispatch, getattr(engine, "_has_events", True)
    prepares = is_heard and (events.engine_connect or events.begin)
    return bool(prepares or engine.pool.dispatch.checkout)


class LoopEngines:
    """The AsyncEngines of one URL: one per event loop, disposed of when its loop shuts down.

    A connection of an async driver belongs to the loop that opened it.
    """

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        self.url, self._kwargs = url, kwargs
        self.rolls_back = _rolls_back(kwargs.get("pool")) and (
            kwargs.get("pool_reset_on_return", True) in (True, "rollback")
        )
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncEngine, Any]] = (
            WeakKeyDictionary()
        )

    async def current(self) -> AsyncEngine:
        """The running loop's engine."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            from sqlalchemy.ext.asyncio import create_async_engine

            engine = create_async_engine(self.url, **self._kwargs)
            _tune(engine, _patience(self.url, self._kwargs["connect_args"]))
            guard = self._until_shutdown(engine)
            self._loops[loop] = engine, guard
            await anext(guard)
        return self._loops[loop][0]

    async def _until_shutdown(self, engine: AsyncEngine) -> AsyncGenerator[None, None]:
        # A loop closes the generators that are still open when it ends (asyncio.run does, and so
        # do the runners of test frameworks): the last moment at which connections can be closed
        # on it. Without that they would leak, and the next loop could not use them.
        try:
            yield
        finally:
            self._loops.pop(asyncio.get_running_loop(), None)
            await engine.dispose()

    async def dispose(self) -> None:
        """Close the connections of the running loop."""
        if found := self._loops.get(asyncio.get_running_loop()):
            await found[1].aclose()


class GivenEngine:
    """An application's AsyncEngine, used as it is and never disposed of."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.url = engine.url
        dialect_named(engine.dialect.name)
        self.is_static = isinstance(engine.pool, StaticPool)
        self.rolls_back = _rolls_back(engine.pool)
        self._engine = engine
        self._loop: ref[asyncio.AbstractEventLoop] | None = None

    async def current(self) -> AsyncEngine:
        """The engine, on whichever loop."""
        running = asyncio.get_running_loop()
        last = self._loop() if self._loop is not None else running
        if last is None or last.is_closed():
            self._leave_closed_loop()
        if last is not running or self._loop is None:
            self._loop = ref(running)
        return self._engine

    def _leave_closed_loop(self) -> None:
        # What the pool still holds died with its loop. A memory database lives on in a thread.
        if not in_memory(self.url):
            self._engine.sync_engine.dispose(close=False)

    async def dispose(self) -> None:
        """Nothing: the application made the engine."""


def check_shareable(engine: Engine) -> None:
    """Refuse an engine on which every thread would see a database of its own.

    Raises:
        WrongEngine: for `create_engine("sqlite://")`, whose pool keeps a connection per thread.
    """
    if in_memory(engine.url) and isinstance(engine.pool, SingletonThreadPool):
        raise WrongEngine(
            "this engine gives each thread a memory database of its own, and LangGraph saves from "
            'worker threads: use SQLAlchemySaver.from_url("sqlite://"), or create the engine with '
            "poolclass=QueuePool, pool_size=1, max_overflow=0 and "
            'connect_args={"check_same_thread": False}'
        )
