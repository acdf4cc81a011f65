"""Making a saver: from every URL, from both kinds of engine, for every thread and event loop."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from builders import checkpoint, config, put, values_of, version
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

import ckpt_orm
from ckpt_orm import (
    CheckpointError,
    CorruptCheckpoint,
    DatabaseError,
    DatabaseUnavailable,
    InvalidConfig,
    SchemaNotReady,
    SQLAlchemySaver,
    UnsupportedDialect,
    WrongEngine,
)
from ckpt_orm.engines import create
from ckpt_orm.errors import MissingExtra, ModelsNotReady

SYNC_DRIVERS = ["sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"]
ASYNC_DRIVERS = ["sqlite+aiosqlite", "postgresql+psycopg_async", "postgresql+asyncpg"]
MEMORY_URLS = ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite+pysqlite://"]

UrlOf = Callable[[str], URL]


@pytest.fixture
def url_of(request: pytest.FixtureRequest) -> UrlOf:
    """The URL of an empty database under a driver."""

    def found(driver: str) -> URL:
        fixture = "postgres_url" if driver.startswith("postgres") else "sqlite_url"
        url: URL = request.getfixturevalue(fixture)
        return url.set(drivername=driver)

    return found


class State(TypedDict):
    seen: Annotated[list[int], lambda old, new: old + new]


def graph_on(saver: Any) -> Any:
    """Two nodes that run at once, so that a saver is called from several threads or tasks."""
    builder = StateGraph(State)
    for number in (1, 2):
        builder.add_node(f"n{number}", lambda state, number=number: {"seen": [number]})
        builder.add_edge(START, f"n{number}")
        builder.add_edge(f"n{number}", END)
    return builder.compile(checkpointer=saver)


# --- from a URL ---


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_sync_url_serves_both_colours(url_of: UrlOf, driver: str) -> None:
    url = url_of(driver)
    with SQLAlchemySaver.from_url(url.render_as_string(hide_password=False)) as saver:
        saver.setup()
        graph = graph_on(saver)
        assert graph.invoke({"seen": [0]}, config("t")) == {"seen": [0, 1, 2]}
        assert asyncio.run(graph.ainvoke({"seen": []}, config("t"))) == {"seen": [0, 1, 2, 1, 2]}
        assert graph.get_state(config("t")).values == {"seen": [0, 1, 2, 1, 2]}
        assert len(list(saver.list(config("t")))) == 6


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_an_async_url_serves_async_calls(url_of: UrlOf, driver: str) -> None:
    async def main() -> None:
        async with SQLAlchemySaver.from_url(url_of(driver), pool_size=2) as saver:
            await saver.asetup()
            graph = graph_on(saver)
            assert await graph.ainvoke({"seen": [0]}, config("t")) == {"seen": [0, 1, 2]}
            with pytest.raises(WrongEngine, match=r"SQLAlchemySaver\(engine, async_engine\)"):
                saver.get_tuple(config("t"))

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["postgresql", *ASYNC_DRIVERS])
@pytest.mark.parametrize("level", ["SERIALIZABLE", "AUTOCOMMIT"])
@pytest.mark.parametrize("in_options", [False, True])
def test_an_isolation_level_may_be_given(
    url_of: UrlOf, driver: str, level: str, in_options: bool
) -> None:
    """In either place where an engine takes one."""
    given = {"isolation_level": level}
    arguments: dict[str, Any] = {"execution_options": given} if in_options else given

    async def on_a_saver(call: Callable[[Any], Awaitable[Any]]) -> Any:
        async with SQLAlchemySaver.from_url(url_of(driver), **arguments) as saver:
            return await call(saver)

    async def store(saver: SQLAlchemySaver) -> None:
        await saver.asetup()
        versions = {"log": version()}
        stored = checkpoint({"log": [1]}, versions)
        at = await saver.aput(config("t"), stored, {}, versions)
        await saver.aput_writes(at, [("log", 2)], "task")

    asyncio.run(on_a_saver(store))
    found = asyncio.run(on_a_saver(lambda saver: saver.aget_tuple(config("t"))))
    assert found.checkpoint["channel_values"] == {"log": [1]}
    assert found.pending_writes == [("task", "log", 2)]


@pytest.mark.parametrize("url", MEMORY_URLS)
def test_a_memory_database_is_one_for_all_threads_and_loops(url: str) -> None:
    with SQLAlchemySaver.from_url(url) as saver:
        saver.setup()
        graph = graph_on(saver)
        assert graph.invoke({"seen": [0]}, config("t")) == {"seen": [0, 1, 2]}
        for _ in range(3):
            asyncio.run(graph.ainvoke({"seen": []}, config("t")))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: put(saver, f"t{n}", {"n": [n]}), range(40)))
            values = list(threads.map(lambda n: values_of(saver, config(f"t{n}")), range(40)))
        assert values == [{"n": [number]} for number in range(40)]
        assert graph.get_state(config("t")).values["seen"] == [0, *[1, 2] * 4]


def test_two_memory_databases_are_two() -> None:
    with SQLAlchemySaver.from_url("sqlite://") as one, SQLAlchemySaver.from_url("sqlite://") as two:
        one.setup()
        two.setup()
        put(one, "t", {"a": 1})
        assert two.get_tuple(config("t")) is None


def test_engine_arguments_are_handed_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    arguments: dict[str, Any] = {"pool_size": 3, "connect_args": {"timeout": 0.5}}
    with SQLAlchemySaver.from_url(url, **arguments) as saver:
        saver.setup()
        assert arguments == {"pool_size": 3, "connect_args": {"timeout": 0.5}}
        assert put(saver, "t", {})
    with pytest.raises(TypeError, match="no_such_argument"):
        SQLAlchemySaver.from_url(url, no_such_argument=1)


def test_a_sqlite_file_is_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SQLAlchemySaver.from_url(f"sqlite:///{path}") as saver:
        saver.setup()
    with create_engine(f"sqlite:///{path}", poolclass=NullPool).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize("url", ["mysql://h/d", "oracle+oracledb://h", "mssql+pyodbc://h/d"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedDialect, match="'sqlite' and 'postgresql'"):
        SQLAlchemySaver.from_url(url)


@pytest.mark.parametrize(
    "driver", ["postgresql", "postgresql+asyncpg", "postgresql+psycopg_async", "sqlite"]
)
def test_the_constructor_does_not_connect(driver: str) -> None:
    """There is no such server and no such folder; the first call finds that out."""
    url = make_url(f"{driver}://u:geheim@127.0.0.1:1/d")
    if driver == "sqlite":
        url = make_url("sqlite:////no/such/folder/a.db")
    saver = SQLAlchemySaver.from_url(url)
    with pytest.raises(DatabaseError) as caught:
        asyncio.run(saver.aget_tuple(config("t")))
    assert isinstance(caught.value, DatabaseUnavailable) == (driver != "sqlite")
    assert "geheim" not in "".join(traceback.format_exception(caught.value))
    saver.close()


def test_asyncio_is_not_imported_for_a_sync_engine() -> None:
    """SQLAlchemy's asyncio needs greenlet, which is not installed with it everywhere."""
    code = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from ckpt_orm import SQLAlchemySaver\n"
        "saver = SQLAlchemySaver.from_url('sqlite://'); saver.setup()\n"
        "assert saver.get_tuple({'configurable': {'thread_id': 't'}}) is None\n"
        "import asyncio; asyncio.run(saver.aget_tuple({'configurable': {'thread_id': 't'}}))\n"
        "assert 'sqlalchemy.ext.asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- from engines ---


def test_engines_that_are_refused(tmp_path: Path) -> None:
    sync = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    native = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    postgres = create_async_engine("postgresql+asyncpg://h/d")
    for arguments in [(native, sync), (sync, sync), ("sqlite://",), (None,), (sync, postgres)]:
        with pytest.raises(WrongEngine):
            SQLAlchemySaver(*arguments)
    with pytest.raises(WrongEngine, match="memory database of its own"):
        SQLAlchemySaver(create_engine("sqlite://"))


@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///never.db", "postgresql+asyncpg://h/db"])
def test_a_synchronous_engine_of_an_asynchronous_driver(url: str) -> None:
    with pytest.raises(WrongEngine, match="asynchronous one: make the engine by create_async_eng"):
        SQLAlchemySaver(create_engine(url))


@pytest.mark.parametrize(
    ("given", "size", "overflow"),
    [({}, 10, 0), ({"pool_size": 3}, 3, 10), ({"max_overflow": 2}, 5, 2)],
    ids=str,
)
@pytest.mark.parametrize("url", ["sqlite:///never-opened.db", "postgresql://localhost/db"])
def test_how_many_connections_there_are(
    url: str, given: dict[str, int], size: int, overflow: int
) -> None:
    pool: Any = create(url, **given).pool
    assert (pool.size(), pool._max_overflow) == (size, overflow)


ONE = {"pool_size": 1, "max_overflow": 0}


@pytest.mark.parametrize("pool", [{"poolclass": StaticPool}, {"poolclass": QueuePool, **ONE}])
def test_an_applications_memory_database(pool: dict[str, Any]) -> None:
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, **pool)
    saver = SQLAlchemySaver(engine)
    saver.setup()
    graph = graph_on(saver)
    graph.invoke({"seen": [0]}, config("t"))
    asyncio.run(graph.ainvoke({"seen": []}, config("t")))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: put(saver, "many", {"n": [n]}), range(40)))
    assert graph.get_state(config("t")).values == {"seen": [0, 1, 2, 1, 2]}
    assert len(list(saver.list(config("many")))) == 40
    engine.dispose()


@pytest.mark.parametrize("static", [True, False])
def test_an_applications_async_memory_database(static: bool) -> None:
    """Of the default pool and of a StaticPool; the tasks of a run share its one connection."""

    async def main() -> None:
        pool: dict[str, Any] = {"poolclass": StaticPool} if static else {}
        engine = create_async_engine("sqlite+aiosqlite://", **pool)
        saver = SQLAlchemySaver(engine)
        await saver.asetup()
        graph = graph_on(saver)
        await graph.ainvoke({"seen": [0]}, config("t"))
        puts = (saver.aput(config(f"t{n}"), checkpoint({"n": n}), {}, {}) for n in range(40))
        await asyncio.gather(*puts)
        assert (await graph.aget_state(config("t"))).values == {"seen": [0, 1, 2]}
        assert len([item async for item in saver.alist(None, filter={})]) == 43
        await engine.dispose()

    asyncio.run(main())


def test_both_engines(url_of: UrlOf) -> None:
    url = url_of("postgresql+psycopg")
    sync, native = create_engine(url), create_async_engine(url.set(drivername="postgresql+asyncpg"))
    saver = SQLAlchemySaver(sync, native)
    saver.setup()
    graph = graph_on(saver)

    async def main() -> None:
        await graph.ainvoke({"seen": []}, config("t"))
        assert native.sync_engine.pool.checkedin() > 0  # type: ignore[attr-defined]
        await native.dispose()

    graph.invoke({"seen": [0]}, config("t"))
    asyncio.run(main())
    assert values_of(saver, config("t"))["seen"] == [0, 1, 2, 1, 2]
    sync.dispose()


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_a_sync_call_on_an_async_engine_says_so(url_of: UrlOf, driver: str) -> None:
    """At once, with the remedy, also inside a running loop, and before anything is connected."""
    saver = SQLAlchemySaver(create_async_engine(url_of(driver)))
    calls: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(config("t")),
        lambda: list(saver.list(None)),
        lambda: put(saver, "t", {}),
        lambda: saver.put_writes(config("t", id="1"), [("c", 1)], "task"),
        lambda: saver.delete_thread("t"),
        lambda: saver.setup(),
    ]

    def check() -> None:
        for call in calls:
            with pytest.raises(WrongEngine, match="call the a-method"):
                call()

    async def main() -> None:
        check()

    check()
    asyncio.run(main())


# --- loops and lifetimes ---


@pytest.mark.parametrize("driver", [*ASYNC_DRIVERS, "sqlite", "postgresql+psycopg"])
def test_one_saver_in_three_event_loops(url_of: UrlOf, driver: str) -> None:
    """Nobody closes anything in between; every loop's connections end with it."""
    saver = SQLAlchemySaver.from_url(url_of(driver))
    asyncio.run(saver.asetup())
    _run_three_times(saver)
    saver.close()
    gc.collect()


@pytest.mark.parametrize("driver", [*ASYNC_DRIVERS, "sqlite", "postgresql+psycopg"])
# An application's pool is never closed by a saver, and connections whose loop is gone cannot be:
# the drivers complain when they are collected, as without a saver.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_applications_engine_in_three_event_loops(url_of: UrlOf, driver: str) -> None:
    url = url_of(driver)
    is_async = url.get_dialect().is_async
    engine: Any = create_async_engine(url) if is_async else create_engine(url)
    saver = SQLAlchemySaver(engine)
    asyncio.run(saver.asetup())
    _run_three_times(saver)
    engine.sync_engine.dispose(close=False) if is_async else engine.dispose()
    gc.collect()


def _run_three_times(saver: SQLAlchemySaver) -> None:
    for number in range(1, 4):
        found = asyncio.run(graph_on(saver).ainvoke({"seen": []}, config("t")))
        assert found == {"seen": [1, 2] * number}


@pytest.mark.parametrize("driver", ["sqlite+aiosqlite", "postgresql+asyncpg"])
def test_two_event_loops_at_once(url_of: UrlOf, driver: str) -> None:
    """Each has connections of its own."""
    saver = SQLAlchemySaver.from_url(url_of(driver))
    asyncio.run(saver.asetup())

    async def run(thread: str) -> Any:
        for _ in range(3):
            await graph_on(saver).ainvoke({"seen": [0]}, config(thread))
        return (await saver.aget_tuple(config(thread))).checkpoint["channel_values"]["seen"]

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda thread: asyncio.run(run(thread)), ["a", "b"]))
    assert found == [[0, 1, 2] * 3] * 2


def test_a_context_manager_disposes_of_its_own_engine_only(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    pool: Any = engine.pool
    with SQLAlchemySaver(engine) as saver:
        saver.setup()
        put(saver, "t", {"a": 1})
    assert engine.pool is pool
    assert pool.checkedin() == 1
    assert values_of(saver, config("t")) == {"a": 1}
    engine.dispose()
    with SQLAlchemySaver.from_url(engine.url) as owner:
        assert values_of(owner, config("t")) == {"a": 1}
    assert values_of(owner, config("t")) == {"a": 1}
    owner.close()
    owner.close()


def test_a_copy_with_an_allowlist_shares_everything(tmp_path: Path) -> None:
    """Compiling and running make copies; setting one up sets up all, closing one closes all."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    saver = SQLAlchemySaver.from_url(f"sqlite:///{tmp_path / 'a.db'}", serde=serde)
    with pytest.raises(SchemaNotReady):
        saver.get_tuple(config("t"))
    clone: Any = saver.with_allowlist([("x", "Y")])
    assert clone is not saver
    assert clone.serde is not saver.serde
    clone.setup()
    put(clone, "t", {"a": 1})
    assert values_of(saver, config("t")) == {"a": 1}
    assert values_of(copy.copy(saver), config("t")) == {"a": 1}
    assert {name for name in vars(saver) if vars(saver)[name] is not vars(clone)[name]} == {"serde"}
    clone.close()
    del clone
    assert values_of(saver, config("t")) == {"a": 1}
    saver.close()


def test_the_repr_names_the_database_and_no_password() -> None:
    saver = SQLAlchemySaver.from_url("postgresql://u:geheim@host/d", schema="s", table_prefix="p_")
    assert "geheim" not in repr(saver)
    for part in ("SQLAlchemySaver", "host/d", "'s'", "'p_'"):
        assert part in repr(saver)
    native = SQLAlchemySaver(create_async_engine("postgresql+asyncpg://u:geheim@host/d"))
    assert "geheim" not in repr(native)
    assert "host/d" in repr(native)


def test_what_langgraph_asks_of_the_object() -> None:
    saver = SQLAlchemySaver.from_url("sqlite://")
    assert isinstance(saver, BaseCheckpointSaver)
    assert bool(saver) is True
    assert saver not in (True, False, None)
    assert type(saver).__eq__ is object.__eq__
    assert not hasattr(saver, "__len__")
    assert not hasattr(saver, "__del__")
    assert saver.config_specs == []
    for name in ("put_writes", "aput_writes"):
        parameters = list(inspect.signature(getattr(saver, name)).parameters.values())
        assert [parameter.name for parameter in parameters] == [
            "config",
            "writes",
            "task_id",
            "task_path",
        ]
        assert parameters[-1].default == ""
        assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


def test_every_async_method_is_overridden_and_has_its_twins_parameters() -> None:
    base = vars(BaseCheckpointSaver)
    twins = [name for name in base if name.startswith("a") and name[1:] in base]
    assert len(twins) >= 10
    for name in twins:
        assert getattr(SQLAlchemySaver, name) is not base[name]
        sync = getattr(SQLAlchemySaver, name[1:])
        assert _parameters(getattr(SQLAlchemySaver, name)) == _parameters(sync), name
        theirs = _parameters(getattr(BaseCheckpointSaver, name))
        assert _parameters(sync)[: len(theirs)] == theirs
        # What is ours beyond the contract has a default and is passed by name.
        for _, kind, default in _parameters(sync)[len(theirs) :]:
            assert kind is inspect.Parameter.KEYWORD_ONLY
            assert default is not inspect.Parameter.empty


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(found.name, found.kind, found.default) for found in parameters]


# --- errors ---

ERRORS: list[CheckpointError] = [
    InvalidConfig("text"),
    WrongEngine("text"),
    UnsupportedDialect("mysql"),
    MissingExtra("zstd", "zstandard"),
    SchemaNotReady("ckpt_orm_0001", "ckpt_orm_0002", "s", "p_"),
    SchemaNotReady(None, "ckpt_orm_0002", None, "", "the file '/a.db'", True),
    ModelsNotReady("table 'agents' is missing", "the file '/a.db'", True),
    CorruptCheckpoint("checkpoint_blobs ('t',)", "problem"),
    DatabaseError("put", "57014", "QueryCanceled"),
    DatabaseUnavailable("put", "08006", "OperationalError"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: CheckpointError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


def test_the_family_of_errors() -> None:
    """Each is what a caller who does not know this package would catch."""
    assert issubclass(InvalidConfig, ValueError)
    assert issubclass(SchemaNotReady, RuntimeError)
    assert issubclass(DatabaseUnavailable, ConnectionError)
    public = [getattr(ckpt_orm, name) for name in ckpt_orm.__all__]
    errors = [item for item in public if isinstance(item, type) and issubclass(item, Exception)]
    assert all(issubclass(error, CheckpointError) for error in errors)
    assert len(errors) >= 9
