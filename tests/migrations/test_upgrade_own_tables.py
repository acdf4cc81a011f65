"""Tables on an application's own MetaData are made by its own revisions: Alembic's whole round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import applications
import pytest
from alembic import command
from alembic.config import Config
from applications import CONVENTION, MODELS
from builders import checkpoint, config, put, values_of
from hosts import EXAMPLES
from migration_helpers import MakeEngine, execute, tables
from sqlalchemy import URL, Engine, MetaData, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ckpt_orm import Models, SchemaNotReady, SQLAlchemySaver, declare, from_config
from ckpt_orm.migrations import ours

ENV = """
from alembic import context

given = context.config.attributes
with given["engine"].connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=given["metadata"],
        compare_server_default=True,
        include_schemas=given["include_schemas"],
        **given.get("options", {}),
    )
    with context.begin_transaction():
        context.run_migrations()
"""

MAKO = (EXAMPLES / "c_own_revision" / "migrations" / "script.py.mako").read_text()


def environment(engine: Engine, metadata: MetaData, folder: Path, *, schemas: bool) -> Config:
    """An application's own Alembic environment."""
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENV)
    (folder / "script.py.mako").write_text(MAKO)
    config = Config(attributes={"engine": engine, "metadata": metadata, "include_schemas": schemas})
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "newline")
    return config


def revise(config: Config, message: str = "more") -> str:
    """The text of a revision that autogenerate writes."""
    made: Any = command.revision(config, message, autogenerate=True)
    return Path(made.path).read_text()


def round_trip(config: Config) -> str:
    """Autogenerate, upgrade, and autogenerate finds nothing more to do; the revision's text."""
    written = revise(config)
    command.upgrade(config, "head")
    command.check(config)
    return written


def other(schema: str | None, *more: type) -> tuple[MetaData, Models]:
    """The tables of another application."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=CONVENTION)

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Owned:
        user_id: Mapped[str] = from_config("user_id", index=True)

    return Base.metadata, declare(Base, schema=schema, prefix="bot_", extra=(*more, Owned))


def user(thread: str) -> Any:
    found = config(thread)
    found["configurable"]["user_id"] = "u"
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def attached(request: pytest.FixtureRequest, make_engine: MakeEngine, tmp_path: Path) -> Engine:
    """An engine of each dialect on a database with a schema `agents`."""
    url: URL = request.getfixturevalue(f"{request.param}_url")
    engine = make_engine(url)
    if request.param == "postgres":
        execute(engine, "CREATE SCHEMA agents")
    else:

        @event.listens_for(engine, "connect")
        def attach(connection: Any, _record: object) -> None:
            connection.execute(f"ATTACH '{tmp_path}/agents.db' AS agents")

    return engine


@pytest.mark.parametrize("schemas", [False, True])
def test_with_every_kind_of_column(engine: Engine, tmp_path: Path, schemas: bool) -> None:
    metadata = applications.Base.metadata
    env = environment(engine, metadata, tmp_path / "app", schemas=schemas)
    written = round_trip(env)
    assert "pk_agent_states" in written
    assert "ix_agent_states_user_id" in written
    assert tables(engine) == {*metadata.tables, "alembic_version"}
    saver = SQLAlchemySaver(engine, models=MODELS)
    saver.setup()
    put(saver, "t", {"a": [1]})
    assert values_of(saver, config("t")) == {"a": [1]}
    assert tables(engine) == {*metadata.tables, "alembic_version"}
    command.check(env)


def test_in_a_schema(attached: Engine, tmp_path: Path) -> None:
    metadata, models = other("agents")
    env = environment(attached, metadata, tmp_path / "app", schemas=True)
    written = round_trip(env)
    assert "drop" not in written.split("def downgrade")[0]
    assert tables(attached, "agents") == {table.name for table in models.tables}
    saver = SQLAlchemySaver(attached, models=models)
    saver.put(user("t"), checkpoint({}), {}, {})
    assert saver.exists(config("t"))
    with attached.begin() as connection:
        assert connection.scalar(text("SELECT user_id FROM agents.bot_checkpoints")) == "u"
    command.check(env)


def test_a_column_that_comes_later(engine: Engine, tmp_path: Path) -> None:
    """Is what the next revision adds, and until then the saver says that it is missing."""
    before, _ = other(None)
    env = environment(engine, before, tmp_path / "app", schemas=False)
    round_trip(env)
    after, models = other(None, Later)
    env.attributes["metadata"] = after
    saver = SQLAlchemySaver(engine, models=models)
    with pytest.raises(SchemaNotReady, match=r"column 'bot_checkpoints.team' is missing"):
        saver.exists(user("t"))
    written = round_trip(env)
    assert "drop" not in written.split("def downgrade")[0]
    assert not saver.exists(user("t"))


class Later:
    team: Mapped[int | None] = from_config("team", index=True)


def test_beside_the_packaged_tables(engine: Engine, tmp_path: Path) -> None:
    """Both in one database: the application hides those that are not its own."""
    SQLAlchemySaver(engine).setup()
    metadata, models = other(None)
    env = environment(engine, metadata, tmp_path / "app", schemas=False)
    hidden = ours()
    env.attributes["options"] = {
        "include_name": hidden.include_name,
        "include_object": hidden.include_object,
    }
    assert "drop" not in round_trip(env).split("def downgrade")[0]
    put(SQLAlchemySaver(engine), "t", {"n": 1})
    assert not SQLAlchemySaver(engine, models=models).exists(config("t"))
