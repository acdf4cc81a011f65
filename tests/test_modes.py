"""The modes of Python's sqlite3 since 3.12, in which an application's connections may be."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from typing import Any

import pytest
from backends import BACKENDS, Backend, Called, called, engine_of, named
from builders import config, put, values_of
from sqlalchemy import URL, text
from test_using import opened

from ckpt_orm import SQLAlchemySaver, WrongEngine

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="sqlite3 has no `autocommit` before Python 3.12"
)

SQLITE = [backend for backend in BACKENDS if backend.database == "sqlite"]


def mode(autocommit: bool) -> dict[str, Any]:
    # Not with the tests' own class: it sets what cannot be set in a transaction.
    return {"connect_args": {"autocommit": autocommit, "factory": sqlite3.Connection}}


@named(SQLITE)
@pytest.mark.parametrize("level", [None, "AUTOCOMMIT"])
def test_what_has_always_begun_is_ended(
    backend: Backend, backend_url: URL, level: str | None
) -> None:
    options = {"isolation_level": level} if level else {}
    with called(backend, backend_url, mode(False) | options) as saver:
        first = put(saver, "t", {"log": [1]})
        saver.put_writes(first, [("log", 2)], "task")
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        for end in ("rollback", "commit"):
            with opened(saver, is_session=True) as transaction:
                put(transaction.saver, end, {"log": [1]})
                transaction.do(end)
        with closing(sqlite3.connect(str(backend_url.database), timeout=0.1)) as other:
            other.execute("BEGIN IMMEDIATE")  # nobody holds the file
            found = other.execute("SELECT thread_id FROM checkpoints ORDER BY thread_id")
            assert found.fetchall() == [("commit",), ("copy",)]
        assert values_of(saver, config("copy")) == {"log": [1]}


@named(SQLITE)
def test_what_was_read_is_over_where_the_pool_leaves_that_to_core(
    backend: Backend, backend_url: URL
) -> None:
    """Else the next call on the connection would see what there was before others stored."""
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_reset_on_return": None}
    with called(backend, backend_url, mode(False) | options) as saver:
        last = put(saver, "t", {"log": [0]})
        for number in (2, 3):
            assert values_of(saver, config("t"))["log"] == list(range(number - 1))
            assert len(list(saver.list(config("t")))) == number - 1
            with SQLAlchemySaver.from_url(backend_url) as other:
                last = put(other, "t", {"log": list(range(number))}, last)
            assert len(list(saver.list(config("t")))) == number
            assert values_of(saver, config("t"))["log"] == list(range(number))


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
def test_it_is_tuned_outside_of_what_has_begun(sqlite_url: URL, driver: str) -> None:
    async def main() -> None:
        url = sqlite_url.set(drivername=driver)
        async with SQLAlchemySaver.from_url(url, **mode(False)) as saver:
            await saver.asetup()

    asyncio.run(main())
    with closing(sqlite3.connect(str(sqlite_url.database))) as other:
        assert other.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


@named(SQLITE)
@pytest.mark.parametrize("is_there", [False, True])
def test_what_ends_nothing_is_refused(backend: Backend, backend_url: URL, is_there: bool) -> None:
    """Else what is put would be seen by nobody, lock the file meanwhile, and be lost."""
    if is_there:
        with SQLAlchemySaver.from_url(backend_url) as saver:
            saver.setup()
    with (
        pytest.raises(WrongEngine, match="autocommit=True"),
        called(backend, backend_url, mode(True)),
    ):
        pass
    with closing(sqlite3.connect(str(backend_url.database), timeout=0.1)) as other:
        other.execute("BEGIN IMMEDIATE")


@named(SQLITE)
def test_nor_is_a_callers_transaction_joined(backend: Backend, ready_url: URL) -> None:
    with (
        called(backend, ready_url) as tables,
        engine_of(backend, ready_url, tables.loop, **mode(True)) as engine,
    ):
        saver = Called(SQLAlchemySaver(engine), tables.loop, engine)
        with opened(saver, is_session=True) as transaction:
            with pytest.raises(WrongEngine, match="autocommit=True"):
                put(transaction.saver, "t", {"log": [1]})
            assert transaction.do("execute", text("SELECT 1")).scalar() == 1
        with pytest.raises(WrongEngine, match="autocommit=True"):
            put(saver, "t", {"log": [1]})
        assert put(tables, "t", {"log": [1]})
