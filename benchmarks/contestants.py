"""Who is measured: our saver and the official one of a database, each on a database of its own.

Both sides get the same server and the same durability: Postgres with its defaults, SQLite in WAL
mode with `synchronous=FULL`, which is what the official saver leaves it at.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from ckpt_orm import SQLAlchemySaver


@dataclass
class Contestant:
    """A saver that is set up, and how many bytes its database holds."""

    name: str
    saver: Any
    url: URL

    def bytes_stored(self) -> int:
        """What the tables and their indexes occupy."""
        if self.url.get_backend_name() == "sqlite":
            with _plain(self.url) as connection:
                connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
            return Path(str(self.url.database)).stat().st_size
        with _plain(self.url) as connection:
            found = connection.scalar(
                text(
                    "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                    "WHERE relname LIKE 'checkpoint%' AND relkind = 'r'"
                )
            )
        return int(found)


@contextmanager
def _plain(url: URL) -> Iterator[Any]:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


@contextmanager
def contestants(database: str, server: URL | None) -> Iterator[list[Contestant]]:
    """Both savers for "sqlite" or "postgres", on fresh databases."""
    with ExitStack() as stack:
        if database == "sqlite":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield _sqlite(folder, stack)
        else:
            assert server is not None
            yield _postgres(server, stack)


def _sqlite(folder: Path, stack: ExitStack) -> list[Contestant]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    official = stack.enter_context(SqliteSaver.from_conn_string(str(folder / "official.db")))
    official.setup()
    ours_url = make_url(f"sqlite:///{folder / 'ours.db'}")
    ours = stack.enter_context(SQLAlchemySaver.from_url(ours_url))
    ours.setup()
    return [
        Contestant("official", official, make_url(f"sqlite:///{folder / 'official.db'}")),
        Contestant("ckpt_orm", ours, ours_url),
    ]


def _postgres(server: URL, stack: ExitStack) -> list[Contestant]:
    from langgraph.checkpoint.postgres import PostgresSaver

    urls = {}
    for name in ("official", "ckpt_orm"):
        database = f"bench_{name}"
        with _plain(server) as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)"))
            connection.execute(text(f"CREATE DATABASE {database}"))
        urls[name] = server.set(database=database)
    dsn = urls["official"].set(drivername="postgresql").render_as_string(hide_password=False)
    official = stack.enter_context(PostgresSaver.from_conn_string(dsn))
    official.setup()
    ours = stack.enter_context(SQLAlchemySaver.from_url(urls["ckpt_orm"]))
    ours.setup()
    return [
        Contestant("official", official, urls["official"]),
        Contestant("ckpt_orm", ours, urls["ckpt_orm"]),
    ]
