"""SPARE: a connection kept between two calls, since the pool takes as long as a call itself.

Only of an engine of our own, whose pool keeps its connections as they are: nobody else counts them,
listens to them or needs one of them, and none of them had to be looked at, or replaced, first.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

from ckpt_orm.engines import KEEPS
from ckpt_orm.forks import after_fork

#: How many are kept.
MOST = 2


class Spares:
    """Lends connections of an engine, and keeps a few that came back.

    Args:
        engine: an engine that nobody else uses, with a QueuePool.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[Connection] = []
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with none: those of a parent process are neither used in a child nor closed."""
        self._parents, self._idle = self._idle, []

    def connect(self) -> Loan:
        """A connection for the length of a block."""
        try:
            return Loan(self, self._idle.pop())
        except IndexError:
            return Loan(self, self._engine.connect())

    def take_back(self, conn: Connection) -> None:
        """Keep a connection, whatever transaction it is in rolled back, or give it to the pool."""
        if conn.in_transaction():
            conn.rollback()
        driver: Any = conn.connection.driver_connection
        if getattr(driver, "in_transaction", False):  # sqlite3 has begun by itself
            driver.rollback()
        # What a transaction of several statements has needed is set back by the pool. And whoever
        # waits for the pool to have one again is woken by the pool only.
        pool = cast("QueuePool", self._engine.pool)
        is_as_it_was = "isolation_level" not in conn.get_execution_options()
        if is_as_it_was and len(self._idle) < MOST and pool.checkedout() < pool.size():
            self._idle.append(conn)
        else:
            conn.close()

    def dispose(self) -> None:
        """Close those that are kept."""
        while self._idle:
            self._idle.pop().close()


def spares_of(engine: Engine) -> Spares | None:
    """Spares of an engine of our own, unless its pool has been told what to do with connections."""
    is_plain = engine.get_execution_options().get(KEEPS) and isinstance(engine.pool, QueuePool)
    return Spares(engine) if is_plain else None


class Loan:
    """A connection that is lent."""

    __slots__ = ("_conn", "_spares")

    def __init__(self, spares: Spares, conn: Connection) -> None:
        self._spares, self._conn = spares, conn

    def __enter__(self) -> Connection:
        return self._conn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._spares.take_back(self._conn)
        else:
            self._conn.close()  # in whatever state it is, which the pool ends
            self._spares.dispose()  # they may have lost the same server
