"""The connection that a saver of its own engine keeps between two calls."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from types import FrameType
from typing import Any, NoReturn

import pytest
from builders import config, put, values_of
from sqlalchemy import URL, create_engine, event
from sqlalchemy.pool import NullPool

from ckpt_orm import DatabaseError, SQLAlchemySaver


@pytest.fixture
def saver(database_url: URL) -> Iterator[SQLAlchemySaver]:
    with SQLAlchemySaver.from_url(database_url) as found:
        found.setup()
        yield found
    assert pool_of(found).checkedout() == 0


def pool_of(saver: SQLAlchemySaver) -> Any:
    runner: Any = saver._runner
    return runner.engine.pool


def checkouts(saver: SQLAlchemySaver) -> Any:
    """Counts how often the pool gives a connection."""
    counted = count()
    event.listen(pool_of(saver), "checkout", lambda *_: next(counted))
    return counted


def test_one_call_after_the_other_needs_the_pool_once(saver: SQLAlchemySaver) -> None:
    saver.close()
    counted = checkouts(saver)
    for number in range(5):
        put(saver, "t", {"n": number})
        assert values_of(saver, config("t")) == {"n": number}
        assert list(saver.list(config("t"), limit=1))
    assert next(counted) == 1


@pytest.mark.parametrize("size", [1, 2])
def test_nobody_waits_for_a_connection_that_is_kept(database_url: URL, size: int) -> None:
    arguments: Any = {"pool_size": size, "max_overflow": 0, "pool_timeout": 5}
    with (
        SQLAlchemySaver.from_url(database_url, **arguments) as saver,
        ThreadPoolExecutor(12) as pool,
    ):
        saver.setup()
        list(pool.map(lambda n: put(saver, f"t{n}", {"n": n}), range(60)))
        found = list(pool.map(lambda n: values_of(saver, config(f"t{n}")), range(60)))
        assert found == [{"n": number} for number in range(60)]
        saver.close()
        assert pool_of(saver).checkedout() == 0


#: What makes a table refuse each row.
REFUSING = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE INSERT ON checkpoints "
        "BEGIN SELECT RAISE(ABORT, 'refused'); END"
    ],
    "postgresql": ["ALTER TABLE checkpoints ADD CHECK (thread_id IS NULL) NOT VALID"],
}


def test_one_on_which_a_call_failed_is_not_kept(saver: SQLAlchemySaver) -> None:
    put(saver, "t", {"n": 1})
    runner: Any = saver._runner
    with runner.engine.begin() as connection:
        for statement in REFUSING[connection.dialect.name]:
            connection.exec_driver_sql(statement)
    saver.close()
    counted = checkouts(saver)
    for _ in range(2):
        with pytest.raises(DatabaseError):
            put(saver, "t", {"n": 2, "list": [1]})
        assert pool_of(saver).checkedout() == 0
    assert next(counted) == 2
    assert pool_of(saver).checkedout() == 0
    assert values_of(saver, config("t")) == {"n": 1}


def test_a_saver_that_was_closed_goes_on(saver: SQLAlchemySaver) -> None:
    put(saver, "t", {"n": 1})
    saver.close()
    assert pool_of(saver).checkedout() == 0
    put(saver, "t", {"n": 2})
    assert values_of(saver, config("t")) == {"n": 2}


def test_one_that_is_in_use_when_the_saver_is_closed_is_not_kept(saver: SQLAlchemySaver) -> None:
    put(saver, "t", {"n": 1})
    runner: Any = saver._runner
    with runner._spares.connect():
        saver.close()
    assert not runner._spares._idle
    put(saver, "t", {"n": 2})
    assert len(runner._spares._idle) == 1


def test_threads_may_close_what_is_kept_at_once(saver: SQLAlchemySaver) -> None:
    runner: Any = saver._runner
    spares = runner._spares
    code = spares.dispose.__func__.__code__

    def take_one(frame: FrameType, event: str, _: Any) -> Any:
        """Another thread, which has its turn before each line."""
        if frame.f_code is code and event == "line" and spares._idle:
            spares._idle.pop().lane.conn.close()
        return take_one

    for number in (1, 2):
        with ExitStack() as stack:
            for _ in range(number):
                stack.enter_context(spares.connect())
        assert len(spares._idle) == number
        before = sys.gettrace()
        sys.settrace(take_one)
        try:
            spares.dispose()
        finally:
            sys.settrace(before)
        assert not spares._idle


def test_a_child_process_has_connections_of_its_own(database_url: URL) -> None:
    saver = SQLAlchemySaver.from_url(database_url)
    saver.setup()
    put(saver, "t", {"n": 1})
    pid = os.fork()
    if pid == 0:
        runner: Any = saver._runner
        kept = len(runner._spares._idle)
        os._exit(kept or values_of(saver, config("t")) != {"n": 1})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert values_of(saver, config("t")) == {"n": 1}
    saver.close()


def test_one_that_the_server_has_ended_is_replaced(postgres_url: URL) -> None:
    with SQLAlchemySaver.from_url(postgres_url) as saver, ThreadPoolExecutor(2) as pool:
        saver.setup()
        for number in range(3):
            list(pool.map(lambda n: put(saver, f"t{n}", {"n": n}), range(20)))
            runner: Any = saver._runner
            assert runner._spares._idle
            end_others(postgres_url)
            assert put(saver, "after", {"n": number})
            assert values_of(saver, config("after")) == {"n": number}


def end_others(url: URL) -> None:
    """End every other connection to the database, as a restart of the server does."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    engine.dispose()


@pytest.mark.parametrize(
    "given", [{"pool_pre_ping": True}, {"pool_recycle": 60}, {"poolclass": NullPool}], ids=str
)
def test_a_pool_that_was_told_what_to_do_is_asked_each_time(
    database_url: URL, given: dict[str, Any]
) -> None:
    with SQLAlchemySaver.from_url(database_url, **given) as saver:
        saver.setup()
        counted = checkouts(saver)
        for number in range(3):
            put(saver, "t", {"n": number})
        assert next(counted) == 3


def test_what_a_transaction_has_changed_is_not_kept(postgres_url: URL) -> None:
    """Deleting needs one; single statements go on without."""
    with SQLAlchemySaver.from_url(postgres_url) as saver:
        saver.setup()
        for number in range(3):
            put(saver, "t", {"n": number})
            saver.delete_thread("t")
            runner: Any = saver._runner
            assert not runner._spares._idle
            assert values_of(saver, put(saver, "t", {"n": number})) == {"n": number}
            with runner._spares.connect() as lane:
                assert lane.conn.connection.driver_connection.autocommit


def test_a_child_that_is_made_while_threads_store(postgres_url: URL) -> None:
    """It leaves their connections alone, those in the pool too, and stores by its own.

    Not on SQLite, whose library has its locks of a file in the memory that a child is given.
    """
    stop = threading.Event()

    def store(saver: SQLAlchemySaver, name: str) -> int:
        number = 0
        while not stop.is_set():
            number += 1
            put(saver, name, {"n": number, "list": ["x" * 100] * (number % 80)})
            assert values_of(saver, config(name))["n"] == number
        return number

    def child(saver: SQLAlchemySaver) -> NoReturn:
        signal.alarm(20)  # one that waits for ever ends nevertheless
        with suppress(BaseException):
            put(saver, "child", {"n": 1})
            os._exit(values_of(saver, config("child")) != {"n": 1})
        os._exit(2)

    with SQLAlchemySaver.from_url(postgres_url) as saver, ThreadPoolExecutor(6) as pool:
        saver.setup()
        stored = [pool.submit(store, saver, f"t{number}") for number in range(6)]
        try:
            for _ in range(4):
                time.sleep(0.1)
                pid = os.fork()
                if pid == 0:
                    child(saver)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            stop.set()
        assert all(future.result() > 1 for future in stored)
