"""Every way to hold and to call a saver, so that one test covers them all.

A `Backend` names a database, the engines the saver holds, and the colour in which it is called. A
`Called` saver has the synchronous methods' names and results whatever the colour is, so a test
reads the same for all of them: `called.put(…)` runs `saver.put` or `saver.aput` on an event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ckpt_orm import SQLAlchemySaver


@dataclass(frozen=True)
class Backend:
    """A way to hold and to call a saver.

    Args:
        name: the id of the test's parameter.
        database: "sqlite" or "postgres", whose empty database is asked for.
        driver: the URL's drivername.
        is_async: whether the a-methods are called.
    """

    name: str
    database: str
    driver: str
    is_async: bool


def named(backends: list[Backend]) -> Any:
    """A parametrization of the fixture `backend` by some of them only."""
    ids = [backend.name for backend in backends]
    return pytest.mark.parametrize("backend", backends, ids=ids)


BACKENDS = [
    Backend("sqlite", "sqlite", "sqlite", False),
    Backend("sqlite-threads", "sqlite", "sqlite", True),
    Backend("aiosqlite", "sqlite", "sqlite+aiosqlite", True),
    Backend("psycopg", "postgres", "postgresql+psycopg", False),
    Backend("psycopg-threads", "postgres", "postgresql+psycopg", True),
    Backend("psycopg-async", "postgres", "postgresql+psycopg_async", True),
    Backend("asyncpg", "postgres", "postgresql+asyncpg", True),
]


ASYNC_BACKENDS = [backend for backend in BACKENDS if backend.is_async]


class Called:
    """A saver whose methods are called in one colour, under their synchronous names.

    Args:
        saver: the saver.
        loop: where the a-methods run; None to call the synchronous ones.
        given: the engine the saver holds; `engine` is it, or the synchronous half of an async one.
    """

    def __init__(
        self,
        saver: Any,
        loop: asyncio.AbstractEventLoop | None,
        given: Engine | AsyncEngine | None = None,
    ) -> None:
        self.saver, self.loop, self.given = saver, loop, given
        self.engine: Any = getattr(given, "sync_engine", given)

    def __getattr__(self, name: str) -> Any:
        if self.loop is None or name in ("get_next_version", "with_allowlist", "serde", "models"):
            return getattr(self.saver, name)
        method = getattr(self.saver, f"a{name}")
        return self._each(method) if name in ("list", "threads") else self._call(method)

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        assert self.loop is not None
        return lambda *args, **kwargs: self.loop.run_until_complete(method(*args, **kwargs))

    def _each(self, method: Callable[..., Any]) -> Callable[..., Any]:
        assert self.loop is not None

        def items(*args: Any, **kwargs: Any) -> Iterator[Any]:
            tuples = method(*args, **kwargs)
            try:
                while True:
                    yield self.loop.run_until_complete(anext(tuples))
            except StopAsyncIteration:
                return
            finally:
                self.loop.run_until_complete(tuples.aclose())

        return items

    def checked_out(self) -> int:
        """How many connections of the engine are in use."""
        pool: Any = self.engine.pool
        found: int = pool.checkedout()
        return found

    def at_once(self, *calls: Callable[[Any], Any]) -> list[Any]:
        """The results of calls that run at the same time, each in a thread or task of its own.

        A call is given the saver under the synchronous names; on a loop it returns an awaitable.
        """
        if self.loop is None:
            with ThreadPoolExecutor(len(calls)) as threads:
                return list(threads.map(lambda call: call(self), calls))

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(call(_AMethods(self.saver)) for call in calls))

        return self.loop.run_until_complete(gathered())

    def run(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        """`graph.invoke`, or `graph.ainvoke` to its end."""
        if self.loop is None:
            return graph.invoke(*args, **kwargs)
        try:
            return self.loop.run_until_complete(graph.ainvoke(*args, **kwargs))
        except RuntimeError as error:
            if sys.version_info < (3, 11) and str(error) == OUTSIDE:
                pytest.skip("LangGraph's interrupt and its like need Python 3.11 where it is async")
            raise


#: What LangGraph says where a task has no context of its own, which it has since Python 3.11.
OUTSIDE = "Called get_config outside of a runnable context"


class _AMethods:
    """A saver's a-methods under the names of the synchronous ones."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, f"a{name}")


def _url_of(backend: Backend, url: URL) -> URL:
    """The database's URL for the backend's driver; pg8000 names a socket by its file."""
    url = url.set(drivername=backend.driver)
    host = url.query.get("host")
    if url.get_driver_name() == "pg8000" and host:
        return url.set(query={"unix_sock": f"{host}/.s.PGSQL.{url.port or 5432}"})
    return url


class Hasty(sqlite3.Connection):
    """Trades durability for speed as the Postgres server of the tests does.

    It is no listener of the engine's, since a saver asks whether there are any.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous = OFF")


@contextmanager
def engine_of(
    backend: Backend, url: URL, loop: asyncio.AbstractEventLoop | None, **kwargs: Any
) -> Iterator[Engine | AsyncEngine]:
    """An application's own engine, disposed of at the end; nothing may still be checked out."""
    url = _url_of(backend, url)
    if backend.database == "sqlite":
        kwargs["connect_args"] = {"factory": Hasty} | kwargs.get("connect_args", {})
    engine: Any
    if url.get_dialect().is_async:
        engine = create_async_engine(url, **kwargs)
        pool = engine.pool
    else:
        engine = create_engine(url, **kwargs)
        pool = engine.pool
    try:
        yield engine
        assert pool.checkedout() == 0, "a connection was not given back"
    finally:
        if url.get_dialect().is_async:
            assert loop is not None
            loop.run_until_complete(engine.dispose())
        else:
            engine.dispose()


@contextmanager
def called(
    backend: Backend, url: URL, engine_kwargs: dict[str, Any] | None = None, **saver_kwargs: Any
) -> Iterator[Called]:
    """A set-up saver on an application's own engine, called in the backend's colour."""
    loop = asyncio.new_event_loop() if backend.is_async else None
    try:
        with engine_of(backend, url, loop, **(engine_kwargs or {})) as engine:
            saver = SQLAlchemySaver(engine, **saver_kwargs)
            found = Called(saver, loop, engine)
            found.setup()
            yield found
    finally:
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
