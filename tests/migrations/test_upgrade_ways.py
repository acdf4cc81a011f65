"""`upgrade` and `downgrade` inside an application's revision, and the change from way to way."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from migration_helpers import MakeEngine, columns, execute, tables
from sqlalchemy import URL, Connection, Engine
from test_upgrade_chain import fill, move, rows
from test_upgrade_offline import dump, psql

from ckpt_orm import migrations
from ckpt_orm.errors import DataWouldBeLost, SchemaError
from ckpt_orm.migrations import HEAD
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE, Place


@contextmanager
def revision(connection: Connection) -> Iterator[None]:
    """As inside a revision of an application, whose version table is its own."""
    with Operations.context(MigrationContext.configure(connection)):
        yield


def at(engine: Engine, prefix: str = "") -> str | None:
    with engine.connect() as connection:
        return migrations.current(connection, prefix=prefix)


@pytest.mark.parametrize("prefix", ["", "x_"])
def test_up_and_down(engine: Engine, prefix: str) -> None:
    with engine.begin() as connection, revision(connection):
        migrations.upgrade(to="ckpt_orm_0001", prefix=prefix)
    assert at(engine, prefix) == "ckpt_orm_0001"
    fill(engine, Place(prefix=prefix))
    with engine.begin() as connection, revision(connection):
        migrations.upgrade(prefix=prefix)
        migrations.downgrade(to="ckpt_orm_0002", prefix=prefix)
        migrations.upgrade(to=HEAD, prefix=prefix)
    assert at(engine, prefix) == HEAD
    with pytest.raises(DataWouldBeLost), engine.begin() as connection, revision(connection):
        migrations.downgrade(prefix=prefix)
    with engine.begin() as connection, revision(connection):
        migrations.downgrade(prefix=prefix, delete_data=True)
    assert tables(engine) == set()


def test_a_schema(postgres_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(postgres_url)
    execute(engine, "CREATE SCHEMA agents")
    with engine.begin() as connection, revision(connection):
        migrations.upgrade(schema="agents")
    assert tables(engine, "agents") == {*TABLES, VERSION_TABLE}
    assert tables(engine) == set()


def test_upgrade_never_goes_back_nor_downgrade_up(engine: Engine) -> None:
    migrations.setup_engine(engine, to="ckpt_orm_0002")
    with engine.begin() as connection, revision(connection):
        migrations.upgrade(to="ckpt_orm_0001")
        migrations.downgrade(to="ckpt_orm_0003")
    assert at(engine) == "ckpt_orm_0002"
    assert columns(engine, "checkpoints")[-1] == "created_at"


def test_a_revision_nobody_knows(engine: Engine) -> None:
    with (
        engine.begin() as connection,
        revision(connection),
        pytest.raises(SchemaError, match="no revision 'ckpt_orm_0999'"),
    ):
        migrations.upgrade(to="ckpt_orm_0999")


def test_it_belongs_to_the_applications_transaction(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN") if engine.dialect.name == "sqlite" else None
        with revision(connection):
            migrations.upgrade()
        connection.rollback()
    assert tables(engine) == set()


def test_printed(postgres_url: URL, make_engine: MakeEngine) -> None:
    buffer = io.StringIO()
    options = {"as_sql": True, "output_buffer": buffer, "literal_binds": True}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    with Operations.context(context):
        migrations.upgrade(to="ckpt_orm_0001")
        migrations.upgrade(to="ckpt_orm_0002")
        migrations.downgrade(to="ckpt_orm_0001")
        migrations.upgrade()
    assert buffer.getvalue().count("CREATE TABLE IF NOT EXISTS checkpoints ") == 1
    psql(postgres_url, buffer.getvalue())
    engine = make_engine(postgres_url)
    assert at(engine) == HEAD
    before = sorted(line.rstrip(",") for line in dump(postgres_url))
    psql(postgres_url, buffer.getvalue())  # starting too early only puts columns in another order
    assert sorted(line.rstrip(",") for line in dump(postgres_url)) == before


def test_from_one_way_to_another(engine: Engine) -> None:
    migrations.setup_engine(engine, to="ckpt_orm_0002")
    fill(engine)
    before = rows(engine)
    with engine.begin() as connection, revision(connection):
        migrations.upgrade()
    assert at(engine) == HEAD
    move(engine, "ckpt_orm_0001")
    with engine.begin() as connection, revision(connection):
        migrations.upgrade(to="ckpt_orm_0002")
    migrations.setup_engine(engine)
    after = rows(engine)
    for row in before["checkpoints"]:
        row["created_at"] = None  # a step down forgets when, and nothing else
    for row in before["checkpoint_blobs"]:
        row |= {"chain": None, "stop": None}
    assert after == before
    # As a branch of an application's history, all our revisions run once more.
    with engine.begin() as connection, revision(connection):
        for name in migrations.REVISIONS:
            migrations.run.script(name).module.upgrade()
    assert rows(engine) == before
    assert at(engine) == HEAD
