"""A saver inside the caller's transaction: one fate, and nothing of the caller's is touched.

Each test gets a `Transaction`: a Session, a Connection, an AsyncSession or an AsyncConnection with
a table of its own beside the checkpoints, under names that are the same for all of them.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest
from backends import BACKENDS, Backend, Called, called, engine_of
from builders import checkpoint, config, exact, put, version
from langgraph.graph import START, StateGraph
from servers import execute
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from typing_extensions import TypedDict

from ckpt_orm import (
    DatabaseError,
    DatabaseUnavailable,
    InvalidConfig,
    SchemaNotReady,
    SQLAlchemySaver,
    WrongEngine,
)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


#: (the backend, whether its transaction is that of a session)
WAYS = [
    pytest.param(backend, is_session, id=f"{backend.name}-{'session' if is_session else 'conn'}")
    for backend in BACKENDS
    for is_session in (True, False)
    if is_session or backend.name in ("sqlite", "psycopg", "asyncpg")
]
ASYNC_DRIVERS = {"sqlite+aiosqlite", "postgresql+psycopg_async", "postgresql+asyncpg"}


class Transaction:
    """A caller's transaction in either colour, and the saver that works inside it."""

    def __init__(self, outside: Called, guest: Any) -> None:
        self.outside, self.guest = outside, guest
        self.saver = Called(outside.saver.using(guest), outside.loop, outside.given)

    def do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the session or connection, and await it where it is async."""
        found = getattr(self.guest, method)(*args, **kwargs)
        if isinstance(found, Coroutine):
            assert self.outside.loop is not None
            return self.outside.loop.run_until_complete(found)
        return found

    def order(self, note: str) -> None:
        self.do("execute", text("INSERT INTO orders (note) VALUES (:note)"), {"note": note})

    def orders(self) -> list[str]:
        return list(self.do("execute", text("SELECT note FROM orders ORDER BY id")).scalars())


@pytest.fixture
def outside(backend: Backend, request: pytest.FixtureRequest) -> Iterator[Called]:
    """A saver outside of any transaction, on a database that has an application's table too."""
    url: URL = request.getfixturevalue("ready_url")
    sync = url.set(drivername="sqlite" if backend.database == "sqlite" else "postgresql+psycopg")
    engine = create_engine(sync)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()
    with called(backend, url) as found:
        yield found


@pytest.fixture
def transaction(outside: Called, is_session: bool) -> Iterator[Transaction]:
    with opened(outside, is_session) as found:
        yield found


@contextmanager
def opened(outside: Called, is_session: bool) -> Iterator[Transaction]:
    engine: Any = outside.given
    kind = Session if isinstance(engine, Engine) else AsyncSession
    transaction = Transaction(outside, kind(engine) if is_session else engine.connect())
    if isinstance(transaction.guest, AsyncConnection):
        transaction.do("start")
    try:
        yield transaction
    finally:
        transaction.do("close")


every_way = pytest.mark.parametrize(("backend", "is_session"), WAYS)


@every_way
def test_committed_together(transaction: Transaction, outside: Called) -> None:
    transaction.order("tea")
    stored = put(transaction.saver, "t", {"log": ["a"], "n": 1})
    transaction.saver.put_writes(stored, [("log", "b")], "task")
    transaction.order("cake")
    assert transaction.saver.get_tuple(stored).pending_writes == [("task", "log", "b")]
    transaction.do("commit")
    assert transaction.orders() == ["tea", "cake"]
    assert outside.get_tuple(config("t")).checkpoint["channel_values"] == {"log": ["a"], "n": 1}


@every_way
@pytest.mark.parametrize("first", ["order", "put", "read"])
def test_rolled_back_together(transaction: Transaction, outside: Called, first: str) -> None:
    """Also where the saver's statement is the first one: a savepoint alone would be committed."""
    kept = put(outside, "kept", {"log": [1]})
    if first == "order":
        transaction.order("tea")
    if first == "read":
        assert transaction.saver.get_tuple(kept) is not None
    stored = put(transaction.saver, "t", {"log": ["a"]})
    transaction.saver.put_writes(stored, [("log", "b")], "task")
    transaction.saver.delete_thread("kept")
    transaction.order("cake")
    transaction.do("rollback")
    assert transaction.orders() == []
    assert transaction.saver.get_tuple(config("t")) is None
    transaction.do("rollback")
    assert outside.get_tuple(config("t")) is None
    assert outside.get_tuple(kept) is not None


#: Makes the database refuse a checkpoint, while the transaction lasts.
REFUSE = {
    "postgresql": (
        "ALTER TABLE checkpoints ADD CONSTRAINT no_bad CHECK (thread_id <> 'bad')",
        "ALTER TABLE checkpoints DROP CONSTRAINT no_bad",
    ),
    "sqlite": (
        "CREATE TRIGGER no_bad BEFORE INSERT ON checkpoints WHEN new.thread_id = 'bad' "
        "BEGIN SELECT RAISE(ABORT, 'no'); END",
        "DROP TRIGGER no_bad",
    ),
}


@every_way
def test_an_error_undoes_its_own_operation_and_nothing_else(
    transaction: Transaction, outside: Called
) -> None:
    refuse, accept = REFUSE[outside.engine.dialect.name]
    transaction.do("execute", text(refuse))
    transaction.order("tea")
    put(transaction.saver, "good", {"log": [1]})
    with pytest.raises(DatabaseError) as caught:
        put(transaction.saver, "bad", {"log": [2]})
    assert isinstance(caught.value.__cause__, DBAPIError)
    with pytest.raises(InvalidConfig):
        transaction.saver.get_tuple(config("nul\x00"))
    transaction.order("cake")
    put(transaction.saver, "good", {"log": [1, 2]})
    blobs = "SELECT count(*) FROM checkpoint_blobs WHERE thread_id = 'bad'"
    assert transaction.do("execute", text(blobs)).scalar() == 0
    transaction.do("execute", text(accept))
    transaction.do("commit")
    assert transaction.orders() == ["tea", "cake"]
    assert outside.get_tuple(config("good")).checkpoint["channel_values"] == {"log": [1, 2]}
    assert outside.get_tuple(config("bad")) is None


@pytest.mark.parametrize(("backend", "is_session"), [way for way in WAYS if way.values[1]])
def test_a_session_is_not_committed_closed_flushed_or_expired(
    transaction: Transaction, is_session: bool
) -> None:
    session: Session = getattr(transaction.guest, "sync_session", transaction.guest)
    first, second = Order(note="tea"), Order(note="cake")
    session.add(first)
    transaction.do("flush")
    session.add(second)
    fired: list[str] = []
    watched = ("before_flush", "after_commit", "after_rollback", "after_soft_rollback")
    for name in watched:
        event.listen(session, name, lambda *args, name=name: fired.append(name))
    stored = put(transaction.saver, "t", {"log": [1]})
    list(transaction.saver.list(stored))
    transaction.saver.prune(["t"])
    with pytest.raises(InvalidConfig):
        list(transaction.saver.list(stored, limit=-1))
    assert fired == []
    assert session.in_transaction()
    assert second in session.new
    assert "note" in vars(first)  # an expired object has nothing loaded
    transaction.do("rollback")


@every_way
def test_every_method_on_the_one_connection_there_is(
    backend: Backend, ready_url: URL, is_session: bool
) -> None:
    """Of a pool of one, which the caller holds: a call for another connection would time out."""
    one: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    with called(backend, ready_url, one) as outside, opened(outside, is_session) as transaction:
        saver = transaction.saver
        saver.setup()
        first = put(saver, "t", {"log": [1]}, metadata={"run_id": "r1"})
        second = put(saver, "t", {"log": [1, 2]}, first)
        saver.put_writes(second, [("log", 3)], "task")
        assert len(list(saver.list(config("t"), filter={"run_id": "r1"}))) == 1
        assert [found.checkpoints for found in saver.threads()] == [2]
        assert saver.count() == 2
        history = saver.get_delta_channel_history(config=second, channels=["log"])
        assert exact(history["log"]) == exact({"writes": [], "seed": [1]})
        saver.copy_thread("t", "u")
        saver.delete_for_runs(["r1"])
        saver.prune(["t", "u"])
        saver.delete_thread("u")
        saver.close()
        (left,) = saver.list(None)
        assert left.config == second
        assert left.pending_writes == [("task", "log", 3)]
        transaction.do("rollback")
        assert list(saver.list(None)) == []


@every_way
def test_threads_and_tasks_take_turns(transaction: Transaction, outside: Called) -> None:
    root = put(transaction.saver, "t", {"log": []})

    def write(number: int) -> Callable[[Any], Any]:
        return lambda saver: saver.put_writes(root, [("log", number)], f"task{number}")

    transaction.saver.at_once(*(write(number) for number in range(20)))
    transaction.do("commit")
    written = outside.get_tuple(root).pending_writes
    assert sorted(value for _, _, value in written) == list(range(20))


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def fan() -> StateGraph[Any, Any, Any, Any]:
    """Three nodes at once, then one."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("last", lambda state: {"done": ["last"]})
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state, name=name: {"done": [name]})
        builder.add_edge(START, name)
        builder.add_edge(name, "last")
    return builder


def test_those_who_wait_for_its_end_do_not_keep_a_transaction_from_it(database_url: URL) -> None:
    """However many: its own calls need a thread as well, where the engine is a sync one."""
    long = [f"{n:0700}" for n in range(40)]
    engine = create_engine(database_url, **ROOM[database_url.get_backend_name()])
    saver = SQLAlchemySaver(engine)
    saver.setup()

    async def append(to: SQLAlchemySaver, name: str) -> Any:
        given = version()
        stored = checkpoint({"log": [*long, name]}, {"log": given})
        return await to.aput(config("t"), stored, {"source": "loop"}, {"log": given})

    async def go_on() -> None:
        await append(saver, "first")
        with Session(engine) as session:
            mine = saver.using(session)
            await append(mine, "mine")
            others = [asyncio.ensure_future(append(saver, f"{n}")) for n in range(70)]
            await asyncio.sleep(1)
            await asyncio.wait_for(append(mine, "mine too"), 10)
            session.commit()
        await asyncio.gather(*others)

    asyncio.run(go_on())
    assert saver.count() == 73
    engine.dispose()


#: A pool, or a time to wait, in which all of them have room.
ROOM: dict[str, dict[str, Any]] = {
    "postgresql": {"pool_size": 80},
    "sqlite": {"connect_args": {"timeout": 30}},
}


@every_way
@pytest.mark.parametrize("durability", ["exit", "async"])
def test_a_run_in_the_callers_transaction(
    transaction: Transaction, outside: Called, durability: str
) -> None:
    graph = fan().compile(checkpointer=transaction.saver.saver)
    for thread, end in (("gone", "rollback"), ("kept", "commit")):
        transaction.order(thread)
        transaction.saver.run(graph, {"done": []}, config(thread), durability=durability)
        transaction.do(end)
    assert transaction.orders() == ["kept"]
    assert outside.get_tuple(config("gone")) is None
    values = outside.get_tuple(config("kept")).checkpoint["channel_values"]
    assert values["done"] == ["a", "b", "c", "last"]


@pytest.mark.parametrize(
    ("backend", "is_session"), [way for way in WAYS if way.values[0].driver in ASYNC_DRIVERS]
)
def test_a_synchronous_call_in_an_async_transaction(transaction: Transaction) -> None:
    graph = fan().compile(checkpointer=transaction.saver.saver)
    with pytest.raises(WrongEngine, match=r"call the a-method \(graph.ainvoke"):
        graph.invoke({"done": []}, config("t"))


@pytest.mark.parametrize(("backend", "is_session"), [way for way in WAYS if way.values[0].is_async])
def test_a_cancelled_call_costs_the_caller_nothing(
    transaction: Transaction, outside: Called
) -> None:
    """It is over when its caller goes on, and the transaction is as good as before."""
    transaction.order("tea")
    saver = transaction.saver.saver

    async def cancelled(steps: int) -> None:
        found = checkpoint({"log": [steps]}, {"log": version()})
        call = saver.aput(config(f"t{steps}"), found, {}, found["channel_versions"])
        task = asyncio.ensure_future(call)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    assert outside.loop is not None
    for steps in range(12):
        outside.loop.run_until_complete(cancelled(steps))
        transaction.order(f"after {steps}")
    transaction.do("commit")
    assert len(transaction.orders()) == 13


@every_way
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_set_up_in_the_callers_transaction(
    backend: Backend, backend_url: URL, is_session: bool, end: str
) -> None:
    loop = asyncio.new_event_loop() if backend.is_async else None
    with engine_of(backend, backend_url, loop) as engine:
        outside = Called(SQLAlchemySaver(engine), loop, engine)
        with opened(outside, is_session) as transaction:
            with pytest.raises(SchemaNotReady):
                transaction.saver.get_tuple(config("t"))
            transaction.do("execute", text("CREATE TABLE orders (id SERIAL, note TEXT)"))
            transaction.saver.setup()
            stored = put(transaction.saver, "t", {"log": [1]})
            transaction.order("tea")
            transaction.do(end)
        if end == "commit":
            assert outside.get_tuple(stored) is not None
        else:
            with pytest.raises(SchemaNotReady):
                outside.get_tuple(stored)
    if loop is not None:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.mark.parametrize(
    ("backend", "is_session"), [way for way in WAYS if way.values[0].database == "postgres"]
)
def test_a_lost_connection_is_told_at_once(transaction: Transaction, outside: Called) -> None:
    """Another connection would be in another transaction, so none is tried."""
    pid = transaction.do("execute", text("SELECT pg_backend_pid()")).scalar()
    connected: list[object] = []
    event.listen(outside.engine, "do_connect", lambda *args: connected.append(args))
    url = outside.engine.url.set(drivername="postgresql+psycopg")
    execute(url, f"SELECT pg_terminate_backend({pid}, 5000)")
    with pytest.raises(DatabaseUnavailable):
        put(transaction.saver, "t", {"log": [1]})
    transaction.do("rollback")
    assert connected == []


@every_way
def test_in_autocommit_there_is_no_transaction_to_join(
    backend: Backend, ready_url: URL, is_session: bool
) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    with called(backend, ready_url, options) as outside:
        put(outside, "t", {"log": [1]})
        with opened(outside, is_session) as transaction:
            with pytest.raises(WrongEngine, match="AUTOCOMMIT"):
                put(transaction.saver, "t", {"log": [2]})
            transaction.do("rollback")
        assert len(list(outside.list(config("t")))) == 1


# --- what is no transaction, or another thread's ---


def test_what_using_refuses(database_url: URL, sqlite_url: URL, postgres_url: URL) -> None:
    engine = create_engine(database_url)
    saver = SQLAlchemySaver(engine)
    for wrong in (engine, sessionmaker(engine), None, "a session"):
        with pytest.raises(WrongEngine, match="open Session"):
            saver.using(wrong)  # type: ignore[arg-type]
    other = create_engine(sqlite_url if engine.dialect.name == "postgresql" else postgres_url)
    with other.connect() as connection, pytest.raises(WrongEngine, match="another database"):
        saver.using(connection).get_tuple(config("t"))
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize("kind", ["scoped", "bound by table", "a listener that begins"])
def test_other_sessions(database_url: URL, kind: str) -> None:
    """One of this thread's registry, one that is bound table by table, and pysqlite's recipe."""
    engine = create_engine(database_url)
    saver = SQLAlchemySaver(engine)
    saver.setup()
    session: Any = Session(engine)
    if kind == "scoped":
        session = scoped_session(sessionmaker(engine))
    elif kind == "bound by table":
        session = Session(binds={Order: engine})
    elif engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
        engine.dispose()
    Base.metadata.create_all(engine)
    graph = fan().compile(checkpointer=saver.using(session))
    for end in ("rollback", "commit"):
        session.add(Order(note=end))
        session.flush()
        graph.invoke({"done": []}, config(end), durability="exit")
        getattr(session, end)()
    assert [found.note for found in session.query(Order)] == ["commit"]
    session.close()
    assert saver.get_tuple(config("commit")) is not None
    assert saver.get_tuple(config("rollback")) is None
    engine.dispose()


def test_a_copy_of_a_copy_is_in_the_last_transaction(database_url: URL) -> None:
    engine = create_engine(database_url)
    saver = SQLAlchemySaver(engine)
    saver.setup()
    with engine.connect() as connection, Session(connection) as session:
        inside = saver.using(session).using(connection)
        assert "using Connection" in repr(inside)
        put(inside, "t", {"log": [1]})
        connection.rollback()
    assert saver.get_tuple(config("t")) is None
    engine.dispose()
