"""MODES of Python's sqlite3, by which a transaction is begun and ended by the driver, or in words.

    legacy             the driver begins before a write, and ends whatever is open
    no isolation_level it begins nothing, and ends whatever is open
    autocommit=False   it has begun always, and ends one by beginning the next
    autocommit=True    it begins nothing and ends nothing: its commit and rollback have no effect

The last two came with Python 3.12. aiosqlite does not tell in which of them it is: that is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

#: What `sqlite3.Connection.autocommit` is, since Python 3.12, where nobody has set it.
LEGACY = -1


def driver_of(conn: Connection) -> Any:
    """The driver's own connection, which no adapter stands before."""
    connection = conn.connection
    return connection.driver_connection if conn.dialect.is_async else connection.dbapi_connection


def begins_itself(driver: Any) -> bool:
    """Whether a SQLite connection is in the mode in which it begins before a write."""
    legacy = getattr(driver, "autocommit", LEGACY) == LEGACY
    return legacy and driver.isolation_level is not None


def ends_nothing(connection: Connection) -> bool:
    """Whether what is begun on a SQLite connection can be ended in words only."""
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction or sys.version_info < (3, 12):
        return False
    if hasattr(driver, "autocommit"):
        return driver.autocommit is True
    _say(connection.connection, "BEGIN")
    connection.connection.rollback()
    if not driver.in_transaction:
        return False
    _say(connection.connection, "ROLLBACK")
    return True


@contextmanager
def outside(connection: Any) -> Iterator[None]:
    """Interrupt the transaction in which a new connection of a driver's may be."""
    driver = getattr(connection, "driver_connection", connection)
    if not driver.in_transaction:
        yield
        return
    _say(connection, "COMMIT")
    yield
    _say(connection, "BEGIN")


def _say(connection: Any, words: str) -> None:
    cursor = connection.cursor()
    cursor.execute(words)
    cursor.close()
