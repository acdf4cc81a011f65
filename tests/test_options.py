"""The options of a URL: one that is mistyped is told before the first call, and never its value."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Any

import pytest
from backends import Backend, _url_of
from builders import config
from sqlalchemy import URL, make_url
from typer.testing import CliRunner

from ckpt_orm import BadURL, SQLAlchemySaver
from ckpt_orm.cli.commands import app
from ckpt_orm.migrations.connect import call, sync_url
from ckpt_orm.options import LIBPQ, check_options

SECRET = "s3cret"
LIBPQ_DRIVERS = ["psycopg", "psycopg_async", "psycopg2"]
POSTGRES_DRIVERS = [*LIBPQ_DRIVERS, "asyncpg", "pg8000"]
SQLITE_DRIVERS = ["pysqlite", "aiosqlite"]


def refused(url: str | URL) -> str:
    with pytest.raises(BadURL) as caught:
        SQLAlchemySaver.from_url(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("driver", POSTGRES_DRIVERS)
@pytest.mark.parametrize(
    ("name", "near"), [("pasword", "password"), ("prot", "port"), ("Host", "host")]
)
def test_a_mistyped_option_of_postgres(driver: str, name: str, near: str) -> None:
    told = refused(f"postgresql+{driver}://u:p@h/d?{name}={SECRET}")
    assert told == (
        f"the database's URL has an option {name!r} that {driver} does not take: write {near!r}"
    )


@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
def test_a_mistyped_option_of_sqlite(driver: str, tmp_path: Path) -> None:
    told = refused(f"sqlite+{driver}:///{tmp_path}/a.db?tiemout={SECRET}")
    assert f"has an option 'tiemout' that {driver} does not take: write 'timeout'" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
@pytest.mark.parametrize("name", ["mode", "cache", "immutable", "nolock"])
def test_an_option_of_sqlites_own(driver: str, name: str, tmp_path: Path) -> None:
    """Passed over else: a file that is to be read only would be opened to be written."""
    told = refused(f"sqlite+{driver}:///{tmp_path}/a.db?{name}=ro")
    assert "it is SQLite's own, which is read of sqlite:///file:PATH?…&uri=true only" in told
    told = refused(f"sqlite+{driver}:///{tmp_path}/a.db?{name}=ro&uri=true")
    assert "has uri=true and a name that is no URI: write sqlite:///file:PATH" in told
    check_options(make_url(f"sqlite+{driver}:///file:{tmp_path}/a.db?{name}=ro&uri=true"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+asyncpg://h/d?sslmode=require", "'sslmode' that asyncpg .*: write 'ssl'"),
        ("postgresql+asyncpg://h/d?timeout=5", r"pass connect_args=\{'timeout'"),
        ("postgresql+pg8000://h/d?sslmode=require", r"pass connect_args=\{'ssl_context'"),
        ("postgresql://h/d?ssl=require", "write 'sslmode'"),
        ("postgresql+psycopg2://h/d?database=d", "write 'dbname'"),
        (f"postgresql://h/d?{SECRET}%20=x", "an option that psycopg does not take: leave it out"),
        ("postgresql+psycopg2://h/d?qqqq=1", "to that of a connection parameter of libpq"),
        ("postgresql+pg8000://h/d?qqqq=1", "or write one of application_name, database"),
        (f"postgresql://h/d?sslmode={SECRET}", "whose value is unknown: write one of disable,"),
        (f"postgresql+asyncpg://h/d?ssl={SECRET}", "whose value is unknown: write one of disable"),
        (f"postgresql://h/d?connect_timeout={SECRET}", "whose value is no number: write one$"),
        (f"sqlite:///a.db?timeout={SECRET}", "'timeout' whose value is no number: write one$"),
        (f"sqlite:///a.db?uri={SECRET}", "'uri' whose value is unknown: write one of true, yes"),
        (f"sqlite:///a.db?isolation_level={SECRET}", "write one of deferred, immediate"),
        ("postgresql://h/d?sslmode=require&sslmode=require", "more than once: write it once$"),
    ],
)
def test_what_is_wrong_and_what_to_do(url: str, says: str) -> None:
    with pytest.raises(BadURL, match=says):
        SQLAlchemySaver.from_url(url)
    assert refused(url)


def test_a_part_of_a_password_is_not_told_as_an_option() -> None:
    told = refused(f"postgresql://u:a@b/c?{SECRET}=e@host/name")
    assert "has an @ behind its host" in told


@pytest.mark.parametrize("driver", POSTGRES_DRIVERS)
def test_options_that_are_there(driver: str, postgres_url: URL) -> None:
    """Those of libpq are whatever the libpq that is there has, also where none is listed here."""
    options = {
        "asyncpg": {"ssl": "prefer", "command_timeout": "7"},
        "pg8000": {"application_name": "me"},
    }
    of_libpq = {"sslmode": "prefer", "connect_timeout": "7", "application_name": "me"}
    backend = Backend(driver, "postgres", f"postgresql+{driver}", False)
    url = _url_of(backend, postgres_url).update_query_dict(options.get(driver, of_libpq))
    saver = SQLAlchemySaver.from_url(url)

    async def use() -> None:
        async with saver:
            await saver.asetup()
            assert await saver.aget_tuple(config("t")) is None

    asyncio.run(use())
    if driver in LIBPQ_DRIVERS:
        for name in LIBPQ:
            check_options(url.set(query={name: VALUES.get(name, "1")}))


VALUES = {
    "sslmode": "require",
    "target_session_attrs": "any",
    "channel_binding": "prefer",
    "gssencmode": "disable",
}


def test_a_url_says_more_than_what_a_connection_is_given_else(
    postgres_url: URL, sqlite_url: URL
) -> None:
    url = postgres_url.update_query_dict({"connect_timeout": "7"})
    with SQLAlchemySaver.from_url(url) as saver:
        engine: Any = saver._runner.engine
        with engine.connect() as connection:
            info = connection.connection.dbapi_connection.info
            assert info.get_parameters()["connect_timeout"] == "7"
    waits = {
        "?timeout=5": (5000, {}),
        "": (10_000, {}),
        "?timeout=4": (3000, {"connect_args": {"timeout": 3}}),
    }
    for query, (milliseconds, arguments) in waits.items():
        assert busy_timeout(f"{sqlite_url}{query}", **arguments) == milliseconds


def busy_timeout(url: str, **arguments: Any) -> Any:
    with SQLAlchemySaver.from_url(url, **arguments) as saver:
        engine: Any = saver._runner.engine
        with engine.connect() as connection:
            return connection.exec_driver_sql("PRAGMA busy_timeout").scalar()


@pytest.mark.parametrize("command", [["check"], ["verify"], ["upgrade"], ["sweep", "--every", "2"]])
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/d?sslmoed={SECRET}",
        f"postgresql+asyncpg://u:{SECRET}@h/d?sslmoed={SECRET}",
        f"sqlite:///nowhere.db?tiemout={SECRET}",
    ],
)
def test_the_commands(command: list[str], url: str) -> None:
    done = CliRunner().invoke(app, [*command, "--url", url])
    assert done.exit_code == 2, done.output
    assert "has an option" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.output


def test_a_command_takes_the_options_of_the_driver_that_was_written(postgres_url: URL) -> None:
    """Its sync twin does the work, and the driver itself where the twin does not know them."""
    url = postgres_url.set(drivername="postgresql+asyncpg")
    assert sync_url(url).get_driver_name() == "psycopg"
    url = url.update_query_dict({"ssl": "prefer"})
    assert sync_url(url).get_driver_name() == "asyncpg"
    assert call(url, lambda connection: connection.exec_driver_sql("SELECT 1").scalar()) == 1
    url = postgres_url.set(drivername="postgresql+asyncpg")
    url = url.update_query_dict({"sslmode": "prefer"})
    assert sync_url(url).get_driver_name() == "psycopg"
