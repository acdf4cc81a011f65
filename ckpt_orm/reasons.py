"""WHY a database was not reached or has refused, in words, with what to do about it.

It is told by the code of an error, or its type. psycopg and psycopg2 give neither for a connection
that is not made, so there the first line of their own words is told: it names the host, the user
and the database, and never the password. Nothing is decided by it.

All that psycopg gives besides is whether a password was asked for. Where it was, and was given, the
server has most likely refused what stays, and few runs are enough.
"""

from __future__ import annotations

import socket
from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: Why, by SQLSTATE, and by the first two words of SQLite's names.
BY_CODE = {
    "28P01": "the server refused the password: correct the user and the password",
    "28000": "the server does not admit this user: see that the role exists and has LOGIN, and "
    "what pg_hba.conf says of it",
    "3D000": "there is no such database: create it, or correct its name",
    "42501": "the role lacks a right: `ckpt-orm grant ROLE` prints the grants that it needs",
    "25006": "the server is read-only, as a standby is: connect to the primary",
    "53300": "the server has no connection left: make pools smaller, or raise max_connections or "
    "the role's CONNECTION LIMIT",
    "53100": "the server's disk is full: make room",
    "57P03": "the server is starting or stopping: call again later",
    "SQLITE_BUSY": "the file was locked all the time: see who leaves a transaction open",
    "SQLITE_CANTOPEN": "the file cannot be opened: see that its folder exists, and may be written",
    "SQLITE_READONLY": "the file may not be written, or its folder: see whose they are",
    "SQLITE_FULL": "the disk is full: make room",
    "SQLITE_NOTADB": "the file is no SQLite database: correct its name",
    "SQLITE_CORRUPT": "the file is damaged: restore it from a backup",
}

#: Why a connection was refused, where that code has another meaning for a statement.
CONNECTING = {
    "42501": "the role may not connect to this database: GRANT CONNECT ON DATABASE … TO …",
}

#: Why, by the type of an error without a code; the first one that fits.
BY_TYPE: tuple[tuple[type[BaseException], str], ...] = (
    (
        PoolTimeout,
        "no connection of the pool became free in time: make it larger, or hold connections for "
        "a shorter time",
    ),
    (socket.gaierror, "the host's name is unknown: correct it"),
    (
        ConnectionRefusedError,
        "the connection was refused: correct host and port, and see that the server runs",
    ),
    (
        FileNotFoundError,
        "there is no such socket: correct its folder, and see that the server runs",
    ),
    (TimeoutError, "the server did not answer in time: see whether it can be reached"),
)


def reason_of(error: BaseException, code: str) -> str:
    """Why, and what to do; "" where nothing is known beyond the error itself."""
    if code:
        name = "_".join(code.split("_")[:2])
        return (is_connecting(error) and CONNECTING.get(name)) or BY_CODE.get(name, "")
    orig = getattr(error, "orig", None)
    for found in (error, orig, getattr(orig, "__cause__", None)):
        for kind, reason in BY_TYPE:
            if isinstance(found, kind):
                return reason
    return _own_words(error)


def is_bare(error: BaseException | None) -> bool:
    """Whether an error is asyncpg's own, as SQLAlchemy 2.0 leaves those of connecting."""
    return hasattr(error, "sqlstate") and type(error).__module__.startswith("asyncpg.")


def is_connecting(error: BaseException) -> bool:
    """Whether a driver's error is not that of a statement."""
    return is_bare(error) or (isinstance(error, DBAPIError) and error.statement is None)


def _own_words(error: BaseException) -> str:
    if isinstance(error, OSError):
        return _first_line(error)
    orig = getattr(error, "orig", None)
    driver = type(orig).__module__.partition(".")[0]
    is_network = isinstance(error, (OperationalError, InterfaceError)) and is_connecting(error)
    if not is_network or driver not in ("psycopg", "psycopg2", "pg8000"):
        return ""
    asked: Any = getattr(orig, "pgconn", None)
    if getattr(asked, "needs_password", False):
        return "the server asks for a password, and there is none: give one"
    return _first_line(orig)


def _first_line(error: object) -> str:
    """An error's own words; not where they may show what follows an @ in a password."""
    line = str(error).strip().partition("\n")[0]
    return f"{line}; {CORRECT}" if line and "@" not in line else ""


#: What to do where only a driver's words are known.
CORRECT = "correct host, user, password or database, or see to the server"


def was_refused(error: BaseException, code: str) -> bool:
    """Whether a server has refused a connection for a reason that stays."""
    if code in ("28P01", "28000", "3D000") or (code in CONNECTING and is_connecting(error)):
        return True
    asked: Any = getattr(getattr(error, "orig", None), "pgconn", None)
    return not code and bool(getattr(asked, "needs_password", False))


def may_be_refused(error: BaseException | None) -> bool:
    """Whether a server was reached that asked for a password, and then gave no connection.

    The password was wrong, then, or there is no such database; or there was no connection left.
    """
    asked: Any = getattr(getattr(error, "orig", None), "pgconn", None)
    return bool(getattr(asked, "used_password", False))
