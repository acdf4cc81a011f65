"""What is there before us: the official saver's tables are adopted, others are refused."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from alembic import command
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from migration_helpers import MakeEngine, columns, execute, tables
from sqlalchemy import URL, Engine, inspect, text

from ckpt_orm import SQLAlchemySaver, migrations
from ckpt_orm.errors import ForeignTable
from ckpt_orm.migrations import HEAD
from ckpt_orm.migrations.compare import differences
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE, Place
from ckpt_orm.migrations.run import configuration

VERSIONS = range(len(PostgresSaver.MIGRATIONS))
CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
OFFICIAL_ROWS = {
    "checkpoints": "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint) VALUES"
    ' (\'old\', \'1ef\', \'{"v": 1, "id": "1ef", "ts": "", "channel_versions": {},'
    ' "versions_seen": {}, "channel_values": {}}\')',
    "checkpoint_blobs": "INSERT INTO checkpoint_blobs (thread_id, channel, version, type, blob)"
    " VALUES ('old', 'c', '1', 'bytes', 'abc')",
    "checkpoint_writes": "INSERT INTO checkpoint_writes"
    " (thread_id, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('old', '1ef', 'task', 0, 'c', 'bytes', 'abc')",
}


@pytest.fixture
def official(postgres_url: URL) -> Any:
    """The official saver on an empty database, which it has not set up."""
    url = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with PostgresSaver.from_conn_string(url) as saver:
        yield saver


def set_up_to(saver: PostgresSaver, version: int) -> None:
    """Leave the database as the release did whose newest migration this one is."""
    for number in range(version + 1):
        saver.conn.execute(saver.MIGRATIONS[number])  # type: ignore[arg-type, union-attr]
        saver.conn.execute("INSERT INTO checkpoint_migrations VALUES (%s)", [number])  # type: ignore[union-attr]


def put(saver: Any) -> None:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"c": ["value"]}
    checkpoint["channel_versions"] = {"c": "1"}
    config = saver.put(CONFIG, checkpoint, {"source": "input"}, {"c": "1"})
    saver.put_writes(config, [("c", "write")], "task")


def assert_works(saver: Any) -> None:
    put(saver)
    found = saver.get_tuple(CONFIG)
    assert found.checkpoint["channel_values"] == {"c": ["value"]}
    assert found.pending_writes == [("task", "c", "write")]


def places_of_rows(engine: Engine) -> dict[str, list[Any]]:
    """Where each table's rows lie on disk, which changes when they are written again."""
    found = {}
    with engine.connect() as connection:
        for table in sorted(set(TABLES) & tables(engine)):
            file = connection.scalar(text(f"SELECT pg_relation_filenode('{table}')"))
            rows = connection.execute(text(f"SELECT ctid::text FROM {table}")).scalars().all()
            found[table] = [file, rows]
    return found


@pytest.mark.parametrize("lost", [False, True], ids=["", "lost"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_official_saver_at_each_of_its_versions(
    official: PostgresSaver, postgres_url: URL, make_engine: MakeEngine, version: int, lost: bool
) -> None:
    set_up_to(official, version)
    engine = make_engine(postgres_url)
    present = set(OFFICIAL_ROWS) & tables(engine)
    execute(engine, *(OFFICIAL_ROWS[table] for table in sorted(present)))
    if lost:
        execute(engine, "DELETE FROM checkpoint_migrations")
    before = places_of_rows(engine)

    migrations.setup_engine(engine)

    after = places_of_rows(engine)
    assert {table: after[table] for table in before} == before
    with engine.connect() as connection:
        assert migrations.current(connection) == HEAD
        assert differences(connection, Place()) == []
        if "checkpoints" in present:
            adopted = "SELECT created_at FROM checkpoints"
            assert connection.execute(text(adopted)).scalars().all() == [None]
    official.setup()
    assert_works(official)
    with engine.connect() as connection:
        newest = "SELECT created_at IS NULL FROM checkpoints WHERE thread_id = 't'"
        assert connection.scalar(text(newest)) is False
        assert differences(connection, Place()) == []


def test_the_official_saver_without_its_version_table(
    official: PostgresSaver, postgres_url: URL, make_engine: MakeEngine
) -> None:
    official.setup()
    put(official)
    engine = make_engine(postgres_url)
    execute(engine, "DROP TABLE checkpoint_migrations")
    migrations.setup_engine(engine)
    official.setup()
    assert official.get_tuple(CONFIG) is not None
    assert_works(official)


def test_a_thread_goes_from_saver_to_saver(
    official: PostgresSaver, postgres_url: URL, make_engine: MakeEngine
) -> None:
    official.setup()
    put(official)
    before = official.get_tuple(CONFIG)
    ours = SQLAlchemySaver(make_engine(postgres_url))
    ours.setup()
    assert ours.get_tuple(CONFIG) == before
    put(ours)
    assert official.get_tuple(CONFIG) == ours.get_tuple(CONFIG) != before
    put(official)
    newest, *older = ours.list(CONFIG)
    assert newest == official.get_tuple(CONFIG)
    assert older[-1] == before


def test_the_official_saver_in_a_schema(postgres_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(postgres_url)
    execute(engine, "CREATE SCHEMA agents")
    url = postgres_url.set(drivername="postgresql").update_query_pairs(
        [("options", "-csearch_path=agents")]
    )
    with PostgresSaver.from_conn_string(url.render_as_string(hide_password=False)) as saver:
        saver.setup()
        migrations.setup_engine(engine, schema="agents")
        assert_works(saver)
    assert tables(engine) == set()


def test_going_back_leaves_the_official_saver_its_tables(
    official: PostgresSaver, postgres_url: URL, make_engine: MakeEngine
) -> None:
    official.setup()
    put(official)
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine)
    with engine.begin() as connection:
        command.downgrade(configuration(Place(), connection=connection), "base")
    assert columns(engine, "checkpoints")[-1] == "metadata"
    assert official.get_tuple(CONFIG) is not None
    migrations.setup_engine(engine)
    assert_works(official)


def test_the_official_saver_sets_itself_up_on_our_tables(
    official: PostgresSaver, postgres_url: URL, make_engine: MakeEngine
) -> None:
    migrations.setup_engine(make_engine(postgres_url))
    official.setup()
    assert_works(official)


def test_sqlite_savers_tables_are_refused(sqlite_url: URL, make_engine: MakeEngine) -> None:
    with SqliteSaver.from_conn_string(str(sqlite_url.database)) as saver:
        put(saver)
    engine = make_engine(sqlite_url)
    before = dump(sqlite_url)
    with pytest.raises(ForeignTable, match=r"'checkpoints' .*ckpt-orm import"):
        migrations.setup_engine(engine)
    assert dump(sqlite_url) == before
    migrations.setup_engine(engine, prefix="new_")
    with SqliteSaver.from_conn_string(str(sqlite_url.database)) as saver:
        assert_works(saver)


def dump(url: URL) -> list[str]:
    connection = sqlite3.connect(str(url.database))
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


FOREIGN = {
    "CREATE TABLE checkpoints (id INTEGER PRIMARY KEY)": "no column 'thread_id'",
    "CREATE TABLE checkpoint_writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT,"
    " task_id TEXT, idx TEXT, channel TEXT, type TEXT, blob TEXT)": "'idx' is TEXT, not an integer",
    "CREATE TABLE checkpoint_blobs (thread_id TEXT, checkpoint_ns TEXT, channel TEXT, version TEXT,"
    " type TEXT, blob TEXT)": "'blob' is TEXT, not binary",
    "CREATE TABLE checkpoints (thread_id TEXT PRIMARY KEY, checkpoint_ns TEXT, checkpoint_id TEXT,"
    " parent_checkpoint_id TEXT, type TEXT, checkpoint {json}, metadata {json})": "primary key",
    "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT,"
    " parent_checkpoint_id TEXT, type TEXT, checkpoint {json}, metadata {json},"
    " owner INTEGER NOT NULL,"
    " PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))": "'owner' of its own",
    "CREATE VIEW checkpoints AS SELECT 1 AS id": "no column 'thread_id'",
}


@pytest.mark.parametrize("way", ["setup", "alembic"])
@pytest.mark.parametrize("made", FOREIGN)
def test_unrelated_tables_are_refused(engine: Engine, made: str, way: str) -> None:
    json = "JSON" if engine.dialect.name == "sqlite" else "JSONB"
    execute(engine, made.format(json=json))
    before = inspect(engine).get_table_names() + inspect(engine).get_view_names()

    def by_alembic(engine: Engine) -> None:
        command.upgrade(configuration(Place(), url=engine.url), "head")

    upgrade = migrations.setup_engine if way == "setup" else by_alembic
    with pytest.raises(ForeignTable, match=FOREIGN[made]):
        upgrade(engine)
    assert inspect(engine).get_table_names() + inspect(engine).get_view_names() == before


def test_refusing_spoils_no_transaction(engine: Engine) -> None:
    execute(engine, "CREATE TABLE checkpoints (id INTEGER PRIMARY KEY)")
    with engine.begin() as connection:
        with pytest.raises(ForeignTable):
            migrations.setup(connection)
        connection.execute(text("INSERT INTO checkpoints VALUES (1)"))
    assert VERSION_TABLE not in tables(engine)
