"""An application's autogenerate finds no difference: our tables hidden, or merged into its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from langgraph.checkpoint.postgres import PostgresSaver
from migration_helpers import MakeEngine, execute
from sqlalchemy import URL, Engine, ForeignKey, MetaData, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from test_upgrade_offline import connection_string

from ckpt_orm import Base as Checkpoints
from ckpt_orm import declare, migrations
from ckpt_orm.migrations import Filter, leftovers, ours

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=CONVENTION)


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int] = mapped_column(ForeignKey(Customer.id))


def merged(schema: str | None = None, prefix: str = "") -> MetaData:
    """The application's metadata with our tables copied into it, under its naming convention."""
    metadata = MetaData(naming_convention=CONVENTION)
    for table in (*Base.metadata.sorted_tables, *declare(schema=schema, prefix=prefix).tables):
        table.to_metadata(metadata)
    return metadata


def compared(
    engine: Engine, metadata: MetaData | list[MetaData], hidden: Filter | None, **options: Any
) -> list[Any]:
    """What the application's autogenerate would do."""
    with engine.connect() as connection:
        if hidden is not None:
            options["include_name"] = hidden.include_name
            options["include_object"] = hidden.include_object
        options = {"compare_server_default": True, "target_metadata": metadata, **options}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))  # type: ignore[arg-type]


def app_and_ours(engine: Engine, schema: str | None = None, prefix: str = "") -> None:
    Base.metadata.create_all(engine)
    migrations.setup_engine(engine, schema=schema, prefix=prefix)


@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize("prefix", ["", "x_"])
def test_hidden(engine: Engine, prefix: str, schemas: bool) -> None:
    app_and_ours(engine, prefix=prefix)
    options = {"include_schemas": schemas}
    assert compared(engine, Base.metadata, ours(prefix=prefix), **options) == []
    assert len(compared(engine, Base.metadata, None, **options)) >= 4


@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize("prefix", ["", "x_"])
def test_merged(engine: Engine, prefix: str, schemas: bool) -> None:
    app_and_ours(engine, prefix=prefix)
    options = {"include_schemas": schemas}
    hidden = leftovers(prefix=prefix)
    assert compared(engine, merged(prefix=prefix), hidden, **options) == []
    both = [Base.metadata, declare(prefix=prefix).metadata]
    assert compared(engine, both, hidden, **options) == []


def test_in_a_schema(postgres_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(postgres_url)
    app_and_ours(engine, schema="agents", prefix="x_")
    options = {"include_schemas": True}
    assert compared(engine, Base.metadata, ours("agents", "x_"), **options) == []
    assert compared(engine, merged("agents", "x_"), leftovers("agents", "x_"), **options) == []
    assert compared(engine, Base.metadata, None, include_schemas=False) == []
    execute(engine, "CREATE TABLE agents.other (id INTEGER)")
    (found,) = compared(engine, Base.metadata, ours("agents", "x_"), **options)
    assert found[0] == "remove_table"


def test_in_an_attached_file(sqlite_url: URL, make_engine: MakeEngine, tmp_path: object) -> None:
    engine = make_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def attach(connection: Any, _record: object) -> None:
        connection.execute(f"ATTACH '{tmp_path}/agents.db' AS agents")

    app_and_ours(engine, schema="agents")
    options = {"include_schemas": True}
    assert compared(engine, Base.metadata, ours("agents"), **options) == []
    assert compared(engine, merged("agents"), leftovers("agents"), **options) == []


def test_what_the_official_saver_left_behind(postgres_url: URL, make_engine: MakeEngine) -> None:
    with PostgresSaver.from_conn_string(connection_string(postgres_url)) as saver:
        saver.setup()
    engine = make_engine(postgres_url)
    app_and_ours(engine)
    assert compared(engine, Base.metadata, ours()) == []
    assert compared(engine, merged(), leftovers()) == []
    assert compared(engine, [Base.metadata, Checkpoints.metadata], leftovers()) == []


@pytest.mark.parametrize(
    ("metadata", "hidden"),
    [(Base.metadata, ours()), ([Base.metadata, Checkpoints.metadata], leftovers())],
    ids=["hidden", "merged"],
)
def test_the_applications_own_changes_are_seen(
    engine: Engine, metadata: MetaData | list[MetaData], hidden: Filter
) -> None:
    app_and_ours(engine)
    execute(
        engine,
        "DROP INDEX ix_customers_name",
        "CREATE TABLE forgotten (id INTEGER PRIMARY KEY, name TEXT)",
        "CREATE INDEX forgotten_name ON forgotten (name)",
    )
    kinds = sorted(found[0] for found in compared(engine, metadata, hidden))
    assert [kind for kind in kinds if kind != "remove_index"] == ["add_index", "remove_table"]


@pytest.mark.parametrize(("separator", "found"), [("newline", True), ("os", False)])
def test_a_colon_as_separator_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, found: bool
) -> None:
    """The trap docs/migrations.md warns of: Alembic says nothing, and has no revision of ours."""
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", separator)
    config.set_main_option("version_locations", "ckpt_orm:migrations/versions")
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert (migrations.HEAD in revisions) is found
