"""Tables that are missing: in which database, told so that a mistyped name is seen."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import psycopg
import pytest
from applications import MODELS
from backends import BACKENDS, Backend, Called, engine_of, named
from builders import config
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool
from test_drivers import DRIVERS
from typer.testing import CliRunner

from ckpt_orm import Models, SchemaNotReady, SQLAlchemySaver
from ckpt_orm.cli.commands import app

SECRET = "s3cret"
BLANK = "the file holds nothing, and SQLite makes such a file of a name that is mistyped"


def refusal(saver: Called) -> str:
    with pytest.raises(SchemaNotReady) as caught:
        saver.get_tuple(config("t"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("models", [None, MODELS], ids=["packaged", "own"])
@named([*BACKENDS, *DRIVERS])
def test_the_database_is_named(backend: Backend, backend_url: URL, models: Models | None) -> None:
    loop = asyncio.new_event_loop() if backend.is_async else None
    with engine_of(backend, backend_url, loop) as engine:
        told = refusal(Called(SQLAlchemySaver(engine, models=models), loop))
    if loop is not None:
        loop.close()
    driver = backend.driver if "+" in backend.driver else f"{backend.driver}+pysqlite"
    driver = driver.removesuffix("_async")  # which is psycopg all the same
    kind = "file" if backend.database == "sqlite" else "database"
    assert f"in the {kind} {backend_url.database!r} ({driver})" in told
    assert (BLANK in told) == (backend.database == "sqlite")


def test_a_server_is_named_as_the_url_has_it(postgres_url: URL) -> None:
    """Without the user, the password and the query, which may hold one as well."""
    conninfo = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    url = f"postgresql+psycopg://user:{SECRET}@db.example:6543/d?sslpassword={SECRET}"
    engine = create_engine(url, creator=lambda: psycopg.connect(conninfo), poolclass=NullPool)
    told = refusal(Called(SQLAlchemySaver(engine, schema="agents"), None))
    name = postgres_url.database
    assert f"in schema 'agents' in the database {name!r} on db.example:6543 (postgres" in told
    assert "user" not in told


@pytest.mark.parametrize("name", ["sqlite", "sqlite+aiosqlite"])
def test_a_mistyped_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its whole path, as SQLite has opened it, and what to do with the file it has made."""
    monkeypatch.chdir(tmp_path)

    async def call() -> None:
        async with SQLAlchemySaver.from_url(f"{name}:///chekpoints.db") as saver:
            await saver.aget_tuple(config("t"))

    with pytest.raises(SchemaNotReady) as caught:
        asyncio.run(call())
    assert f"in the file {str(tmp_path / 'chekpoints.db')!r}" in str(caught.value)
    assert str(caught.value).endswith(f"{BLANK}: if so, correct the name and remove that file")


def test_a_file_that_holds_something_is_not_called_mistyped(sqlite_url: URL) -> None:
    with create_engine(sqlite_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    with SQLAlchemySaver.from_url(sqlite_url) as saver:
        told = refusal(Called(saver, None))
    assert f"{sqlite_url.database}" in told
    assert BLANK not in told


def test_an_attached_file_and_one_in_memory(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'main.db'}", poolclass=NullPool)
    saver = SQLAlchemySaver(engine, schema="Other")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
        connection.commit()
        connection.execute(text(f"ATTACH '{tmp_path / 'b.db'}' AS other"))
        told = refusal(Called(saver.using(connection), None))
    assert f"in schema 'Other' in the file {str(tmp_path / 'b.db')!r}" in told
    assert BLANK in told
    with SQLAlchemySaver.from_url("sqlite://") as memory:
        told = refusal(Called(memory, None))
    assert "are not set up" in told
    assert "in a database in memory (sqlite+pysqlite)" in told
    assert BLANK not in told


@pytest.mark.parametrize("command", [["verify"], ["sweep", "--keep-last", "1"], ["pack"]])
def test_the_commands_name_it_too(database_url: URL, command: list[str]) -> None:
    if database_url.get_backend_name() == "sqlite":
        Path(str(database_url.database)).touch()
    url = database_url.render_as_string(hide_password=False)
    done = CliRunner().invoke(app, [*command, "--url", url])
    assert done.exit_code == 1
    assert repr(database_url.database) in done.stderr
    assert len(done.stderr.splitlines()) == 1
