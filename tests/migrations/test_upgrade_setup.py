"""`setup`: on every kind of connection, in and out of transactions, looking before it acts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from builders import config, put, values_of
from migration_helpers import MakeEngine, columns, execute, tables
from servers import execute as execute_on
from sqlalchemy import URL, Engine, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ckpt_orm import SQLAlchemySaver, migrations
from ckpt_orm.errors import ForeignTable, SchemaLocked, SchemaNotReady
from ckpt_orm.migrations import HEAD, REVISIONS, locks
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE

OURS = {*TABLES, VERSION_TABLE}


def at(engine: Engine, **where: str | None) -> str | None:
    with engine.connect() as connection:
        return migrations.current(connection, **where)  # type: ignore[arg-type]


def test_creates_everything_once(engine: Engine) -> None:
    assert at(engine) is None
    migrations.setup_engine(engine)
    migrations.setup_engine(engine)
    assert tables(engine) == OURS
    assert at(engine) == HEAD


def test_says_nothing_to_a_database_that_is_ready(engine: Engine) -> None:
    migrations.setup_engine(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    migrations.setup_engine(engine)
    assert [statement.split()[0] for statement in statements] == ["SELECT", "SELECT"]


@pytest.mark.parametrize("prefix", ["", "agents_", 'it\'s %s:1 {x} "q"'])
def test_a_prefix_reaches_every_name(engine: Engine, prefix: str) -> None:
    migrations.setup_engine(engine, prefix=prefix)
    assert tables(engine) == {prefix + name for name in OURS}
    assert at(engine, prefix=prefix) == HEAD
    assert at(engine, prefix="other") is None
    key = inspect(engine).get_pk_constraint(f"{prefix}checkpoints")
    if engine.dialect.name == "postgresql" or '"' not in prefix:  # SQLite reflects no such name
        assert key["name"] == f"{prefix}checkpoints_pkey"


@pytest.mark.parametrize("schema", ["agents", "select", 'it\'s %s:1 {x} "q"'])
def test_a_schema_holds_every_name(postgres_url: URL, make_engine: MakeEngine, schema: str) -> None:
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine, schema=schema)
    migrations.setup_engine(engine, schema=schema)
    assert tables(engine, schema) == OURS
    assert tables(engine) == set()
    assert at(engine, schema=schema) == HEAD
    assert at(engine) is None


def test_a_schema_of_sqlite_is_an_attached_file(
    sqlite_url: URL, make_engine: MakeEngine, tmp_path: object
) -> None:
    engine = make_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def attach(connection, _record):  # type: ignore[no-untyped-def]
        connection.execute(f"ATTACH '{tmp_path}/agents.db' AS agents")

    migrations.setup_engine(engine, schema="agents")
    assert tables(engine, "agents") == OURS
    assert tables(engine) == set()
    assert columns(engine, "checkpoints", "agents")[-1] == "created_at"


def test_the_schema_is_not_the_search_paths(postgres_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(postgres_url, connect_args={"options": "-c search_path=elsewhere,public"})
    execute(engine, "CREATE SCHEMA elsewhere")
    migrations.setup_engine(engine, schema="agents")
    assert tables(engine, "elsewhere") == tables(engine, "public") == set()
    migrations.setup_engine(engine)
    assert tables(engine, "elsewhere") == OURS


@pytest.mark.parametrize("schema", [None, "tenant"])
def test_a_translated_schema_is_honoured_once(
    postgres_url: URL, make_engine: MakeEngine, schema: str | None
) -> None:
    translate = {None: "a", "tenant": "a", "a": "b"}
    engine = make_engine(postgres_url).execution_options(schema_translate_map=translate)
    migrations.setup_engine(engine, schema=schema)
    plain = make_engine(postgres_url)
    assert tables(plain, "a") == OURS
    assert "b" not in inspect(plain).get_schema_names()
    with engine.connect() as connection:
        migrations.setup(connection, schema=schema)
        migrations.check(connection, schema=schema)
        assert connection.get_execution_options()["schema_translate_map"] == translate


def test_the_callers_transaction_decides(engine: Engine) -> None:
    execute(engine, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        migrations.setup(connection)
        assert connection.in_transaction()
        assert migrations.current(connection) == HEAD
        connection.rollback()
    assert tables(engine) == {"orders"}
    with engine.begin() as connection:
        migrations.setup(connection)
    assert at(engine) == HEAD


def test_a_transaction_with_nothing_in_it_decides_too(engine: Engine) -> None:
    with engine.connect() as connection:
        with connection.begin() as transaction:
            migrations.setup(connection)
            transaction.rollback()
        assert migrations.current(connection) is None
    assert tables(engine) == set()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_any_isolation_level(database_url: URL, make_engine: MakeEngine, level: str) -> None:
    engine = make_engine(database_url, isolation_level=level)
    migrations.setup_engine(engine, to=REVISIONS[0])
    with engine.connect() as connection:
        before = connection.get_isolation_level()
        migrations.setup(connection)
        assert not connection.in_transaction()
        assert connection.get_isolation_level() == before
    assert at(engine) == HEAD


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_a_failure_leaves_nothing_at_any_isolation_level(
    database_url: URL, make_engine: MakeEngine, level: str
) -> None:
    engine = make_engine(database_url, isolation_level=level)
    execute(engine, "CREATE TABLE checkpoint_writes (id INTEGER PRIMARY KEY)")
    with pytest.raises(ForeignTable):
        migrations.setup_engine(engine)
    assert tables(engine) == {"checkpoint_writes"}


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
def test_a_tuned_sqlite_engine(sqlite_url: URL, make_engine: MakeEngine, begin: str) -> None:
    engine = make_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def untie(connection, _record):  # type: ignore[no-untyped-def]
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def say(connection):  # type: ignore[no-untyped-def]
        connection.exec_driver_sql(begin)

    with engine.connect() as connection, connection.begin() as transaction:
        migrations.setup(connection)
        transaction.rollback()
    assert tables(engine) == set()
    migrations.setup_engine(engine)
    assert at(engine) == HEAD


def test_a_transaction_idle_elsewhere_is_no_obstacle(engine: Engine) -> None:
    """But on SQLite to a reader of a file in WAL alone: beside any other there is no writer."""
    execute(engine, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    is_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as idle:
        if is_sqlite:
            idle.exec_driver_sql("PRAGMA journal_mode=WAL")
            idle.exec_driver_sql("BEGIN")
        idle.execute(text("SELECT * FROM orders")).all()
        driver: Any = idle.connection.driver_connection
        assert driver.in_transaction if is_sqlite else idle.in_transaction()
        migrations.setup_engine(engine)
        if is_sqlite:
            idle.rollback()
            idle.exec_driver_sql("BEGIN")
        idle.execute(text("SELECT * FROM checkpoints")).all()
        migrations.setup_engine(engine)
    assert at(engine) == HEAD


def test_a_step_that_fails_leaves_the_old_version(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.setup_engine(engine, to="ckpt_orm_0001")
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", "50ms")
    with engine.connect() as other:
        if engine.dialect.name == "postgresql":
            other.execute(text("SELECT * FROM checkpoint_blobs")).all()
        else:  # a view stands in the way of the rename
            execute(engine, "CREATE VIEW newest AS SELECT max(checkpoint_id) FROM checkpoints")
        with pytest.raises(DBAPIError):
            migrations.setup_engine(engine)
    assert at(engine) == "ckpt_orm_0001"
    assert "created_at" not in columns(engine, "checkpoints")
    execute(engine, "DROP VIEW IF EXISTS newest")
    migrations.setup_engine(engine)
    assert at(engine) == HEAD


def test_a_lock_timeout_of_the_session_is_kept(postgres_url: URL, make_engine: MakeEngine) -> None:
    show = text("SHOW lock_timeout")
    engine = make_engine(postgres_url)
    with engine.begin() as connection:
        migrations.setup(connection)
        assert connection.scalar(show) == "0"
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '3s'"))
        migrations.setup(connection, prefix="more_")
        assert connection.scalar(show) == "3s"


def test_waiting_for_another_upgrade_ends(
    database_url: URL, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.2)
    # The driver itself waits for SQLite's lock, before we do.
    impatient = {"timeout": 0.1} if database_url.get_backend_name() == "sqlite" else {}
    engine = make_engine(database_url, connect_args=impatient)
    with engine.begin() as other:
        migrations.setup(other)
        with pytest.raises(SchemaLocked, match="still running"):
            migrations.setup_engine(engine)
    assert at(engine) == HEAD


def test_a_role_with_dml_rights_only(postgres_url: URL, make_engine: MakeEngine) -> None:
    owner = make_engine(postgres_url)
    role = f"app_{postgres_url.database}"
    execute_on(postgres_url, f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'p%ss'")
    try:
        app = make_engine(postgres_url.set(username=role, password="p%ss"))
        with app.connect() as connection, pytest.raises(SchemaNotReady, match="ckpt-orm upgrade"):
            migrations.check(connection, schema="public")
        migrations.setup_engine(owner, schema="agents")
        execute(owner, *migrations.grants(role, schema="agents"))
        migrations.setup_engine(app, schema="agents")
        SQLAlchemySaver(app, schema="agents").setup()
        with app.connect() as connection:
            migrations.check(connection, schema="agents")
        saver = SQLAlchemySaver(app, schema="agents")
        stored = put(saver, "t", {"a": [1], "long": ["x" * 700 for _ in range(100)]})
        stored = put(saver, "t", {"a": [2], "long": ["x" * 700 for _ in range(101)]}, stored)
        saver.put_writes(stored, [("a", 1)], "task")
        assert values_of(saver, config("t"))["a"] == [2]
        saver.prune(["t"])
        saver.delete_thread("t")
        execute(app, "DELETE FROM agents.checkpoint_blobs")
        with pytest.raises(DBAPIError, match="must be owner"):
            execute(app, "DROP TABLE agents.checkpoint_blobs")
    finally:
        execute(owner, f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_check_names_the_command(engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(SchemaNotReady, match=r"are not set up.*ckpt-orm upgrade --prefix x_"):
            migrations.check(connection, prefix="x_")
        connection.execute(text("SELECT 1"))  # the transaction is not spoilt
    migrations.setup_engine(engine, to="ckpt_orm_0001")
    with (
        engine.connect() as connection,
        pytest.raises(SchemaNotReady, match=f"ckpt_orm_0001.*needs {HEAD}"),
    ):
        migrations.check(connection)


def test_a_database_ahead_of_the_code_is_tolerated(engine: Engine) -> None:
    migrations.setup_engine(engine)
    execute(engine, f"UPDATE {VERSION_TABLE} SET version_num = 'ckpt_orm_0999'")
    migrations.setup_engine(engine)
    with engine.connect() as connection:
        migrations.check(connection)
        assert migrations.current(connection) == "ckpt_orm_0999"


ASYNC_DRIVERS = ["sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg_async"]


@pytest.fixture(params=ASYNC_DRIVERS)
def async_url(request: pytest.FixtureRequest) -> URL:
    dialect = "sqlite" if "sqlite" in request.param else "postgres"
    url: URL = request.getfixturevalue(f"{dialect}_url")
    return url.set(drivername=request.param)


def run_async(url: URL, body, **options) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        engine = create_async_engine(url, **options)
        try:
            await body(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT", "SERIALIZABLE"])
def test_through_an_async_connection(async_url: URL, level: str | None) -> None:
    async def body(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            if level != "AUTOCOMMIT":
                async with connection.begin() as transaction:
                    await connection.run_sync(migrations.setup)
                    await transaction.rollback()
                assert await connection.run_sync(migrations.current) is None
                await connection.rollback()
            await connection.run_sync(migrations.setup)
            await connection.run_sync(migrations.check)

    run_async(async_url, body, **({"isolation_level": level} if level else {}))


def test_twenty_schemas_at_once_in_one_event_loop(postgres_url: URL) -> None:
    schemas = [f"tenant_{number}" for number in range(20)]

    async def body(engine: AsyncEngine) -> None:
        async def one(schema: str) -> str | None:
            async with engine.connect() as connection:
                await connection.run_sync(lambda c: migrations.setup(c, schema=schema))
                return await connection.run_sync(lambda c: migrations.current(c, schema=schema))

        assert await asyncio.gather(*map(one, schemas)) == [HEAD] * 20

    run_async(postgres_url.set(drivername="postgresql+asyncpg"), body, pool_size=5)


def test_one_database_many_times_in_one_event_loop(async_url: URL) -> None:
    async def body(engine: AsyncEngine) -> None:
        async def one() -> None:
            async with engine.connect() as connection:
                await connection.run_sync(migrations.setup)

        await asyncio.gather(*(one() for _ in range(8)))

    run_async(async_url, body)


def test_many_threads(engine: Engine) -> None:
    barrier = threading.Barrier(4)

    def one(number: int) -> None:
        barrier.wait()
        migrations.setup_engine(engine, prefix=f"p{number % 2}_")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert at(engine, prefix="p0_") == at(engine, prefix="p1_") == HEAD


def test_importing_does_not_import_alembic() -> None:
    import subprocess
    import sys

    code = "import sys, ckpt_orm.migrations; assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
