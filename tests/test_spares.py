"""The connection that a saver of its own engine keeps between two calls on a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from builders import config, put, values_of
from sqlalchemy import URL, event

from ckpt_orm import DatabaseError, SQLAlchemySaver


@pytest.fixture
def saver(sqlite_url: URL) -> Iterator[SQLAlchemySaver]:
    with SQLAlchemySaver.from_url(sqlite_url) as found:
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
def test_nobody_waits_for_a_connection_that_is_kept(sqlite_url: URL, size: int) -> None:
    arguments: Any = {"pool_size": size, "max_overflow": 0, "pool_timeout": 5}
    with SQLAlchemySaver.from_url(sqlite_url, **arguments) as saver, ThreadPoolExecutor(12) as pool:
        saver.setup()
        list(pool.map(lambda n: put(saver, f"t{n}", {"n": n}), range(60)))
        found = list(pool.map(lambda n: values_of(saver, config(f"t{n}")), range(60)))
        assert found == [{"n": number} for number in range(60)]
        saver.close()
        assert pool_of(saver).checkedout() == 0


def test_one_on_which_a_call_failed_is_not_kept(saver: SQLAlchemySaver) -> None:
    put(saver, "t", {"n": 1})
    runner: Any = saver._runner
    with runner.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON checkpoints "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    saver.close()
    counted = checkouts(saver)
    for _ in range(2):
        with pytest.raises(DatabaseError):
            put(saver, "t", {"n": 2, "list": [1]})
    assert next(counted) == 2
    assert pool_of(saver).checkedout() == 0
    assert values_of(saver, config("t")) == {"n": 1}


def test_a_saver_that_was_closed_goes_on(saver: SQLAlchemySaver) -> None:
    put(saver, "t", {"n": 1})
    saver.close()
    assert pool_of(saver).checkedout() == 0
    put(saver, "t", {"n": 2})
    assert values_of(saver, config("t")) == {"n": 2}


def test_a_child_process_has_connections_of_its_own(sqlite_url: URL) -> None:
    saver = SQLAlchemySaver.from_url(sqlite_url)
    saver.setup()
    put(saver, "t", {"n": 1})
    pid = os.fork()
    if pid == 0:
        runner: Any = saver._runner
        os._exit(len(runner._spares._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert values_of(saver, config("t")) == {"n": 1}
    saver.close()
