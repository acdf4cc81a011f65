"""Faults that were found, each as a kind: none of them may come back."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, put, values_of, version
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from sqlalchemy import URL, Engine, create_engine, event, select

from ckpt_orm import InvalidConfig, SQLAlchemySaver, waiting
from ckpt_orm.errors import DatabaseError, DatabaseUnavailable
from ckpt_orm.failures import sqlite_code
from ckpt_orm.statements import statements_for

SYNC = named([backend for backend in BACKENDS if not backend.is_async])


class Name(str, Enum):
    OUT = "out"


class State(TypedDict, total=False):
    out: list[str]
    big: list[Any]


@SYNC
def test_a_channel_named_by_an_enumeration_hides_no_other(saver: Called) -> None:
    def first(state: State) -> Any:
        return {Name.OUT: ["hello"]}

    def second(state: State) -> State:
        interrupt("go on?")
        return {"big": [*state["big"], *state["out"]]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    graph = builder.compile(checkpointer=saver.saver)
    graph.invoke({"big": [1]}, config("t"))
    assert graph.get_state(config("t")).values == {"out": ["hello"], "big": [1]}
    saver.prune(["t"])
    assert graph.invoke(Command(resume=True), config("t"))["big"] == [1, "hello"]


def test_a_key_of_an_enumeration_is_found_by_its_text(saver: Called) -> None:
    put(saver, "t", {}, metadata={Name.OUT: "v", "deep": {Name.OUT: 1}})
    for filter in ({"out": "v"}, {Name.OUT: "v"}, {"deep": {"out": 1}}):
        assert len(list(saver.list(None, filter=filter))) == 1


@pytest.mark.parametrize("name", ["__ckpt_orm__", "__ckpt_orm_entries__"])
def test_a_reserved_channel_is_refused(saver: Called, name: str) -> None:
    with pytest.raises(InvalidConfig, match="rename"):
        put(saver, "t", {name: [1], "other": [2]})


@pytest.mark.parametrize("version", [1e15, 9.999e15, 1e16])
def test_a_version_the_databases_write_differently_is_refused(
    saver: Called, version: float
) -> None:
    with pytest.raises(InvalidConfig, match="version"):
        put(saver, "t", {"a": [1]}, versions={"a": version})


@pytest.fixture
def interrupted(sqlite_url: URL) -> Iterator[Any]:
    """A saver, and a way to have SQLite interrupt a statement that begins with some words."""
    engine = create_engine(sqlite_url)
    words: list[str] = []

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: object) -> None:
        running: list[str] = []
        connection.set_trace_callback(running.append)
        connection.set_progress_handler(
            lambda: int(bool(words and running and running[-1].startswith(words[0]))), 1
        )

    saver = SQLAlchemySaver(engine)
    saver.setup()
    yield saver, words
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_a_put_that_sqlite_rolls_back_is_not_acknowledged(interrupted: Any) -> None:
    saver, words = interrupted
    words.append("INSERT INTO checkpoints")
    with pytest.raises(DatabaseError):
        put(saver, "t", {"blob": ["precious"]})
    words.clear()
    assert saver.get_tuple(config("t")) is None
    kept = put(saver, "t", {"blob": ["precious"]})
    assert values_of(saver, kept) == {"blob": ["precious"]}


def test_a_prune_that_sqlite_rolls_back_takes_nothing(interrupted: Any) -> None:
    saver, words = interrupted
    parent = None
    for number in range(5):
        parent = put(saver, "t", {"a": [number]}, parent)
    words.append("DELETE FROM checkpoint_blobs")
    with pytest.raises(DatabaseError):
        saver.prune(["t"])
    words.clear()
    found = [t.checkpoint["channel_values"]["a"] for t in saver.list(config("t"))]
    assert found == [[4], [3], [2], [1], [0]]


def test_a_checkpoint_is_read_by_key_however_many_there_are(sqlite_url: URL) -> None:
    """Through the blobs' key with all four columns, never through a thread's blobs."""
    engine = create_engine(sqlite_url)
    SQLAlchemySaver(engine).setup()
    st = statements_for(SQLAlchemySaver(engine).models, "sqlite")
    with engine.connect() as conn:
        for statement in (st.LATEST, st.AT, st.BLOBS_OF_DOCUMENT):
            compiled: Any = statement.compile(dialect=engine.dialect)  # type: ignore[attr-defined]
            plan = conn.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {compiled}", tuple("0" for _ in compiled.positiontup)
            )
            steps = [row[3] for row in plan if "checkpoint_blobs" in row[3]]
            assert steps
            assert all("version=?" in step for step in steps), steps
    engine.dispose()


def test_a_listener_that_executes_on_connect_is_no_hindrance(saver: Called) -> None:
    @event.listens_for(saver.engine, "engine_connect")
    def ping(conn: Any) -> None:
        conn.scalar(select(1))

    parent = put(saver, "t", {"a": [1]})
    put(saver, "t", {"a": [2]}, parent)
    saver.prune(["t"])
    assert values_of(saver, config("t")) == {"a": [2]}


def test_busy_nodes_do_not_keep_a_load_waiting(sqlite_url: URL) -> None:
    """Nodes fill the loop's threads; what they may be waiting for is not behind them."""
    saver = SQLAlchemySaver.from_url(sqlite_url)
    saver.setup()

    async def load_while_all_wait() -> Any:
        loop = asyncio.get_running_loop()
        loaded = asyncio.Event()

        def wait_for_the_load() -> bool:
            return asyncio.run_coroutine_threadsafe(loaded.wait(), loop).result(30)

        waiting = [asyncio.to_thread(wait_for_the_load) for _ in range(64)]
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.sleep(0)
        found = await saver.aget_tuple(config("t"))
        loaded.set()
        await asyncio.gather(*tasks)
        return found

    assert asyncio.run(load_while_all_wait()) is None
    saver.close()


def test_a_locked_file_is_given_up_in_time(sqlite_url: URL) -> None:
    """After a few runs of the engine's own timeout."""
    engine = create_engine(sqlite_url, connect_args={"timeout": 0.2})
    saver = SQLAlchemySaver(engine)
    saver.setup()
    locked = sqlite3.connect(str(sqlite_url.database))
    locked.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseError):
        put(saver, "t", {"a": [1]})
    locked.close()
    put(saver, "t", {"a": [1]})
    engine.dispose()


@pytest.mark.parametrize("is_async", [False, True], ids=["pysqlite", "aiosqlite"])
def test_many_who_find_a_file_locked_wait_at_the_same_time(
    sqlite_url: URL, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not each after the one before: those who stand in line are told what the first met."""
    backend = Backend("", "sqlite", "sqlite+aiosqlite" if is_async else "sqlite", is_async)
    number, met, begin = 40, list[float](), waiting.monotonic

    def noted() -> float:
        met.append(begin())
        return met[-1]

    with called(backend, sqlite_url, {"connect_args": {"timeout": 0.2}}) as saver:
        put(saver, "before", {"a": [1]})
        calls = [partial(attempted, f"t{n}", is_async) for n in range(number)]
        monkeypatch.setattr(waiting, "monotonic", noted)
        with closing(sqlite3.connect(str(sqlite_url.database))) as locked:
            locked.execute("BEGIN IMMEDIATE")
            outcomes = saver.at_once(*calls)
        assert {type(each) for each in outcomes} == {DatabaseUnavailable}
        assert all("the file was locked all the time" in str(each) for each in outcomes)
        assert 0 < len(met) < number
        monkeypatch.undo()
        assert saver.count() == 1
        saver.at_once(*calls)
        assert saver.count() == 1 + number


def attempted(thread: str, is_async: bool, saver: Any) -> Any:
    """What a call that puts a checkpoint returns, or raises; or one that tells it on a loop."""
    given = version()
    stored = checkpoint({"a": [1]}, {"a": given})
    call = partial(saver.put, config(thread), stored, {"source": "loop"}, {"a": given})

    async def told_later() -> Any:
        try:
            return await call()
        except DatabaseError as error:
            return error

    if is_async:
        return told_later()
    try:
        return call()
    except DatabaseError as error:
        return error


def test_who_waits_for_a_lock_keeps_nobody_else_from_a_thread(tmp_path: Path) -> None:
    """Neither reads of the same database nor calls of another one."""
    one, other = (SQLAlchemySaver.from_url(f"sqlite:///{tmp_path}/{name}") for name in "ab")
    for saver in (one, other):
        saver.setup()

    async def read_while_many_wait() -> None:
        locked = sqlite3.connect(tmp_path / "a")
        locked.execute("BEGIN IMMEDIATE")
        tasks = [asyncio.ensure_future(aput(one, f"t{number}")) for number in range(80)]
        await asyncio.sleep(0.3)
        for call in (one.aget_tuple(config("t")), aput(other, "t"), other.aget_tuple(config("t"))):
            await asyncio.wait_for(call, 5)
        locked.close()
        await asyncio.gather(*tasks)

    asyncio.run(read_while_many_wait())
    assert one.count() == 80
    one.close()
    other.close()


async def aput(saver: SQLAlchemySaver, thread: str) -> Any:
    given = version()
    stored = checkpoint({"a": [1]}, {"a": given})
    return await saver.aput(config(thread), stored, {"source": "loop"}, {"a": given})


def test_repr_shows_no_password_wherever_it_stands() -> None:
    for url in ("postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret"):
        assert "s3cret" not in repr(SQLAlchemySaver.from_url(url))


@pytest.mark.parametrize("id", ["a\x00b", "\ud800"])
def test_an_id_that_cannot_be_stored_is_refused_everywhere(saver: Called, id: str) -> None:
    calls = [
        lambda: saver.prune([id]),
        lambda: saver.delete_for_runs([id]),
        lambda: saver.delete_thread(id),
        lambda: saver.get_delta_channel_history(config=config("t"), channels=[id]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="remove it"):
            call()


def test_odd_metadata_hinders_no_deletion(saver: Called) -> None:
    from uuid import uuid4

    put(saver, "t", {"a": [1]}, metadata={"run_id": uuid4(), "parents": ["x"]})
    put(saver, "t", {"a": [2]}, metadata={"run_id": "r1", "counters_since_delta_snapshot": 3})
    saver.delete_for_runs(["r1"])
    assert [t.checkpoint["channel_values"] for t in saver.list(config("t"))] == [{"a": [1]}]
    saver.prune(["t"])
    assert len(list(saver.list(config("t")))) == 1


def test_the_engine_of_a_saver_is_not_changed(saver: Called) -> None:
    engine: Engine = saver.engine
    put(saver, "t", {"a": [1]})
    assert dict(engine.get_execution_options()) == {}


def locked(path: Path) -> None:
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(path, timeout=0)) as other:
        one.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO t VALUES (2)")


def locked_in_one_cache(path: Path) -> None:
    with closing(shared(path)) as one, closing(shared(path)) as other:
        one.execute("INSERT INTO t VALUES (2)")
        other.execute("SELECT * FROM t")


def shared(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?cache=shared", uri=True, timeout=0)


def of(statement: str, name: str = "{}") -> Callable[[Path], None]:
    def execute(path: Path) -> None:
        with closing(sqlite3.connect(f"file:{name.format(path)}", uri=True)) as connection:
            connection.executescript(statement)

    return execute


def overwritten(path: Path) -> None:
    path.write_bytes(b"this is no database" * 300)
    of("SELECT * FROM t")(path)


def torn(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    of("SELECT * FROM t")(path)


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (locked, "SQLITE_BUSY"),
        (locked_in_one_cache, "SQLITE_LOCKED"),
        (overwritten, "SQLITE_NOTADB"),
        (torn, "SQLITE_CORRUPT"),
        (of("INSERT INTO t VALUES (2)", "{}?mode=ro"), "SQLITE_READONLY"),
        (of("SELECT 1", "{}/no/such/file"), "SQLITE_CANTOPEN"),
        (of("PRAGMA max_page_count=1; CREATE TABLE big AS SELECT randomblob(9999)"), "SQLITE_FULL"),
        (of("INSERT INTO t VALUES (1)"), "SQLITE_CONSTRAINT"),
        (of("SELECT * FROM no_such_table"), "SQLITE_ERROR"),
        (of("SELECT no_such_column FROM t"), "SQLITE_ERROR"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_sqlites_codes_are_told_by_its_words(
    fails: Callable[[Path], None], code: str, tmp_path: Path
) -> None:
    """Python 3.10 knows nothing else; later ones say whether it is right."""
    path = tmp_path / "a.db"
    of("CREATE TABLE t (a INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")(path)
    with pytest.raises(sqlite3.Error) as caught:
        fails(path)
    assert sqlite_code(caught.value) == code
    if sys.version_info >= (3, 11):
        assert caught.value.sqlite_errorname.startswith(code)
