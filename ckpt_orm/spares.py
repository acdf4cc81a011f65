"""SPARE: a connection kept between two calls, since the pool takes as long as a call itself.

Only of an engine of our own, whose pool keeps its connections as they are: nobody else counts them,
listens to them or needs one of them, and none of them had to be looked at, or replaced, first.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

from ckpt_orm.engines import KEEPS
from ckpt_orm.forks import after_fork
from ckpt_orm.lending import give_back

#: How many are kept.
MOST = 2


class Spares:
    """Lends connections of an engine, and keeps a few that came back.

    Args:
        engine: an engine that nobody else uses, with a QueuePool.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[Loan] = []
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with none: those of a parent process are neither used in a child nor closed."""
        self._parents, self._idle = self._idle, []

    def connect(self) -> Loan:
        """A connection for the length of a block."""
        pool: Any = self._engine.pool
        return self._kept() or Loan(self, self._engine.connect(), pool)

    def _kept(self) -> Loan | None:
        # Not looked at first: another thread may take the last one in between.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def take_back(self, loan: Loan) -> None:
        """Keep a connection, whatever transaction it is in rolled back, or give it to the pool."""
        conn, pool = loan.conn, loan.pool
        if conn.in_transaction():
            conn.rollback()
        driver: Any = conn.connection.dbapi_connection
        if getattr(driver, "in_transaction", False):  # sqlite3 has begun by itself
            driver.rollback()
        # What a transaction of several statements has needed is set back by the pool. And whoever
        # waits for the pool to have one again is woken by the pool only.
        is_as_it_was = "isolation_level" not in conn.get_execution_options()
        if pool is not self._engine.pool:
            conn.detach()  # the saver was closed meanwhile: so is the connection
            conn.close()
        elif is_as_it_was and len(self._idle) < MOST and _has_more(pool):
            self._idle.append(loan)
        else:
            give_back(conn)

    def dispose(self) -> None:
        """Close those that are kept."""
        while (loan := self._kept()) is not None:
            loan.conn.close()


def _has_more(pool: QueuePool) -> bool:
    """Whether nobody waits for a connection: fewer were made than it keeps, or are lent."""
    return pool.overflow() < 0 or pool.checkedout() < pool.size()


def spares_of(engine: Engine) -> Spares | None:
    """Spares of an engine of our own, unless its pool has been told what to do with connections."""
    is_plain = engine.get_execution_options().get(KEEPS) and isinstance(engine.pool, QueuePool)
    return Spares(engine) if is_plain else None


class Loan:
    """A connection that is lent, and the pool it came from."""

    __slots__ = ("_spares", "conn", "pool")

    def __init__(self, spares: Spares, conn: Connection, pool: QueuePool) -> None:
        self._spares, self.conn, self.pool = spares, conn, pool

    def __enter__(self) -> Connection:
        return self.conn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._spares.take_back(self)
        else:
            give_back(self.conn)  # in whatever state it is, which the pool ends
            self._spares.dispose()  # they may have lost the same server
