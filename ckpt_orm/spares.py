"""SPARE: a connection kept between two calls, since the pool takes as long as a call itself.

Only of an engine of our own, whose pool keeps its connections as they are: nobody else counts them,
listens to them or needs one of them, and none of them had to be looked at, or replaced, first.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool

from ckpt_orm.engines import KEEPS
from ckpt_orm.forks import after_fork
from ckpt_orm.lanes import Lane
from ckpt_orm.lending import give_back
from ckpt_orm.statements import Statements

#: How many are kept.
MOST = 2


class Spares:
    """Lends connections of an engine, and keeps a few that came back.

    Args:
        engine: an engine that nobody else uses, with a QueuePool.
        st: the statements of its dialect.
    """

    def __init__(self, engine: Engine, st: Statements) -> None:
        self._engine, self._st = engine, st
        self._idle: list[Loan] = []
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with none: those of a parent process are neither used in a child nor closed."""
        self._parents, self._idle = self._idle, []

    def connect(self) -> Loan:
        """A connection for the length of a block."""
        try:  # not looked at first: another thread may take the last one in between
            return self._idle.pop()
        except IndexError:
            pool: Any = self._engine.pool
        return Loan(self, Lane(self._engine.connect(), self._st), pool)

    def take_back(self, loan: Loan) -> None:
        """Keep a connection, whatever transaction it is in rolled back, or give it to the pool."""
        conn, pool = loan.lane.conn, loan.pool
        # Core has begun before any statement of its own, though nothing is open in the database.
        if conn.in_transaction():
            conn.rollback()
        if loan.sqlite is not None and loan.sqlite.in_transaction:  # it has begun by itself
            loan.sqlite.rollback()
        # What a transaction of several statements has needed is set back by the pool. And whoever
        # waits for the pool to have one again is woken by the pool only.
        is_as_it_was = loan.sqlite or "isolation_level" not in conn.get_execution_options()
        if pool is not self._engine.pool:
            conn.detach()  # the saver was closed meanwhile: so is the connection
            conn.close()
        elif is_as_it_was and len(self._idle) < MOST and _has_more(pool):
            self._idle.append(loan)
        else:
            give_back(conn)

    def dispose(self) -> None:
        """Close those that are kept."""
        with suppress(IndexError):
            while True:
                self._idle.pop().lane.conn.close()


def _has_more(pool: QueuePool) -> bool:
    """Whether nobody waits for a connection: fewer were made than it keeps, or are lent."""
    return pool.overflow() < 0 or pool.checkedout() < pool.size()


def spares_of(engine: Engine, st: Statements) -> Spares | None:
    """Spares of an engine of our own, unless its pool has been told what to do with connections."""
    is_plain = engine.get_execution_options().get(KEEPS) and isinstance(engine.pool, QueuePool)
    return Spares(engine, st) if is_plain else None


class Loan:
    """A lane that is lent, and the pool its connection came from."""

    __slots__ = ("_spares", "lane", "pool", "sqlite")

    def __init__(self, spares: Spares, lane: Lane, pool: QueuePool) -> None:
        self._spares, self.lane, self.pool = spares, lane, pool
        #: The driver's own connection, where it is sqlite3.
        self.sqlite: Any = lane.conn.connection.dbapi_connection if lane.st.dialect.begin else None

    def __enter__(self) -> Lane:
        return self.lane

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._spares.take_back(self)
        else:
            give_back(self.lane.conn, error)  # in whatever state it is, which the pool ends
            self._spares.dispose()  # they may have lost the same server
