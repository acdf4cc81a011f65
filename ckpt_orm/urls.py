"""A database's URL as somebody wrote it: read, or told what is wrong without showing any of it.

What is wrong with it may well be the password, and what stands before or behind it.
"""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ckpt_orm.errors import BadURL, UnsupportedDialect, WrongEngine

#: The drivers that are tested, by the database they speak to.
DRIVERS = {
    "postgresql": ("psycopg", "psycopg_async", "asyncpg", "psycopg2", "pg8000"),
    "sqlite": ("pysqlite", "aiosqlite"),
}

#: The largest port there is.
MAX_PORT = 65535

_QUOTED = "in a user name or password, write @ as %40, : as %3A and / as %2F"


def parse(url: str | URL) -> URL:
    """The URL, of a database and driver that there are; `postgres` means `postgresql`.

    Raises:
        BadURL: where it cannot be read.
        UnsupportedDialect: for a database other than SQLite and Postgres.
        WrongEngine: for a driver that SQLAlchemy does not know.
    """
    made = url if isinstance(url, URL) else _read(url)
    if made.port is not None and not 0 < made.port <= MAX_PORT:
        raise BadURL(f"has a port that is not one of 1 to {MAX_PORT}")
    if made.host and "@" in made.host:
        raise BadURL(f"has an @ in its host ({_QUOTED})")
    name, _, driver = made.drivername.partition("+")
    if name == "postgres":
        made, name = made.set(drivername=f"postgresql{'+' if driver else ''}{driver}"), "postgresql"
    if name not in DRIVERS:
        raise UnsupportedDialect(name)
    try:
        made.get_dialect()
    except NoSuchModuleError as error:
        known = ", ".join(f"{name}+{each}://" for each in DRIVERS[name])
        raise WrongEngine(
            f"SQLAlchemy knows no driver {driver!r} for {name}: write {name}:// or one of {known}"
        ) from error
    return made


def _read(url: object) -> URL:
    if url is None or url == "":
        raise BadURL("is not set")
    if not isinstance(url, str):
        raise BadURL(f"is of type {type(url).__name__}, not a str or a URL")
    try:
        return make_url(url)
    except ArgumentError:
        problem = "cannot be read"
    except ValueError:
        problem = f"has a port that is no number ({_QUOTED})"
    raise BadURL(problem)  # not within the handler: SQLAlchemy's error shows a part of it
