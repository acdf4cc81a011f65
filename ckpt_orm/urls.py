"""A database's URL as somebody wrote it: read, or told what is wrong without showing any of it.

What is wrong with it may well be the password, and what stands before or behind it.
"""

from __future__ import annotations

import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ckpt_orm.documents import fits_text
from ckpt_orm.errors import BadURL, UnsupportedDialect, WrongEngine

#: The drivers that are tested, by the database they speak to.
DRIVERS = {
    "postgresql": ("psycopg", "psycopg_async", "asyncpg", "psycopg2", "pg8000"),
    "sqlite": ("pysqlite", "aiosqlite"),
}

#: The largest port there is.
MAX_PORT = 65535

#: How to write what has a meaning in a URL.
QUOTED = "in a user name or password, write @ as %40, : as %3A, / as %2F and ? as %3F"

#: What follows the host that SQLAlchemy finds, which is whatever the first @ behind a : precedes.
_BEHIND = re.compile(
    r"[\w+]+://[^:/]*:[^@]*@[^/?]*(?P<path>[^?]*)(?P<query>.*)", re.ASCII | re.DOTALL
)

#: What a path begins with that was meant for a server; neither an URI nor a drive.
_LOGIN = re.compile(r"/*(?!file:)[^/:]{2,}:[^/]*@")


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
        raise BadURL(f"has an @ in its host ({QUOTED})")
    name, _, driver = made.drivername.partition("+")
    if name == "postgres":
        made, name = made.set(drivername=f"postgresql{'+' if driver else ''}{driver}"), "postgresql"
    if name not in DRIVERS:
        raise UnsupportedDialect(name)
    if not _can_be_sent(made, name):
        raise BadURL("contains a NUL or a lone surrogate, which cannot be sent")
    try:
        made.get_dialect()
    except NoSuchModuleError as error:
        known = ", ".join(f"{name}+{each}://" for each in DRIVERS[name])
        raise WrongEngine(
            f"SQLAlchemy knows no driver {driver!r} for {name}: write {name}:// or one of {known}"
        ) from error
    if name == "sqlite" and (made.host or made.username):
        raise BadURL("names a host, which a file has not (write three slashes, or four for /)")
    if name == "sqlite" and _LOGIN.match(made.database or ""):
        raise BadURL("names a user and a password, which a file has not")
    return made


def _read(url: object) -> URL:
    if url is None or url == "":
        raise BadURL("is not set")
    if not isinstance(url, str):
        raise BadURL(f"is of type {type(url).__name__}, not a str or a URL")
    if _is_cut_in_the_password(url):
        raise BadURL(f"has an @ behind its host ({QUOTED}, and in a database's name as well)")
    try:
        return make_url(url)
    except ArgumentError:
        problem = "cannot be read"
    except ValueError:
        problem = f"has a port that is no number ({QUOTED})"
    raise BadURL(problem)  # not within the handler: SQLAlchemy's error shows a part of it


def _is_cut_in_the_password(url: str) -> bool:
    """Whether the host is likely to be a part of the password, which an error would show."""
    found = _BEHIND.match(url)
    if found is None:
        return False
    path, query = found["path"], found["query"]
    # Such as postgresql://user:a@b/c@host/name; an option behind a name may have an @ in its value.
    is_option = len(path) > 1 and "=" in query.partition("@")[0]
    return "@" in path or ("@" in query and not is_option)


def _can_be_sent(url: URL, name: str) -> bool:
    """Whether drivers can encode it, which they show else; SQLite's files may be of any bytes."""
    options = (text for item in url.query.items() for text in (item[0], *_several(item[1])))
    parts = [url.username, url.password, url.host, url.database, *options]
    text = "".join(str(part) for part in parts if part)
    return fits_text(text) if name == "postgresql" else "\x00" not in text


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
