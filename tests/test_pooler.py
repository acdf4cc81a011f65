"""Behind PgBouncer in transaction mode, where the next statement may be on another connection.

Twelve clients share three server connections. What a driver has prepared on one of them is not
there on the next, unless it prepares nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from backends import Called
from builders import config, put
from servers import postgres_database
from sqlalchemy import URL, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from ckpt_orm import SQLAlchemySaver, WrongEngine

CLIENTS, CONNECTIONS, ROUNDS = 12, 3, 8

#: Debian keeps it where only root's PATH leads.
PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = pytest.mark.skipif(
    PGBOUNCER is None,
    reason="NOT TESTED: there is no pgbouncer on this machine (Debian: apt-get install pgbouncer)",
)

CONFIG = """
[databases]
* = {server}
[pgbouncer]
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 100
auth_type = any
listen_port = 5432
unix_socket_dir = {folder}
"""


@pytest.fixture
def direct(postgres: URL) -> Iterator[URL]:
    """A new database, as its server has it."""
    with postgres_database(postgres) as url:
        yield url


@pytest.fixture
def pooled(direct: URL, tmp_path: Path) -> Iterator[URL]:
    """The same database behind a pooler."""
    folder = Path("/tmp") / f"ckpt-orm-bouncer-{os.getpid()}-{direct.database}"
    folder.mkdir()
    folder.chmod(0o777)
    server = {
        "host": direct.query.get("host") or direct.host,
        "port": direct.port,
        "user": direct.username,
        "password": direct.password,
    }
    told = " ".join(f"{key}={value}" for key, value in server.items() if value)
    file = folder / "pgbouncer.ini"
    file.write_text(CONFIG.format(server=told, connections=CONNECTIONS, folder=folder))
    # It refuses to run as root; a server's socket may be its owner's alone.
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        socket = Path(f"{server['host']}/.s.PGSQL.{direct.port or 5432}")
        user["user"] = socket.stat().st_uid if socket.exists() else "nobody"
    log = (tmp_path / "pgbouncer.log").open("w")
    assert PGBOUNCER is not None
    with log, subprocess.Popen([PGBOUNCER, str(file)], stdout=log, stderr=log, **user) as bouncer:
        try:
            _wait_for(folder / ".s.PGSQL.5432", bouncer, tmp_path / "pgbouncer.log")
            yield direct.set(host=None, port=None, password=None, query={"host": str(folder)})
        finally:
            bouncer.terminate()
            bouncer.wait()
            shutil.rmtree(folder)


def _wait_for(socket: Path, bouncer: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if socket.exists():
            return
        assert bouncer.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no {socket} after 30 s: {log.read_text()}")


def clients(work: Callable[[int, asyncio.AbstractEventLoop], None]) -> None:
    """Do some work as each client, all at once, each in a thread with a loop of its own."""

    def client(number: int) -> None:
        loop = asyncio.new_event_loop()
        try:
            work(number, loop)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))


def every_method(saver: Called, name: str) -> None:
    """Each method, several times, on threads of this client's own."""
    parent = None
    for number in range(ROUNDS):
        run = {"run_id": f"{name}-{number}"}
        parent = put(saver, name, {"log": [number]}, parent, metadata=run)
        saver.put_writes(parent, [("log", number)], "task")
        assert saver.get_tuple(parent).checkpoint["channel_values"] == {"log": [number]}
    assert parent is not None
    assert len(list(saver.list(config(name), filter=run, limit=5))) == 1
    assert saver.get_delta_channel_history(config=parent, channels=["log"])["log"]["writes"] == [
        ("task", "log", ROUNDS - 2)
    ]
    assert saver.count(config(name)) == ROUNDS
    assert saver.exists(parent)
    assert name in {told.thread_id for told in saver.threads(filter=run)}
    saver.copy_thread(name, f"{name}-copy")
    saver.delete_for_runs([f"{name}-0"])
    saver.prune([name])
    assert saver.count(config(name)) == 1
    saver.delete_thread(f"{name}-copy")
    assert not saver.exists(config(f"{name}-copy"))


def connections(direct: URL) -> int:
    """How many connections the pooler has opened to the database."""
    engine = create_engine(direct, poolclass=NullPool)
    query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "psycopg_async", "asyncpg"])
def test_a_saver_of_a_url(direct: URL, pooled: URL, driver: str) -> None:
    """Twelve set up the same empty database, and use it, at the same time."""
    url = pooled.set(drivername=f"postgresql+{driver}")
    is_async = url.get_dialect().is_async

    def work(number: int, loop: asyncio.AbstractEventLoop) -> None:
        saver = SQLAlchemySaver.from_url(url, pooler="transaction")
        client = Called(saver, loop if is_async or number % 2 else None)
        client.setup()
        every_method(client, f"client{number}")
        client.close()

    clients(work)
    assert 1 <= connections(direct) <= CONNECTIONS


def test_an_applications_own_engine(direct: URL, pooled: URL) -> None:
    """With asyncpg, as docs/embedding.md has it; in the caller's transaction too."""
    with SQLAlchemySaver.from_url(direct) as saver:
        saver.setup()

    def work(number: int, loop: asyncio.AbstractEventLoop) -> None:
        engine = create_async_engine(
            pooled.set(drivername="postgresql+asyncpg"),
            connect_args={
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": str,
            },
        )
        saver = SQLAlchemySaver(engine)
        every_method(Called(saver, loop), f"client{number}")
        session: Any = AsyncSession(engine)
        every_method(Called(saver.using(session), loop), f"guest{number}")
        loop.run_until_complete(session.commit())
        loop.run_until_complete(session.close())
        loop.run_until_complete(engine.dispose())

    clients(work)
    assert 1 <= connections(direct) <= CONNECTIONS


def test_a_driver_that_cannot_do_it_says_so() -> None:
    with pytest.raises(WrongEngine, match="pg8000 cannot be used behind a pooler"):
        SQLAlchemySaver.from_url("postgresql+pg8000://localhost/db", pooler="transaction")
    with pytest.raises(ValueError, match="pass 'transaction'"):
        SQLAlchemySaver.from_url("postgresql://localhost/db", pooler="session")  # type: ignore[arg-type]
