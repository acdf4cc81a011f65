"""What a failure is, told by its code and never by its text, and what it becomes in our words.

The one exception is Python 3.10, whose `sqlite3` keeps the code for itself: there it is told by the
words that SQLite has for a code, which are the same for every failure of a kind.
"""

from __future__ import annotations

import sqlite3
import sys
from types import TracebackType
from typing import cast

from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ckpt_orm.errors import CheckpointError, CorruptCheckpoint, DatabaseError, DatabaseUnavailable
from ckpt_orm.reasons import (
    NETWORK,
    is_bare,
    is_connecting,
    reason_of,
    refusal_of,
    was_refused,
    words_of,
)

#: A failure that another run may not meet: serialization, deadlock, a server that stops or starts,
#: or has no connection left.
PASSING = {"40001", "40P01", "57P01", "57P02", "57P03", "53300"}

#: A table or column is not there: undefined table, column, schema; SQLite has one code for all.
MISSING = {"42P01", "42703", "3F000", "SQLITE_ERROR"}

#: SQLite's words for its codes, which are all that Python 3.10 tells of them.
WORDS = {
    "database is locked": "SQLITE_BUSY",
    "database table is locked": "SQLITE_LOCKED",
    "database schema is locked": "SQLITE_LOCKED",
    "attempt to write a readonly database": "SQLITE_READONLY",
    "interrupted": "SQLITE_INTERRUPT",
    "disk I/O error": "SQLITE_IOERR",
    "database or disk is full": "SQLITE_FULL",
    "unable to open database file": "SQLITE_CANTOPEN",
    "locking protocol": "SQLITE_PROTOCOL",
    "database disk image is malformed": "SQLITE_CORRUPT",
    "file is not a database": "SQLITE_NOTADB",
}

#: What Python makes of the codes whose words name a table or are an application's own.
CLASSES = {
    sqlite3.IntegrityError: "SQLITE_CONSTRAINT",
    sqlite3.OperationalError: "SQLITE_ERROR",
}


def code_of(error: BaseException) -> str:
    """The SQLSTATE, or SQLite's name of the error; "" where the driver has none."""
    if is_bare(error):
        return str(getattr(error, "sqlstate", ""))
    if not isinstance(error, DBAPIError):
        return ""
    fields = next(iter(getattr(error.orig, "args", ())), None)
    if isinstance(fields, dict):  # pg8000: the server's message, by its field letters
        return str(fields.get("C", ""))
    if fields := refusal_of(error.orig):
        return str(fields.get("C", ""))
    for name in ("sqlstate", "pgcode", "sqlite_errorname"):
        if code := getattr(error.orig, name, None):
            return str(code)
    if sys.version_info < (3, 11) and isinstance(error.orig, sqlite3.Error):
        return sqlite_code(error.orig)
    return ""


def sqlite_code(error: sqlite3.Error) -> str:
    """SQLite's name of the error, not extended, by its words or its class; "" for none."""
    text = str(error)
    found = (code for words, code in WORDS.items() if text.startswith(words))
    by_class = (code for kind, code in CLASSES.items() if isinstance(error, kind))
    return next(found, next(by_class, ""))


def passes(error: BaseException) -> bool:
    """Whether the whole operation is worth another run.

    Where something was missing, that run looks at the schema first. A pool that had no connection
    to give has waited long enough already, and a server that refuses a password stays with it.
    """
    stays = isinstance(error, PoolTimeout) or was_refused(error, code_of(error))
    return is_missing(error) or (is_unavailable(error) and not stays)


def is_missing(error: BaseException) -> bool:
    """Whether a table or column may not be there."""
    if not isinstance(error, DBAPIError):
        return False
    without_code = isinstance(error.orig, sqlite3.Error) and not code_of(error)
    return without_code or code_of(error) in MISSING


def is_unavailable(error: BaseException) -> bool:
    """Whether the database could not be reached, or not be had for oneself."""
    if isinstance(error, DBAPIError):
        code = code_of(error)
        return (
            error.connection_invalidated
            or code.startswith(("08", "SQLITE_BUSY", "SQLITE_LOCKED"))
            or code in PASSING
            or was_refused(error, code)
            # What no server has reported happened on the way to it.
            or (not code and isinstance(error, (OperationalError, InterfaceError)))
        )
    if is_bare(error):
        code = code_of(error)
        return code.startswith("08") or code in PASSING or was_refused(error, code)
    return isinstance(error, (*NETWORK, PoolTimeout)) and not isinstance(error, CheckpointError)


class translated:
    """Turns a driver's error into ours, the original as its cause.

    Not a generator, which would cost each operation more.

    Args:
        operation: what errors call what is done.
    """

    __slots__ = ("_operation",)

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, CheckpointError):
            return
        if isinstance(error, (SQLAlchemyError, UnicodeEncodeError, *NETWORK)) or is_bare(error):
            raise _told(self._operation, cast(Exception, error)) from error


#: SQLite's words, for which it has no code of their own: all JSON that it reads is our documents'.
MALFORMED = "malformed JSON"


def _told(operation: str, error: BaseException) -> CheckpointError:
    if isinstance(error, StatementError):
        _hide_values(error)
    if isinstance(orig := getattr(error, "orig", None), sqlite3.Error) and MALFORMED in str(orig):
        return CorruptCheckpoint(
            "a row of checkpoints",
            "its checkpoint or metadata is no JSON; `ckpt-orm verify` tells which row it is",
        )
    code, kind = code_of(error), type(getattr(error, "orig", None) or error).__name__
    wrapper = DatabaseUnavailable if is_unavailable(error) else DatabaseError
    return wrapper(operation, code, kind, reason_of(error, code))


def _hide_values(error: StatementError) -> None:
    """Leave of what an error says what shows nothing of what was to be stored.

    A server repeats the row that an application's own constraint refuses, and parameters where it
    is told to. All of that stays with `orig`, for whoever asks for it.
    """
    error.hide_parameters = True
    if not is_connecting(error) and not isinstance(error.orig, sqlite3.Error):
        kind = type(error.orig)
        error.args = (f"({kind.__module__}.{kind.__name__}) {words_of(error, code_of(error))}",)
        error.__cause__ = None
