"""ONE AT A TIME: a real transaction, and locks that are polled, never waited for.

Three things are true while `exclusively` holds. No other run of Alembic is under way in this
process, whose context is a global of the module. A real database transaction is open: the caller's
where there is one, else one of our own that ends with the block; SQLite's driver opens none before
DDL and an engine in AUTOCOMMIT none at all, so there BEGIN is said in words. And no other process
changes these tables: on Postgres by an advisory lock that ends with the transaction (a lock of the
session would outlive its owner behind a pooler, and one that waits would deadlock with a concurrent
index build), on SQLite by BEGIN IMMEDIATE. Only what cannot run in a transaction interrupts it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ckpt_orm.errors import SchemaLocked
from ckpt_orm.failures import code_of
from ckpt_orm.migrations.place import Place
from ckpt_orm.modes import begins_itself, ends_nothing

#: Seconds to wait for another upgrade, and for another transaction's lock on a table.
PATIENCE = 60.0
LOCK_TIMEOUT = "10s"

_PAUSE = 0.05
_READ_COMMITTED = "read committed"
_PROCESS = threading.Lock()
_OWN: ContextVar[Connection | None] = ContextVar("ckpt_orm_own", default=None)

# Of a whole schema, whatever the prefix, since an upgrade may have to create the schema itself.
_KEY = "hashtextextended('ckpt_orm ' || coalesce(:schema, current_schema(), ''), 0)"
_TRY_LOCK = text(f"SELECT pg_try_advisory_xact_lock({_KEY})")
_HOLD = text(f"SELECT pg_try_advisory_lock({_KEY})")
_LET_GO = text(f"SELECT pg_advisory_unlock({_KEY})")
_AGAIN = "ROLLBACK AND CHAIN"
_WITHOUT_SNAPSHOT = "SHOW transaction_isolation"
_LOCK_TIMEOUT = text(
    "SELECT set_config('lock_timeout', :patience, true) WHERE current_setting('lock_timeout') = '0'"
)


@contextmanager
def exclusively(connection: Connection, place: Place) -> Iterator[None]:
    """Hold the process, a transaction and the tables, in this order.

    Raises:
        SchemaLocked: another upgrade held one of them for longer than a minute.
    """
    with _process(connection), transaction(connection):
        if connection.dialect.name == "postgresql":
            _poll(connection, lambda: connection.scalar(_TRY_LOCK, {"schema": place.schema}))
            with _lock_timeout(connection):
                yield
        else:
            yield


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """A real transaction: the caller's where one is open, else one committed at the end."""
    begin = _sqlite if connection.dialect.name == "sqlite" else _postgres
    if connection.in_transaction():
        with begin(connection, False):
            yield
        return
    token = _OWN.set(connection)
    connection.begin()
    try:
        with begin(connection, True):
            yield
    except BaseException:
        connection.rollback()
        raise
    finally:
        _OWN.reset(token)
    connection.commit()


def may_interrupt(connection: Connection) -> bool:
    """Whether the transaction is ours, so that `interrupted` may commit it."""
    return _OWN.get() is connection


@contextmanager
def interrupted(connection: Connection, place: Place) -> Iterator[None]:
    """Commit, run the block outside of any transaction, begin another; hold the tables meanwhile.

    The lock of the transaction is handed to the session for that long, and back. This needs the
    same session throughout, so no pooler that gives each transaction another one.
    """
    schema = {"schema": place.schema}
    connection.execute(_HOLD, schema)
    spoken = _is_autocommit(connection)
    level = connection.get_isolation_level()
    if spoken:
        connection.exec_driver_sql("COMMIT")
    connection.commit()
    connection.execution_options(isolation_level="AUTOCOMMIT")
    try:
        yield
    finally:
        connection.rollback()
        connection.execution_options(isolation_level="AUTOCOMMIT" if spoken else level)
        connection.begin()
        if spoken:
            connection.exec_driver_sql("BEGIN")
        connection.execute(_TRY_LOCK, schema)
        connection.execute(_LET_GO, schema)
        connection.execute(_LOCK_TIMEOUT, {"patience": LOCK_TIMEOUT})


@contextmanager
def _postgres(connection: Connection, own: bool) -> Iterator[None]:
    """Begin in words under AUTOCOMMIT; read what others commit, whatever the engine's level is.

    A snapshot that is older than the lock would hide what the lock's last holder did.
    """
    if _is_autocommit(connection):
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        with _ended(connection):
            yield
        return
    if own and connection.exec_driver_sql("SHOW transaction_isolation").scalar() != _READ_COMMITTED:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    yield


@contextmanager
def _sqlite(connection: Connection, own: bool) -> Iterator[None]:
    """BEGIN IMMEDIATE, in place of whatever an engine's listener began for us.

    A transaction that begins with a read cannot always become one that writes.
    """
    driver: Any = connection.connection.driver_connection
    has_begun, in_words = driver.in_transaction, ends_nothing(connection)
    if has_begun:
        if not own:
            yield
            return
        connection.exec_driver_sql("COMMIT")
    _poll(connection, lambda: _begun(connection))
    if in_words or (driver.isolation_level is None and not has_begun):
        with _ended(connection):
            yield
    else:
        yield


def open_for_ddl(connection: Connection | None) -> None:
    """Begin the transaction that a caller believes to be in: sqlite3 waits for a row to be changed.

    Tables that were changed before would stay so where a later step fails.
    """
    if connection is None or connection.dialect.name != "sqlite" or not connection.in_transaction():
        return
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction or not begins_itself(driver):
        return
    if not ends_nothing(connection):
        connection.exec_driver_sql("BEGIN")


def _begun(connection: Connection) -> bool:
    """Whether the database was free to be written."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except DBAPIError as error:
        if code_of(error).startswith("SQLITE_BUSY"):
            return False
        raise
    return True


def _is_autocommit(connection: Connection) -> bool:
    """Whether a driver of Postgres commits each statement, on whoever's request."""
    driver: Any = connection.connection.dbapi_connection
    return bool(driver.autocommit)


@contextmanager
def _ended(connection: Connection) -> Iterator[None]:
    """End in words what was begun in words."""
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


@contextmanager
def _lock_timeout(connection: Connection) -> Iterator[None]:
    """Fail after a while rather than queue every reader behind DDL that waits for one of them."""
    changed = connection.scalar(_LOCK_TIMEOUT, {"patience": LOCK_TIMEOUT})
    yield
    if changed:
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")


@contextmanager
def _process(connection: Connection) -> Iterator[None]:
    """Hold this process. An async caller gives its event loop the time in which it waits."""
    _poll(connection, lambda: _PROCESS.acquire(blocking=False))
    try:
        yield
    finally:
        _PROCESS.release()


def _poll(connection: Connection, attempt: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not attempt():
        if time.monotonic() > deadline:
            raise SchemaLocked(PATIENCE)
        _let_go_of_snapshot(connection)
        _sleep(connection)


def _let_go_of_snapshot(connection: Connection) -> None:
    """Leave nothing open for which the holder, if he builds an index concurrently, would wait.

    A query that has ended keeps its snapshot until the next statement, and a build that has found
    one waits for the end of its transaction. A caller's is not ours to end.
    """
    if connection.dialect.name == "postgresql" and connection.in_transaction():
        connection.exec_driver_sql(_AGAIN if may_interrupt(connection) else _WITHOUT_SNAPSHOT)


def _sleep(connection: Connection) -> None:
    if connection.dialect.is_async:
        adapted: Any = connection.connection.dbapi_connection
        adapted.run_async(lambda _: asyncio.sleep(_PAUSE))
    else:
        time.sleep(_PAUSE)
