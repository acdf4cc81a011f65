"""LENT: a connection's isolation level set and set back, also where the server is gone by then.

With some drivers either is a round trip, and Core leaves what fails there to itself: the error is
the driver's own, and where the pool was setting it back, the pool never has the connection again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy import Connection

from ckpt_orm import lanes
from ckpt_orm.lanes import Lane


class Lent:
    """A lane whose connection is given back at the end of a block.

    Args:
        lane: the lane.
        stays_open: whether its pool may leave open what is, on SQLite.
    """

    __slots__ = ("_lane", "_stays_open")

    def __init__(self, lane: Lane, stays_open: bool) -> None:
        self._lane, self._stays_open = lane, stays_open

    def __enter__(self) -> Lane:
        return self._lane

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stays_open:
            end(self._lane.conn)
        give_back(self._lane.conn, error)


def give_back(conn: Connection, error: BaseException | None = None) -> None:
    """Close a connection, whose pool then makes another one if this one is lost."""
    # Text that cannot be sent: pg8000 has sent the beginning of its message by then.
    if isinstance(error, UnicodeEncodeError) and not conn.closed:
        conn.invalidate(error)
    if conn.closed or conn.invalidated:
        conn.close()
        return
    proxy, dialect = conn.connection, conn.dialect
    driver: Any = proxy.dbapi_connection
    try:
        conn.close()
    except dialect.loaded_dbapi.Error:
        # What was done is done, and known: only the connection is not worth keeping. It failed on
        # its way, so the pool has neither it nor its place; one that leaves it makes room.
        proxy.detach()
        with suppress(Exception):  # some drivers cannot close what is lost already
            dialect.do_terminate(driver)


def end(conn: Connection) -> None:
    """End whatever transaction is open on a connection of SQLite's, also one Core knows nothing of.

    What came to this is the error to be told, whatever becomes of the attempt.
    """
    if conn.closed or conn.invalidated:
        return
    driver: Any = conn.connection.driver_connection
    with suppress(conn.dialect.loaded_dbapi.Error):
        if driver.in_transaction:
            conn.connection.rollback()


def set_options(conn: Connection, options: Mapping[str, Any]) -> None:
    """Set execution options of a connection."""
    try:
        conn.execution_options(**options)
    except conn.dialect.loaded_dbapi.Error as error:
        if lanes.is_lost(conn, error):
            conn.invalidate(error)
        raise lanes.told(conn, "SET", error) from error
