"""Why a database is not reached or refuses: told with what to do, tried again where it helps."""

from __future__ import annotations

import asyncio
import gc
import pickle
import socket
import ssl
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from backends import Backend, Called, _url_of, called
from builders import config, put
from servers import execute
from sqlalchemy import URL, Engine, NullPool, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from benchmarks.proxy import link
from ckpt_orm import DatabaseError, DatabaseUnavailable, SQLAlchemySaver
from ckpt_orm.cli.commands import app
from ckpt_orm.reasons import CORRECT

WRONG = "wr0ng-passw0rd"

#: A value of an option, which the driver's own error may repeat, and ours does not.
VALUE = "v4lue"

#: By driver, whether it gives the code of a failure to connect.
DRIVERS = {
    "psycopg": False,
    "psycopg_async": False,
    "psycopg2": False,
    "asyncpg": True,
    "pg8000": True,
}


@dataclass
class Server:
    """A database and roles that may do little with it."""

    url: URL
    name: str

    def login(self, kind: str, password: str | None = None, database: str | None = None) -> URL:
        named = self.url.set(username=f"{self.name}_{kind}", database=database or self.name)
        return named if password is None else named.set(password=password)


@pytest.fixture
def server(postgres_url: URL) -> Iterator[Server]:
    """Of the roles, `pw` must give a password, `full` has no connection, `poor` has no rights.

    `out` is refused by pg_hba.conf.
    """
    name = str(postgres_url.database)
    roles = {
        "pw": "LOGIN PASSWORD 'right'",
        "nologin": "NOLOGIN",
        "full": "LOGIN CONNECTION LIMIT 0",
        "poor": "LOGIN",
        "out": "LOGIN",
    }
    execute(postgres_url, *(f'CREATE ROLE "{name}_{role}" {how}' for role, how in roles.items()))
    ways = {"pw": "scram-sha-256", "out": "reject"}
    asked = [
        f'{kind} all "{name}_{role}" {on} {how}' for role, how in ways.items() for kind, on in HBA
    ]
    with psycopg.connect(_conninfo(postgres_url), autocommit=True) as connection:
        before = _rewritten(connection, "\n".join(asked) + "\n")
        try:
            yield Server(postgres_url, name)
        finally:
            _rewritten(connection, before, whole=True)
            for role in roles:
                connection.execute(f'DROP OWNED BY "{name}_{role}"'.encode())
                connection.execute(f'DROP ROLE "{name}_{role}"'.encode())


HBA = (("local", ""), ("host", "all"))


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _rewritten(connection: Any, text: str, whole: bool = False) -> str:
    """Put text before the lines of pg_hba.conf, or in their place; return what was there."""
    row = connection.execute(
        "SELECT pg_read_file(name), name FROM current_setting('hba_file') name"
    ).fetchone()
    content = text if whole else text + row[0]
    made = connection.execute("SELECT lo_from_bytea(0, %s)", (content.encode(),)).fetchone()[0]
    connection.execute("SELECT lo_export(%s, %s)", (made, row[1]))
    connection.execute("SELECT lo_unlink(%s)", (made,))
    connection.execute("SELECT pg_reload_conf()")
    time.sleep(0.2)  # which it does when the signal arrives
    return str(row[0])


def attempts(
    url: URL, driver: str, arguments: dict[str, Any] | None = None
) -> tuple[DatabaseError, int]:
    """What a call on an engine says, and how often it has tried to connect."""
    with warnings.catch_warnings():
        if driver == "pg8000":  # it leaves the socket of a connection that was not made
            warnings.simplefilter("ignore", ResourceWarning)
        found = _attempts(
            _url_of(Backend(driver, "", f"postgresql+{driver}", False), url), arguments
        )
        gc.collect()
    return found


def _attempts(url: URL, arguments: dict[str, Any] | None) -> tuple[DatabaseError, int]:
    tried: list[int] = []
    is_async = url.get_dialect().is_async
    engine: Any = (create_async_engine if is_async else create_engine)(
        url, poolclass=NullPool, connect_args=arguments or {}
    )
    sync = engine.sync_engine if is_async else engine
    event.listen(sync, "do_connect", lambda *args: tried.append(1))
    saver = SQLAlchemySaver(engine)
    loop = asyncio.new_event_loop() if is_async else None
    with pytest.raises(DatabaseError) as caught:
        Called(saver, loop).get_tuple(config("t"))
    if loop is not None:
        loop.close()
    words = "".join(traceback.format_exception(caught.value))
    assert WRONG not in words
    copied: DatabaseError = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)
    return copied, len(tried)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("kind", "code", "reason", "own", "most"),
    [
        ("wrong", "28P01", "refused the password: correct", "password authentication failed", 3),
        ("none", "3D000", "no such database: create it", 'database "none" does not exist', 3),
        (
            "nologin",
            "28000",
            "see that the role exists and has LOGIN",
            "not permitted to log in",
            6,
        ),
        ("full", "53300", "no connection left: make pools smaller", "too many connections", 6),
        ("out", "28000", "pg_hba.conf says of it, which may ask for TLS", "pg_hba.conf rejects", 6),
        ("closed", "42501", "GRANT CONNECT ON DATABASE", "permission denied for database", 6),
    ],
)
def test_a_connection_that_the_server_refuses(
    server: Server, driver: str, kind: str, code: str, reason: str, own: str, most: int
) -> None:
    """In the same words with each driver, and those of the server.

    Tried again by its code; psycopg gives none, but knows that a password was asked for.
    """
    urls = {
        "wrong": server.login("pw", WRONG),
        "none": server.login("pw", "right", "none"),
        "closed": server.login("poor"),
    }
    if kind == "closed":
        execute(server.url, f'REVOKE CONNECT ON DATABASE "{server.name}" FROM PUBLIC')
    error, tried = attempts(urls.get(kind) or server.login(kind), driver)
    assert isinstance(error, DatabaseUnavailable)
    assert reason in str(error)
    assert own in str(error).partition(" (")[2]
    assert CORRECT not in str(error)
    if DRIVERS[driver]:
        assert error.code == code
        assert (tried > 1) == (code == "53300")
    else:
        assert 1 < tried <= (6 if driver == "psycopg2" else most)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_password_that_is_not_given(server: Server, driver: str) -> None:
    """Which asyncpg takes for an empty one, and psycopg2 for nothing that stays."""
    error, tried = attempts(server.login("pw").set(password=None), driver)
    assert isinstance(error, DatabaseUnavailable)
    says = "or give one" if driver == "asyncpg" else "and there is none: give one"
    assert says in str(error)
    assert (tried == 1) == (driver != "psycopg2")


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", "the connection was refused: correct host and port, and see that the server"),
        ("no-such-host.invalid", "the host's name is unknown: correct it ("),
        ("/none", "there is no such socket: correct its folder, and see that the server runs ("),
    ],
)
def test_a_server_that_is_not_reached(driver: str, host: str, reason: str) -> None:
    url = URL.create("postgresql", "u", WRONG, host, 1, "d")
    if host.startswith("/"):
        url = url.set(host=None, port=None, query={"host": host})
    error, tried = attempts(url, driver)
    assert isinstance(error, DatabaseUnavailable)
    assert reason in str(error)
    assert CORRECT not in str(error)
    assert 1 < tried <= 6


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_at_is_not_told(driver: str) -> None:
    """Which SQLAlchemy may have taken from a password; the reason is."""
    error, _ = attempts(URL.create("postgresql", "u", "pa", f"{VALUE}@h.invalid", 1, "d"), driver)
    assert "the host's name is unknown: correct it" in str(error)
    assert VALUE not in str(error)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("is_silent", "reason"),
    [
        (True, "the server did not answer in time: see whether it can be reached"),
        (False, "the connection was closed at the other end: see that it is Postgres"),
    ],
)
def test_a_port_at_which_no_postgres_is(driver: str, is_silent: bool, reason: str) -> None:
    name = "connect_timeout" if driver.startswith("psycopg") else "timeout"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closing = Thread(target=_close_each, args=[listening], daemon=True)
        if not is_silent:
            closing.start()
        url = URL.create("postgresql", "u", "pw", "127.0.0.1", listening.getsockname()[1], "d")
        error, _ = attempts(url, driver, {name: 2})
    assert isinstance(error, DatabaseUnavailable)
    assert reason in str(error)
    assert CORRECT not in str(error)


def _close_each(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_server_that_is_full(server: Server, driver: str) -> None:
    """It says so in other words than one whose role has no connection left."""
    execute(server.url, f'ALTER ROLE "{server.name}_full" CONNECTION LIMIT -1')
    with ExitStack() as held:
        with suppress(psycopg.OperationalError):
            while True:
                held.enter_context(psycopg.connect(_conninfo(server.login("full"))))
        error, _ = attempts(server.login("full"), driver)
    assert "no connection left: make pools smaller" in str(error)
    assert CORRECT not in str(error)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async", "psycopg2", "asyncpg"])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("work_mem", "the value of a setting: correct"),
        ("no_such_setting", "no setting of such a name: correct"),
    ],
)
def test_a_setting_that_the_server_refuses(
    server: Server, driver: str, setting: str, says: str
) -> None:
    """Without its value."""
    arguments: dict[str, Any] = {"options": f"-c {setting}={VALUE}"}
    if driver == "asyncpg":
        arguments = {"server_settings": {setting: VALUE}}
    error, _ = attempts(server.url, driver, arguments)
    assert says in str(error)
    assert VALUE not in str(error)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async", "psycopg2"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sslmoed": VALUE}, "take an option of the connection: correct its name (invalid"),
        ({"sslmode": VALUE}, "the value of an option of the connection is wrong: correct it"),
        (
            {"connect_timeout": VALUE},
            "the value of an option of the connection is wrong: correct it",
        ),
    ],
)
def test_an_option_that_libpq_refuses(
    server: Server, driver: str, arguments: dict[str, Any], says: str
) -> None:
    """Of an application's own engine, or in connect_args."""
    error, _ = attempts(server.url, driver, arguments)
    assert says in str(error)
    assert VALUE not in str(error)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_server_without_tls(server: Server, driver: str) -> None:
    arguments: dict[str, Any] = {
        "asyncpg": {"ssl": "require"},
        "pg8000": {"ssl_context": ssl.create_default_context()},
    }
    with psycopg.connect(_conninfo(server.url)) as connection:
        row = connection.execute("SHOW ssl").fetchone()
    if row != ("off",):
        pytest.skip("this server has TLS")
    with link(server.url, 0) as found:  # since a socket never has it
        url = found.url(server.url).set(query={})
        error, _ = attempts(url, driver, arguments.get(driver, {"sslmode": "require"}))
    assert "the server offers no TLS: enable it there, or do not ask for it (" in str(error)


def test_a_role_without_rights(server: Server) -> None:
    with SQLAlchemySaver.from_url(server.url) as saver:
        saver.setup()
    with SQLAlchemySaver.from_url(server.login("poor")) as saver:
        for call in (lambda: saver.get_tuple(config("t")), lambda: put(saver, "t", {"a": [1]})):
            with pytest.raises(DatabaseError, match=r"42501.* `ckpt-orm grant ROLE`") as caught:
                call()
            assert not isinstance(caught.value, DatabaseUnavailable)


def test_a_role_that_may_not_make_tables(server: Server) -> None:
    """Which the grants for their use would not help."""
    url = server.login("poor")
    with SQLAlchemySaver.from_url(url) as saver:
        with pytest.raises(DatabaseError, match=r"42501.* GRANT CREATE ON SCHEMA") as caught:
            saver.setup()
        assert "ckpt-orm grant" not in str(caught.value)
    done = CliRunner().invoke(app, ["upgrade", "--url", url.render_as_string(hide_password=False)])
    assert done.exit_code == 2
    assert "GRANT CREATE ON SCHEMA" in done.stderr


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_name_with_a_colon_may_hold_a_password(server: Server, driver: str) -> None:
    """Where that was quoted along with what follows it."""
    url = server.url.set(username=f"joe:{VALUE}")
    error, _ = attempts(url, driver, {})
    assert VALUE not in str(error)
    assert "see that the role exists" in str(error)
    assert VALUE not in repr(SQLAlchemySaver.from_url(url.set(drivername=f"postgresql+{driver}")))


def test_a_server_that_is_read_only(server: Server) -> None:
    with SQLAlchemySaver.from_url(server.url) as saver:
        saver.setup()
    alter = f'ALTER DATABASE "{server.name}" SET default_transaction_read_only TO on'
    execute(server.url, alter)
    with SQLAlchemySaver.from_url(server.url) as saver:
        assert saver.get_tuple(config("t")) is None
        with pytest.raises(DatabaseError, match=r"25006.* connect to the primary"):
            put(saver, "t", {"a": [1]})


def test_a_pool_without_a_free_connection(backend: Backend, ready_url: URL) -> None:
    arguments = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    with called(backend, ready_url, arguments) as saver:
        with holding(saver), pytest.raises(DatabaseUnavailable, match=r"became free .* larger"):
            saver.get_tuple(config("t"))
        assert saver.get_tuple(config("t")) is None


@contextmanager
def holding(saver: Called) -> Iterator[None]:
    """A connection of the saver's engine is in use."""
    given: Any = saver.given
    if isinstance(given, Engine):
        with given.connect():
            yield
        return
    assert saver.loop is not None
    held = given.connect()
    saver.loop.run_until_complete(held.start())
    yield
    saver.loop.run_until_complete(held.close())


@pytest.mark.parametrize("name", ["sqlite", "sqlite+aiosqlite"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no folder", "CANTOPEN.* see that its folder exists"),
        ("no database", "NOTADB.* the file is no SQLite database"),
        ("read only", "READONLY.* the file may not be written"),
    ],
)
def test_a_file_that_refuses(tmp_path: Path, name: str, kind: str, reason: str) -> None:
    path = tmp_path / "a.db"
    with SQLAlchemySaver.from_url(f"sqlite:///{path}") as saver:
        saver.setup()
    file = f"file:{path}?mode=ro&uri=true" if kind == "read only" else str(path)
    if kind == "no folder":
        file = str(tmp_path / "none" / "a.db")
    elif kind == "no database":
        path.write_bytes(b"no database at all" * 300)
    loop = asyncio.new_event_loop() if name.endswith("aiosqlite") else None
    saver = SQLAlchemySaver.from_url(f"{name}:///{file}")
    with pytest.raises(DatabaseError, match=reason):
        put(Called(saver, loop), "t", {"a": [1]})
    saver.close()
    if loop is not None:
        loop.run_until_complete(saver.aclose())
        loop.run_until_complete(asyncio.sleep(0.1))  # aiosqlite's thread ends by its word
        loop.close()


@pytest.mark.parametrize("command", [["check"], ["verify"]])
def test_the_commands(server: Server, command: list[str], sqlite_url: URL) -> None:
    """One line, without a password, and the exit code for unreachable."""
    Path(str(sqlite_url.database)).write_bytes(b"no database at all" * 300)
    cases = [
        (server.login("pw", WRONG), "password authentication failed"),
        (server.login("pw", "right", "none"), 'database "none" does not exist'),
        (URL.create("postgresql", "u", WRONG, "127.0.0.1", 1, "d"), "Connection refused"),
    ]
    for url, says in cases:
        given = url.render_as_string(hide_password=False)
        done = CliRunner().invoke(app, [*command, "--url", given])
        assert done.exit_code == 2, done.output
        assert says in done.stderr
        assert ": correct" in done.stderr or ": create" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert WRONG not in done.output
    done = CliRunner().invoke(app, [*command, "--url", str(sqlite_url)])
    assert "the file is no SQLite database" in done.stderr


def test_a_command_that_the_database_fails_has_found_no_fault(server: Server) -> None:
    """Nobody sees a cause there: what the server says is told, but for values."""
    with SQLAlchemySaver.from_url(server.url) as saver:
        saver.setup()
        put(saver, "t", {"a": [2]}, put(saver, "t", {"a": [1]}))
    execute(server.url, "ALTER TABLE checkpoints RENAME COLUMN metadata TO other")
    given = server.url.render_as_string(hide_password=False)
    for command in (["verify"], ["sweep", "--keep-last", "1"]):
        done = CliRunner().invoke(app, [*command, "--url", given])
        assert done.exit_code == 2, done.output
        assert "(42703); column" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_schema_that_there_is_not(server: Server) -> None:
    url = server.url.update_query_dict({"options": "-csearch_path=none"})
    done = CliRunner().invoke(app, ["upgrade", "--url", url.render_as_string(hide_password=False)])
    assert done.exit_code == 2
    assert "there is no schema to make tables in: create it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_commands_with_asyncpg_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_orm.migrations.connect.find_spec", lambda _: None)
    given = server.login("pw", WRONG).set(drivername="postgresql")
    for command in ("check", "verify"):
        url = given.render_as_string(hide_password=False)
        done = CliRunner().invoke(app, [command, "--url", url])
        assert done.exit_code == 2, done.output
        assert "the server refused the password: correct" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert WRONG not in done.output
