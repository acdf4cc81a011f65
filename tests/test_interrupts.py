"""An interrupt at any place between a call and SQLite leaves nothing open, lost or waiting."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from backends import Hasty
from builders import put
from interrupts import Interrupted
from sqlalchemy import URL, create_engine, event
from tenacity import stop_after_attempt

from ckpt_orm import DatabaseUnavailable, SQLAlchemySaver, lanes
from ckpt_orm.retries import RETRY

PLACES = {
    str(Path(lanes.__file__).with_name(f"{name}.py"))
    for name in ("runners", "combining", "spares", "lending", "lanes", "operations")
}


FAST: dict[str, Any] = {"connect_args": {"factory": Hasty}}
IN_WORDS = {"connect_args": {"factory": Hasty, "isolation_level": None}}
LEFT_OPEN = {"pool_reset_on_return": None}
KINDS: dict[str, dict[str, Any] | None] = {
    "of a URL": None,
    "of an application": FAST,
    "begun in words": IN_WORDS,
    "left open by its pool": FAST | LEFT_OPEN,
    "begun in words, left open by its pool": IN_WORDS | LEFT_OPEN,
}
CALLS: dict[str, Callable[[Any, Any, int], object]] = {
    "put": lambda saver, parent, number: put(saver, f"t{number}", {"log": ["x" * 70_000]}),
    "put_writes": lambda saver, parent, number: saver.put_writes(parent, [("a", 1)], f"t{number}"),
    "get_tuple": lambda saver, parent, number: saver.get_tuple(parent),
}


DELETE = {"delete_thread": lambda saver, parent, number: saver.delete_thread("t")}
STORED = "SELECT 1 FROM checkpoints WHERE thread_id = ?"


def made(kind: str, url: URL) -> SQLAlchemySaver:
    options = KINDS[kind]
    if options is None:
        return SQLAlchemySaver.from_url(url, **FAST)
    return SQLAlchemySaver(create_engine(url, **options))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_leaves_nothing_open(kind: str, call: str, sqlite_url: URL) -> None:
    saver: Any = made(kind, sqlite_url)
    saver.setup()
    parent, runner = put(saver, "t", {"log": [1]}), saver._runner
    interrupt, place = Interrupted(0, PLACES), 0
    with closing(sqlite3.connect(str(sqlite_url.database), timeout=0)) as other:
        while interrupt.happened or place == 0:
            place += 1
            interrupt = Interrupted(place, PLACES)
            with suppress(KeyboardInterrupt), interrupt:
                CALLS[call](saver, parent, place)
            other.execute("BEGIN EXCLUSIVE")  # nobody holds the file
            other.rollback()
            kept = len(runner._spares._idle) if runner._spares else 0
            if runner.engine.pool.checkedout() > kept:
                gc.collect()  # what was interrupted before it could be kept
            assert runner.engine.pool.checkedout() == kept
            assert not runner._lines.threads._line._leading
            put(saver, f"after {place}", {"log": [1]})
            found = other.execute(STORED, [f"after {place}"])
            assert found.fetchall() == [(1,)]
    assert place > 10
    saver.close()
    runner.engine.dispose()


@pytest.mark.parametrize("call", ["put", "put_writes", "delete_thread"])
@pytest.mark.parametrize("kind", list(KINDS)[1:])
def test_a_commit_that_finds_the_file_read_leaves_nothing_open(
    kind: str, call: str, sqlite_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without WAL who reads holds up a COMMIT, and who waits to commit holds up all others."""
    monkeypatch.setitem(RETRY, "stop", stop_after_attempt(1))
    saver: Any = made(kind, sqlite_url)
    saver.setup()
    parent, engine = put(saver, "t", {"log": [1]}), saver._runner.engine
    with closing(sqlite3.connect(str(sqlite_url.database), timeout=0)) as other:
        assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        event.listen(engine, "checkout", lambda driver, *_: driver.execute("PRAGMA busy_timeout=1"))
        reading = other.execute("SELECT * FROM checkpoints")
        with pytest.raises(DatabaseUnavailable):
            (CALLS | DELETE)[call](saver, parent, 1)
        reading.close()
        assert other.execute("SELECT count(*) FROM checkpoints").fetchone() == (1,)
        other.execute("BEGIN EXCLUSIVE")
    engine.dispose()
