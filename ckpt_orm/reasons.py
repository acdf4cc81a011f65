"""WHY a database was not reached or has refused, in words, with what to do about it.

It is told by the code of an error, or its type; for a connection that is not made with the first
line of the driver's or the server's own words, which names the host, the user or the database, and
never the password. psycopg and psycopg2 give neither code nor type for that, so there the reason is
looked up by those words, as they are in English; in another language they are told alone. Nothing
else is decided by them: whether a failure is tried again least of all.

All that psycopg gives besides is whether a password was asked for. Where it was, and was given, the
server has most likely refused what stays, and few runs are enough.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from traceback import walk_tb
from typing import Any

from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

NOT_UTF8 = "the database's encoding lacks a character: use a database with ENCODING 'UTF8'"

#: Why, by SQLSTATE, and by the first two words of SQLite's names.
BY_CODE = {
    "28P01": "the server refused the password: correct the user and the password, or give one",
    "28000": "the server does not admit this user: see that the role exists and has LOGIN, and "
    "what pg_hba.conf says of it, which may ask for TLS",
    "3D000": "there is no such database: create it, or correct its name",
    "42501": "the role lacks a right: `ckpt-orm grant ROLE` prints the grants that it needs",
    "25006": "the server is read-only, as a standby is: connect to the primary",
    "53300": "the server has no connection left: make pools smaller, or raise max_connections or "
    "the role's CONNECTION LIMIT",
    "53100": "the server's disk is full: make room",
    "54000": "a limit of the server's is passed, most likely by ids: use shorter ones",
    "22P05": NOT_UTF8,
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
    "42704": "the server has no setting of such a name: correct the connection's options",
    "22023": "the server refuses the value of a setting: correct the connection's options",
}

#: The same for a statement that makes or changes tables.
DEFINING = {
    "42501": "the role may not make or change tables here: use one that owns them, or GRANT CREATE "
    "ON SCHEMA … TO …",
    "3F000": "there is no schema to make tables in: create it, or correct --schema or search_path",
}
_DEFINES = re.compile(r"\s*(CREATE|ALTER|DROP|COMMENT)\b", re.IGNORECASE)

#: Of these the words are not told, which would show the value.
SECRETIVE = {"22023"}

#: What is raised by what is below a driver; that it took too long is no OSError on Python 3.10.
NETWORK = (OSError, asyncio.TimeoutError)

NO_PASSWORD = "the server asks for a password, and there is none: give one"
UNKNOWN_HOST = "the host's name is unknown: correct it"
REFUSED = "the connection was refused: correct host and port, and see that the server runs"
NO_SOCKET = "there is no such socket: correct its folder, and see that the server runs"
TOO_LATE = "the server did not answer in time: see whether it can be reached"
CLOSED = (
    "the connection was closed at the other end: see that it is Postgres that listens there, and "
    "what its log says"
)
NO_TLS = "the server offers no TLS: enable it there, or do not ask for it"
UNTRUSTED = (
    "the server's certificate is not trusted: name the root certificate that it is of, and the "
    "host as it does"
)
BAD_OPTION = "the driver does not take an option of the connection: correct its name"
BAD_VALUE = "the value of an option of the connection is wrong: correct it"

#: Why, by the type of an error without a code; the first one that fits.
BY_TYPE: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (
        PoolTimeout,
        "no connection of the pool became free in time: make it larger, or hold connections for "
        "a shorter time",
    ),
    (socket.gaierror, UNKNOWN_HOST),
    (ssl.SSLCertVerificationError, UNTRUSTED),
    (UnicodeEncodeError, NOT_UTF8),
    (ConnectionRefusedError, REFUSED),
    (FileNotFoundError, NO_SOCKET),
    ((TimeoutError, asyncio.TimeoutError), TOO_LATE),
    ((ConnectionResetError, BrokenPipeError), CLOSED),
)

#: Why, by the words of a server or a driver where there is no code and no type; the first that fit.
BY_WORDS = tuple(
    (re.compile(words), reason)
    for words, reason in (
        ("no password supplied", NO_PASSWORD),
        ("password authentication failed", BY_CODE["28P01"]),
        ('database ".*" does not exist', BY_CODE["3D000"]),
        ('role ".*" (does not exist|is not permitted to log in)', BY_CODE["28000"]),
        (r"pg_hba\.conf", BY_CODE["28000"]),
        ("too many (clients|connections)|remaining connection slots", BY_CODE["53300"]),
        ("permission denied for database", CONNECTING["42501"]),
        ("database system is|not (yet )?accepting connections", BY_CODE["57P03"]),
        ("does not support SSL|rejected SSL upgrade|refuses SSL", NO_TLS),
        ("certificate verify failed|root certificate|server certificate", UNTRUSTED),
        ("Connection refused|Errno 111|Errno 61", REFUSED),
        ("on socket .* No such file", NO_SOCKET),
        ("could not translate host name|failed to resolve host", UNKNOWN_HOST),
        ("timeout expired|timed out", TOO_LATE),
        ("server closed the connection|connection_lost|network error", CLOSED),
        ("unrecognized configuration parameter", CONNECTING["42704"]),
        ("invalid connection option", BAD_OPTION),
    )
)

#: The same of words that are not told, since they repeat the value of an option.
BY_VALUES = (
    (re.compile("invalid value for parameter"), CONNECTING["22023"]),
    (re.compile(r"(invalid|bad) (\w+ )?value|invalid port"), BAD_VALUE),
)


def reason_of(error: BaseException, code: str) -> str:
    """Why, and what to do; "" where nothing is known beyond the error itself."""
    if lacks_password(error):
        return NO_PASSWORD
    line = _own_words(error)
    if code:
        name = "_".join(code.split("_")[:2])
        reason = _by_code(error, name)
        return _with_words(reason, "" if name in SECRETIVE else line)
    orig = getattr(error, "orig", None)
    for found in (error, orig, getattr(orig, "__cause__", None)):
        for kind, reason in BY_TYPE:
            if isinstance(found, kind):
                return _with_words(reason, line)
    return _by_words(line)


def _by_code(error: BaseException, name: str) -> str:
    reasons = CONNECTING if is_connecting(error) else {}
    if _DEFINES.match(str(getattr(error, "statement", None) or "")):
        reasons = DEFINING
    return reasons.get(name) or BY_CODE.get(name, "")


def is_bare(error: BaseException | None) -> bool:
    """Whether an error is a driver's own, as SQLAlchemy leaves some of those of connecting."""
    is_asyncpgs = hasattr(error, "sqlstate") and type(error).__module__.startswith("asyncpg.")
    return is_asyncpgs or lacks_password(error)


def lacks_password(error: BaseException | None) -> bool:
    """Whether pg8000 was asked for a password that it was not given, of which it decodes None."""
    if not isinstance(error, AttributeError) or error.__traceback__ is None:
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("pg8000.")


def is_connecting(error: BaseException) -> bool:
    """Whether a driver's error is not that of a statement."""
    return is_bare(error) or (isinstance(error, DBAPIError) and error.statement is None)


def refusal_of(orig: BaseException | None) -> dict[str, str]:
    """The message with which a server has refused pg8000 a connection, by its field letters.

    It stands behind the failure of saying goodbye to a server that is gone by then.
    """
    if not type(orig).__module__.startswith("pg8000."):
        return {}
    for _ in range(DEEPEST):
        fields = next(iter(getattr(orig, "args", ())), None)
        if isinstance(fields, dict):
            return fields if fields.get("S") == "FATAL" else {}
        orig = getattr(orig, "__context__", None)
    return {}


#: How far behind what pg8000 raises the server's refusal is looked for.
DEEPEST = 4


def _own_words(error: BaseException) -> str:
    """The first line of what is said of a connection that was not made; "" of anything else."""
    if isinstance(error, NETWORK) or is_bare(error):
        return _first_line(error)
    orig = getattr(error, "orig", None)
    if not isinstance(error, DBAPIError) or not is_connecting(error):
        return ""
    driver = type(orig).__module__
    if not driver.startswith(("psycopg", "pg8000", "sqlalchemy.dialects.postgresql")):
        return ""
    asked: Any = getattr(orig, "pgconn", None)
    if getattr(asked, "needs_password", False):
        return "no password supplied"
    return _first_line(refusal_of(orig).get("M") or orig)


def words_of(error: StatementError, code: str) -> str:
    """What the server says of a statement, but for what repeats values; "" where all of it may."""
    if code.startswith(DATA) or not isinstance(error, DBAPIError):
        return ""
    fields = next(iter(getattr(error.orig, "args", ())), None)
    return _first_line(fields.get("M", "") if isinstance(fields, dict) else error.orig)


#: The class of SQLSTATE of whatever is wrong with a value, which the server names then.
DATA = "22"


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


def _with_words(reason: str, line: str) -> str:
    """A reason, with words that cannot be those of a password."""
    return f"{reason} ({line})" if reason and line and not _may_hold_one(line) else reason


def _may_hold_one(line: str) -> bool:
    """Whether a password may be in it: one in which there is an @, or one within a user name."""
    return "@" in line or _WITH_COLON.search(line) is not None


_WITH_COLON = re.compile("(user|role) [\"'“«][^\"'”»]*:")


def _by_words(line: str) -> str:
    """Why, by words alone; the words themselves and a general remedy where they are not known."""
    for words, reason in BY_VALUES:
        if words.search(line):
            return reason
    for words, reason in BY_WORDS:
        if words.search(line):
            return _with_words(reason, line)
    return f"{line}; {CORRECT}" if line and not _may_hold_one(line) else ""


#: What to do where only a driver's words are known.
CORRECT = "correct host, user, password or database, or see to the server"


def was_refused(error: BaseException, code: str) -> bool:
    """Whether a server has refused a connection for a reason that stays."""
    if code in ("28P01", "28000", "3D000") or (code in CONNECTING and is_connecting(error)):
        return True
    if lacks_password(error):
        return True
    asked: Any = getattr(getattr(error, "orig", None), "pgconn", None)
    return not code and bool(getattr(asked, "needs_password", False))


def may_be_refused(error: BaseException | None) -> bool:
    """Whether a server was reached that asked for a password, and then gave no connection.

    The password was wrong, then, or there is no such database; or there was no connection left.
    """
    asked: Any = getattr(getattr(error, "orig", None), "pgconn", None)
    return bool(getattr(asked, "used_password", False))
