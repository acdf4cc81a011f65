"""In an application's own engine: its pool, its events, its settings, and nothing beside them."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import config, exact, put, values_of
from langgraph.graph import START, StateGraph
from sqlalchemy import URL, Engine, create_engine, event, inspect, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, Pool
from typing_extensions import TypedDict

from ckpt_orm import SQLAlchemySaver, WrongEngine

ROOT = Path(__file__).parent.parent
POSTGRES = [backend for backend in BACKENDS if backend.database == "postgres"]
ONE: dict[str, Any] = {"pool_size": 1, "max_overflow": 0}


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def fan(saver: Called) -> Any:
    """Three nodes at once."""
    builder: Any = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state, name=name: {"done": [name]})
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver.saver)


@contextmanager
def counted() -> Iterator[list[object]]:
    """Every connection that any engine of this process opens meanwhile."""
    opened: list[object] = []

    def connected(connection: object, record: object) -> None:
        opened.append(connection)

    event.listen(Pool, "connect", connected)
    try:
        yield opened
    finally:
        event.remove(Pool, "connect", connected)


# --- one pool ---


def test_no_connection_but_the_applications_one(backend: Backend, ready_url: URL) -> None:
    """Of a pool of one: a graph with three nodes at once, and every look at it."""
    with counted() as opened, called(backend, ready_url, ONE) as saver:
        checkouts: list[object] = []
        event.listen(saver.engine.pool, "checkout", lambda *args: checkouts.append(args[0]))
        graph = fan(saver)
        for durability in ("sync", "async", "exit"):
            found = saver.run(graph, {"done": []}, config(durability), durability=durability)
            assert found == {"done": ["a", "b", "c"]}
        assert len(list(saver.list(None, limit=3))) == 3
        assert len(list(saver.threads())) == 3
        saver.prune(["sync"])
        assert len(opened) == 1
        assert {id(connection) for connection in checkouts} == {id(opened[0])}


def kinds(engine: Any) -> list[Callable[[], Any]]:
    """What an application may hold instead of its engine."""
    if isinstance(engine, Engine):
        return [lambda: sessionmaker(engine), lambda: scoped_session(sessionmaker(engine))]
    maker = async_sessionmaker(engine)
    return [lambda: maker, lambda: async_scoped_session(maker, lambda: None)]


def test_a_sessionmaker_stands_for_its_engine(saver: Called) -> None:
    for number, kind in enumerate(kinds(saver.given)):
        other = Called(SQLAlchemySaver(kind()), saver.loop, saver.given)
        put(other, "t", {"n": number})
        assert values_of(saver, config("t")) == {"n": number}
        assert repr(other.saver) == repr(saver.saver)


def test_both_sessionmakers(sqlite_url: URL) -> None:
    engine = create_engine(sqlite_url)
    async_engine = create_async_engine(sqlite_url.set(drivername="sqlite+aiosqlite"))
    saver = SQLAlchemySaver(sessionmaker(engine), async_sessionmaker(async_engine))
    saver.setup()
    put(saver, "t", {"n": 1})
    engine.dispose()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda engine: sessionmaker(),
        lambda engine: sessionmaker(binds={Session: engine}),
        lambda engine: Session(engine),
        lambda engine: AsyncSession(),
        lambda engine: engine.url,
        lambda engine: "sqlite://",
        lambda engine: None,
    ],
)
def test_what_is_no_engine(sqlite_url: URL, wrong: Callable[[Engine], Any]) -> None:
    engine = create_engine(sqlite_url)
    with pytest.raises(WrongEngine, match="from_url"):
        SQLAlchemySaver(wrong(engine))
    with pytest.raises(WrongEngine, match="from_url"):
        SQLAlchemySaver(engine, engine)  # type: ignore[arg-type]


# --- its events and settings ---


def disposed(saver: Called) -> None:
    """`engine.dispose()`, as an application does it."""
    if isinstance(saver.given, Engine):
        saver.given.dispose()
    else:
        assert saver.loop is not None
        assert saver.given is not None
        saver.loop.run_until_complete(saver.given.dispose())


def test_dispose_between_calls(saver: Called) -> None:
    first = put(saver, "t", {"log": [1]})
    disposed(saver)
    second = put(saver, "t", {"log": [1, 2]}, first)
    items = saver.list(config("t"))
    assert next(items).config == second
    disposed(saver)
    assert [found.config for found in items] == [first]


@named(POSTGRES)
def test_a_token_that_rotates_is_used_for_each_new_connection(saver: Called) -> None:
    tokens = iter(["first", "second"])

    def connecting(dialect: Any, record: object, arguments: object, options: Any) -> None:
        if dialect.driver == "asyncpg":
            options = options.setdefault("server_settings", {})
        options["application_name"] = next(tokens)

    put(saver, "t", {"n": 0})
    event.listen(saver.engine, "do_connect", connecting)
    direct = create_engine(
        saver.engine.url.set(drivername="postgresql+psycopg"), poolclass=NullPool
    )
    names = text(
        "SELECT application_name FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for token in ("first", "second"):
        disposed(saver)
        put(saver, "t", {"n": 1})
        with direct.connect() as connection:
            assert token in connection.execute(names).scalars().all()
    assert next(tokens, None) is None


def junk(*_: object) -> Any:
    return {"junk": True}


def test_json_functions_of_the_engine_are_not_used(backend: Backend, ready_url: URL) -> None:
    options = {"json_serializer": lambda _: '"junk"', "json_deserializer": junk}
    with called(backend, ready_url, options) as saver:
        stored = put(saver, "t", {"n": 1, "log": [1]}, metadata={"step": 0, "who": "me"})
        saver.put_writes(stored, [("log", 2)], "task")
        found = saver.get_tuple(stored)
        assert exact(found.checkpoint["channel_values"]) == exact({"n": 1, "log": [1]})
        assert found.metadata == {"step": 0, "who": "me"}
        assert found.pending_writes == [("task", "log", 2)]
        assert len(list(saver.list(None, filter={"who": "me"}))) == 1
        (told,) = saver.threads(filter={"who": "me"})
        assert told.step == 0
        saver.prune(["t"])
        assert values_of(saver, stored) == {"n": 1, "log": [1]}


def test_statements_are_seen_and_may_be_changed(saver: Called) -> None:
    """As logging, tracing and the commenters of statements do it."""
    seen: list[str] = []

    def comment(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: object) -> Any:
        seen.append(statement)
        return f"{statement} /* from the application */", parameters

    event.listen(saver.engine, "before_cursor_execute", comment, retval=True)
    stored = put(saver, "t", {"log": [1]})
    assert values_of(saver, stored) == {"log": [1]}
    assert any("INSERT INTO checkpoints" in statement for statement in seen)
    assert any("SELECT" in statement and "checkpoint_blobs" in statement for statement in seen)


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_its_isolation_level(backend: Backend, backend_url: URL, level: str) -> None:
    with called(backend, backend_url, {"isolation_level": level}) as saver:
        root = put(saver, "t", {"log": [1]}, metadata={"run_id": "r"})
        saver.at_once(
            *(
                lambda saver, task=f"task{number}": saver.put_writes(root, [("log", task)], task)
                for number in range(8)
            )
        )
        assert len(saver.get_tuple(root).pending_writes) == 8
        saver.copy_thread("t", "u")
        saver.delete_for_runs(["r"])
        assert list(saver.list(None)) == []
        assert saver.run(fan(saver), {"done": []}, config("t")) == {"done": ["a", "b", "c"]}


def test_its_schema_translate_map(backend: Backend, backend_url: URL, tmp_path: Path) -> None:
    """Set-up, every statement, and a look at the schema go where the map leads."""
    options = {"execution_options": {"schema_translate_map": {None: "agents"}}}
    with mapped(backend, backend_url, tmp_path, options) as saver:
        saver.setup()
        stored = put(saver, "t", {"log": [1], "n": 1})
        saver.put_writes(stored, [("log", 2)], "task")
        assert values_of(saver, stored) == {"log": [1], "n": 1}
        assert [told.thread_id for told in saver.threads()] == ["t"]
        saver.prune(["t"])
        saver.copy_thread("t", "u")
        assert saver.count() == 2
        assert tables(saver, "agents") >= {"checkpoints", "checkpoint_writes"}
        assert tables(saver, None) == set()


@contextmanager
def mapped(backend: Backend, url: URL, folder: Path, options: dict[str, Any]) -> Iterator[Called]:
    """A saver that is not set up yet; on SQLite a schema is an attached file."""

    def attach(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"ATTACH '{folder / 'agents.db'}' AS agents")
        cursor.close()

    if backend.database == "sqlite":
        event.listen(Pool, "connect", attach)
    try:
        with called(backend, url, options) as saver:
            yield saver
    finally:
        if backend.database == "sqlite":
            event.remove(Pool, "connect", attach)


def tables(saver: Called, schema: str | None) -> set[str]:
    """The names of the tables in a schema, asked on a connection of another engine."""
    url = saver.engine.url
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database)).parent / "agents.db" if schema else url.database
        engine, schema = create_engine(f"sqlite:///{file}"), None
    else:
        engine = create_engine(url.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        found = set(inspect(connection).get_table_names(schema))
    engine.dispose()
    return found


# --- its types ---

CONSUMER = """
from collections.abc import AsyncIterator, Iterator

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from sqlalchemy import Connection, Engine, ForeignKey
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, sessionmaker

from ckpt_orm import (
    Checkpoint,
    CheckpointBlobMixin,
    CheckpointMixin,
    CheckpointSegmentMixin,
    CheckpointWriteMixin,
    Models,
    SQLAlchemySaver,
    TenantMixin,
    ThreadSummary,
    declare,
    from_config,
    tenant_column,
)


def savers(
    engine: Engine,
    async_engine: AsyncEngine,
    make: sessionmaker[Session],
    amake: async_sessionmaker[AsyncSession],
) -> list[BaseCheckpointSaver[str]]:
    return [
        SQLAlchemySaver(engine),
        SQLAlchemySaver(async_engine),
        SQLAlchemySaver(engine, async_engine, schema="agents", table_prefix="bot_"),
        SQLAlchemySaver(make, amake),
        SQLAlchemySaver.from_url("postgresql://localhost/db", pooler="transaction", pool_size=3),
    ]


def inside(saver: SQLAlchemySaver, session: Session, connection: Connection) -> SQLAlchemySaver:
    return saver.using(session).using(connection)


def ainside(saver: SQLAlchemySaver, s: AsyncSession, c: AsyncConnection) -> SQLAlchemySaver:
    return saver.using(s).using(c)


def told(saver: SQLAlchemySaver) -> tuple[Iterator[ThreadSummary], AsyncIterator[ThreadSummary]]:
    return saver.threads(filter={"user": 1}, limit=3), saver.athreads(after="t")


async def counted(saver: SQLAlchemySaver) -> tuple[int, bool, int, bool]:
    found: CheckpointTuple | None = await saver.aget_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    config = found.config
    return (
        saver.count(config), saver.exists(config), await saver.acount(), await saver.aexists(config)
    )


class Base(DeclarativeBase):
    pass


class Owned:
    team: Mapped[str] = from_config("team", index=True)


class AppCheckpoint(Owned, CheckpointMixin, Base):
    __tablename__ = "states"
    user_id: Mapped[int | None] = from_config("user_id", ForeignKey("users.id"), index=True)


class AppBlob(CheckpointBlobMixin, Base):
    __tablename__ = "blobs"


class AppWrite(CheckpointWriteMixin, Base):
    __tablename__ = "writes"


class AppSegment(CheckpointSegmentMixin, Base):
    __tablename__ = "segments"


def on_own_tables(engine: Engine) -> list[SQLAlchemySaver]:
    return [
        SQLAlchemySaver(engine, models=Models(AppCheckpoint, AppBlob, AppWrite, AppSegment)),
        SQLAlchemySaver(engine, models=declare(Base, schema="x", prefix="bot_", extra=Owned)),
        SQLAlchemySaver.from_url("sqlite://", models=declare(Base, extra=[Owned])),
    ]


class OfOrg:
    org_id: Mapped[int] = tenant_column(ForeignKey("orgs.id"), key="org")


class OrgCheckpoint(OfOrg, CheckpointMixin, Base):
    __tablename__ = "org_states"


def of_tenants(engine: Engine, session: Session) -> list[SQLAlchemySaver]:
    saver = SQLAlchemySaver(engine, models=declare(Base, every=TenantMixin))
    return [saver.scoped(tenant_id="acme").using(session), saver.using(session).scoped(org_id=7)]


org_id: int = OrgCheckpoint().org_id
user_id: int | None = AppCheckpoint().user_id
team: str = AppCheckpoint().team
thread_id: str = Checkpoint().thread_id
step: int | None = next(SQLAlchemySaver.from_url("sqlite://").threads()).step
models = declare(schema="agents")
"""

MISTAKES = """
from ckpt_orm import Checkpoint, Models, SQLAlchemySaver, declare, from_config

saver = SQLAlchemySaver.from_url("sqlite://", pooler="transaction")
SQLAlchemySaver(3)
SQLAlchemySaver.from_url("sqlite://", pooler="session")
saver.using("session")
saver.threads(limit="3")
number: str = saver.count()
saver.thread()
Checkpoint().thread_id + 1
declare("agents")
Models(Checkpoint, Checkpoint, Checkpoint, Checkpoint)
from_config(7)
SQLAlchemySaver.from_url("sqlite://", models=Checkpoint)
saver.scoped("acme")
"""

#: The lines of them.
BAD = range(5, 17)


@pytest.mark.parametrize(
    "checker",
    [
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")],
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
    ],
    ids=["mypy", "pyright"],
)
def test_an_application_is_checked_against_the_types(checker: list[str], tmp_path: Path) -> None:
    pytest.importorskip(checker[2], reason=f"NOT TESTED: {checker[2]} is not installed")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(CONSUMER)
    bad.write_text(MISTAKES)
    done = subprocess.run(
        [*checker, str(good), str(bad)], cwd=tmp_path, capture_output=True, text=True
    )
    errors = [line for line in done.stdout.splitlines() if "error" in line and ".py:" in line]
    assert [line for line in errors if "good.py" in line] == []
    assert {int(line.split(".py:")[1].split(":")[0]) for line in errors} == set(BAD), errors
