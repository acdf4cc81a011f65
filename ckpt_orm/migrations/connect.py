"""A URL as an operator writes it, and a function run on one connection to it.

`postgresql://` means psycopg here, `postgres://` too. An async driver's URL is taken as it is
in the application's settings: its sync twin is used where it is installed and takes the options of
the URL, the driver itself where not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import NullPool

from ckpt_orm.options import check_options, takes_options
from ckpt_orm.urls import parse

_T = TypeVar("_T")

_POSTGRES = {"postgresql", "postgresql+asyncpg", "postgresql+psycopg_async"}


def sync_url(url: str | URL) -> URL:
    """The URL with a sync driver, where there is one.

    Raises:
        BadURL: and other errors, as `urls.parse` does.
    """
    made = parse(url)
    twin = _twin(made)
    if not _is_installed(twin):
        return twin
    if _is_installed(made) and not takes_options(twin) and takes_options(made):
        return made
    check_options(twin)
    return twin


def _twin(url: URL) -> URL:
    if url.drivername == "sqlite+aiosqlite":
        return url.set(drivername="sqlite")
    if url.drivername in _POSTGRES:
        driver = "psycopg" if find_spec("psycopg") else "asyncpg"
        return url.set(drivername=f"postgresql+{driver}")
    return url


def _is_installed(url: URL) -> bool:
    try:
        url.get_dialect().import_dbapi()
    except ImportError:  # which is told where it is used
        return False
    return True


def call(url: str | URL, operation: Callable[[Connection], _T]) -> _T:
    """Run an operation on a connection of its own, which it may leave as it likes."""
    made = sync_url(url)
    if not made.get_dialect().is_async:
        engine = create_engine(made, poolclass=NullPool)
        with engine.connect() as connection:
            return operation(connection)
    import asyncio

    return asyncio.run(_acall(made, operation))


async def _acall(url: URL, operation: Callable[[Connection], _T]) -> _T:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        return await connection.run_sync(operation)
