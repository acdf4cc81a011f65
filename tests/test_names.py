"""Schemas and prefixes: every name that follows from them fits, or one is told that it does not."""

from __future__ import annotations

from typing import Any

import pytest
from builders import config, put, values_of
from sqlalchemy import URL, Engine, create_engine, inspect
from typer.testing import CliRunner

from ckpt_orm import Base, InvalidConfig, SQLAlchemySaver, declare, migrations
from ckpt_orm.cli.commands import app
from ckpt_orm.names import LONGEST_NAME

#: What is left of 63 bytes beside the longest name.
MOST = 63 - len(LONGEST_NAME)


@pytest.mark.parametrize("prefix", ["p" * MOST, "é" * (MOST // 2) + "p"])
def test_the_longest_prefix(database_url: URL, prefix: str) -> None:
    with SQLAlchemySaver.from_url(database_url, table_prefix=prefix) as saver:
        saver.setup()
        assert values_of(saver, put(saver, "t", {"a": [1]})) == {"a": [1]}
    engine = create_engine(database_url)
    found = inspect(engine)
    keys = [found.get_pk_constraint(table)["name"] for table in found.get_table_names()]
    indexes = [each["name"] for t in found.get_table_names() for each in found.get_indexes(t)]
    names = [str(name) for name in (*found.get_table_names(), *keys, *indexes)]
    assert all(name.startswith(prefix) for name in names)
    assert max(len(name.encode()) for name in names) == 63
    engine.dispose()


@pytest.mark.parametrize("prefix", ["p" * (MOST + 1), "é" * (MOST // 2 + 1), "p" * 70])
def test_a_prefix_that_is_too_long_for_postgres(
    postgres_url: URL, sqlite_url: URL, prefix: str
) -> None:
    """Told when a saver is made, by `setup`, and by the command; SQLite has no such limit."""
    says = f"the table prefix .* has {len(prefix.encode())} bytes.* use one of at most {MOST}"
    refused(postgres_url, says, prefix=prefix)
    with SQLAlchemySaver.from_url(sqlite_url, table_prefix=prefix) as saver:
        saver.setup()
        assert values_of(saver, put(saver, "t", {"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize("schema", ["s" * 64, "é" * 32])
def test_a_schema_that_is_too_long(postgres_url: URL, schema: str) -> None:
    """Postgres would cut it, and two that begin alike would be one."""
    refused(postgres_url, "the schema .* has 64 bytes.* use one of at most 63", schema=schema)


def refused(url: URL, says: str, schema: str | None = None, prefix: str = "") -> None:
    for driver in (url.drivername, "postgresql+asyncpg"):
        with pytest.raises(InvalidConfig, match=says):
            SQLAlchemySaver.from_url(url.set(drivername=driver), schema=schema, table_prefix=prefix)
    engine = create_engine(url)
    with pytest.raises(InvalidConfig, match=says):
        SQLAlchemySaver(engine, schema=schema, table_prefix=prefix)
    for look in (migrations.setup, migrations.current, migrations.check):
        with engine.connect() as connection, pytest.raises(InvalidConfig, match=says):
            look(connection, schema=schema, prefix=prefix)
    options = ["--prefix", prefix] + (["--schema", schema] if schema else [])
    given = url.render_as_string(hide_password=False)
    for command in (["upgrade", "--url", given], ["check", "--url", given], ["sql"]):
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 1
        assert "use one of at most" in done.stderr
    assert nothing_in(engine)
    engine.dispose()


def nothing_in(engine: Engine) -> bool:
    found = inspect(engine)
    return not found.get_table_names() and set(found.get_schema_names()) <= {
        "public",
        "information_schema",
    }


@pytest.mark.parametrize("name", ["a\x00b", "a\ud800"])
@pytest.mark.parametrize("what", ["schema", "table_prefix"])
def test_a_name_that_cannot_be_written(database_url: URL, what: str, name: str) -> None:
    says = f"the {what.replace('_', ' ')} .* contains a NUL or a lone surrogate.* remove it"
    named: dict[str, Any] = {what: name}
    with pytest.raises(InvalidConfig, match=says):
        SQLAlchemySaver.from_url(database_url, **named)
    named = {what.removeprefix("table_"): name}
    with pytest.raises(InvalidConfig, match=says):
        declare(Base, **named)
    engine = create_engine(database_url)
    with engine.connect() as connection, pytest.raises(InvalidConfig, match=says):
        migrations.setup(connection, **named)
    engine.dispose()


def test_odd_names_are_still_names(database_url: URL) -> None:
    prefix = "A b\"'"
    with SQLAlchemySaver.from_url(database_url, table_prefix=prefix) as saver:
        saver.setup()
        put(saver, "t", {"a": [1]})
        assert values_of(saver, config("t")) == {"a": [1]}
