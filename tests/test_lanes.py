"""The short lane to the driver gives what Core gives, and gives way to whoever looks or listens."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy
from backends import BACKENDS, Called, named
from builders import config, put, values_of
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ckpt_orm import SQLAlchemySaver, declare, lanes
from ckpt_orm.lanes import Lane
from ckpt_orm.rows import key_of
from ckpt_orm.statements import statements_for

IN_THE_CALLERS_THREAD = named([b for b in BACKENDS if b.name in ("sqlite", "psycopg")])


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The statements that took the short lane."""
    taken: list[Any] = []
    original = Lane._execute_directly

    def counted(lane: Lane, compiled: Any, *given: Any) -> Any:
        taken.append(compiled)
        return original(lane, compiled, *given)

    monkeypatch.setattr(Lane, "_execute_directly", counted)
    return taken


def everything(saver: Called) -> list[Any]:
    """What every reading method returns, after something was stored."""
    parent = put(saver, "t", {"a": [1], "b": "x"})
    saver.put_writes(parent, [("a", b"\x00\xff"), ("b", None)], "task", "path")
    latest = put(saver, "t", {"a": [1, 2], "b": "y"}, parent)
    return [
        saver.get_tuple(config("t")),
        saver.get_tuple(parent),
        list(saver.list(config("t"), filter={}, limit=5)),
        saver.get_delta_channel_history(config=latest, channels=["a"]),
    ]


def values(results: list[Any]) -> list[Any]:
    first, second, page, history = results
    tuples = [first, second, *page]
    return [(t.checkpoint["channel_values"], t.pending_writes) for t in tuples] + [history]


@IN_THE_CALLERS_THREAD
def test_both_lanes_give_the_same(
    saver: Called, direct: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = values(everything(saver))
    assert direct
    saver.delete_thread("t")
    direct.clear()
    monkeypatch.setattr(lanes, "DRIVERS", set())
    assert values(everything(saver)) == short
    assert not direct


@pytest.mark.skipif(
    sqlalchemy.__version__.startswith("2.0."), reason="SQLAlchemy 2.0 caches no ON CONFLICT"
)
def test_core_compiles_no_statement_twice(saver: Called) -> None:
    """To compile one takes longer than to store what is small, and on a loop it holds up others."""
    heard: dict[str, CacheStats] = {}

    def listen(conn: Any, cursor: Any, text: str, params: Any, context: Any, many: bool) -> None:
        heard[text] = context.cache_hit

    everything(saver)
    event.listen(saver.engine, "after_cursor_execute", listen)
    everything(saver)
    heard.clear()
    everything(saver)
    event.remove(saver.engine, "after_cursor_execute", listen)
    by_name = {text: hit for text, hit in heard.items() if not text.startswith("BEGIN")}
    assert len(by_name) > 3
    assert set(by_name.values()) == {CacheStats.CACHE_HIT}, heard


@IN_THE_CALLERS_THREAD
@pytest.mark.parametrize("name", lanes.EVENTS)
def test_a_listener_hears_every_statement(saver: Called, direct: list[Any], name: str) -> None:
    engine: Engine = saver.engine
    heard: list[str] = []

    def listen(*args: Any, **kwargs: Any) -> None:
        heard.append(name)

    everything(saver)
    direct.clear()
    event.listen(engine, name, listen)
    try:
        saver.get_tuple(config("t"))
        saver.put_writes(saver.get_tuple(config("t")).config, [("a", 1)], "task")
    finally:
        event.remove(engine, name, listen)
    assert len(heard) >= 3
    assert not direct


@pytest.mark.parametrize("name", lanes.TRANSACTION_EVENTS[:2])
def test_a_listener_hears_of_a_transaction(sqlite_url: URL, name: str) -> None:
    saver = SQLAlchemySaver.from_url(sqlite_url)
    saver.setup()
    parent = put(saver, "t", {"a": [1]})
    heard: list[str] = []
    event.listen(saver._runner.engine, name, lambda conn: heard.append(name))
    saver.put_writes(parent, [("a", 1)], "task")
    assert heard == [name]
    saver.close()


def test_a_commit_that_fails_is_told_by_core_and_keeps_nothing(sqlite_url: URL) -> None:
    engine = create_engine(sqlite_url)
    st = statements_for(declare(), "sqlite")
    with engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA foreign_keys=ON")
        conn.exec_driver_sql("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        conn.exec_driver_sql(
            "CREATE TABLE b (id INTEGER REFERENCES a DEFERRABLE INITIALLY DEFERRED)"
        )
        conn.commit()
        driver: Any = conn.connection.driver_connection
        with pytest.raises(IntegrityError), Lane(conn, st).transaction():
            driver.execute("INSERT INTO b VALUES (1)")
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM b").scalar() == 0
    engine.dispose()


@IN_THE_CALLERS_THREAD
def test_a_log_shows_every_statement(
    saver: Called, direct: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    everything(saver)
    direct.clear()
    saver.engine.echo = True
    try:
        with caplog.at_level(logging.INFO, "sqlalchemy.engine"):
            saver.get_tuple(config("t"))
    finally:
        saver.engine.echo = False
    assert "checkpoint_blobs" in caplog.text
    assert not direct


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
@pytest.mark.parametrize("level", ["", None])
@pytest.mark.parametrize("is_logged", [True, False])
def test_a_listener_begins_where_another_looks_on(
    sqlite_url: URL, begin: str, level: str | None, is_logged: bool
) -> None:
    """What SQLAlchemy says of transactions on pysqlite, and a log: what is read begins once."""
    engine = create_engine(sqlite_url, connect_args={"isolation_level": level}, echo=is_logged)
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(begin))
    heard: list[str] = []
    event.listen(engine, "after_cursor_execute", lambda *args: heard.append(args[2]))
    saver = SQLAlchemySaver(engine)
    saver.setup()
    stored = put(saver, "t", {"log": [1]})
    heard.clear()
    assert values_of(saver, stored) == {"log": [1]}
    assert heard[0] == begin
    assert [text.split()[0] for text in heard[1:]] == ["SELECT"] * 3
    with Session(engine) as session:
        assert values_of(saver.using(session), stored) == {"log": [1]}
    with closing(sqlite3.connect(str(sqlite_url.database), timeout=0.1)) as other:
        other.execute("BEGIN EXCLUSIVE")  # nobody reads or writes
    engine.dispose()


@IN_THE_CALLERS_THREAD
def test_an_error_is_told_by_core(saver: Called, direct: list[Any]) -> None:
    st = statements_for(saver.models, saver.engine.dialect.name)
    params = {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1", "task_id": "1"}
    row = {"idx": 0, "channel": None, "type": None, "blob": b""}
    params |= {
        "task_path": "",
        **(row if st.dialect.stores_each else {"rows": "?", "payload": b""}),
    }
    with saver.engine.connect() as conn, pytest.raises(DBAPIError):
        Lane(conn, st).execute(st.WRITES, params)
    assert [one.text for one in direct] == [str(st.WRITES.compile(dialect=saver.engine.dialect))]


@IN_THE_CALLERS_THREAD
def test_a_transaction_that_an_error_spoils_is_left_to_core(
    saver: Called, direct: list[Any]
) -> None:
    st = statements_for(saver.models, saver.engine.dialect.name)
    params = {k: v for k, v in key_of(config("t"))._asdict().items() if v is not None}
    with saver.engine.begin() as conn:
        Lane(conn, st).execute(st.LATEST, params)
    assert len(direct) == (1 if st.dialect.forgives else 0)
