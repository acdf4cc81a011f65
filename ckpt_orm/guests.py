"""WITHIN: operations that run inside a transaction of the caller's, who alone ends it.

A guest never commits, closes or expires anything. Each operation is a savepoint: what fails is
undone by itself, is told at once, and leaves the transaction usable. Nothing is retried, since the
transaction a retry would need is not ours to begin.

LangGraph calls from worker threads and from several tasks, while a connection serves one at a time:
whoever uses the same session or connection through a saver waits for the others. The caller's own
code is not among them: it does not use its session while a graph runs on it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from ckpt_orm.errors import WrongEngine
from ckpt_orm.failures import translated
from ckpt_orm.lanes import Lane
from ckpt_orm.modes import begins_itself
from ckpt_orm.operations import CHANGE, READ, Access, Operation
from ckpt_orm.runners import Runner
from ckpt_orm.statements import dialect_named
from ckpt_orm.waiting import in_thread, threads_of_guests, to_its_end

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

P = ParamSpec("P")
R = TypeVar("R")

#: What a transaction of the caller's is known by.
Guest: TypeAlias = (
    "Session | scoped_session[Any] | Connection | "
    "AsyncSession | async_scoped_session[Any] | AsyncConnection"
)

_THREADS: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()
_TASKS: WeakKeyDictionary[object, asyncio.Lock] = WeakKeyDictionary()


class GuestRunner:
    """Runs operations inside the caller's transaction; otherwise as a `Runner` does.

    Args:
        host: the saver's own runner, which knows the tables.
        guest: the caller's session or connection.
    """

    def __init__(self, host: Runner, guest: Guest) -> None:
        # A registry hands each thread another session: the one of this thread is meant.
        found: Any = guest
        if hasattr(found, "registry"):
            found = found()
        self.host, self._guest = host, found
        self.logs, self.statements = host.logs, host.statements
        self._is_async = hasattr(found, "sync_session") or hasattr(found, "sync_connection")
        if not self._is_async and not isinstance(found, (Session, Connection)):
            raise WrongEngine(
                f"using() takes an open Session, Connection, AsyncSession or AsyncConnection, not "
                f"a {type(found).__name__}: to use an engine or a sessionmaker, pass it to "
                "SQLAlchemySaver()"
            )
        key = getattr(found, "sync_session", None) or getattr(found, "sync_connection", found)
        self._turn = _THREADS.setdefault(key or found, threading.Lock())
        self._async_turn = _TASKS.setdefault(key or found, asyncio.Lock())

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation in this thread.

        Raises:
            WrongEngine: on an async session or connection, or where there is no transaction.
            SchemaNotReady: where the tables are missing or older than this release.
            DatabaseError: where the database refused the operation, or could not be reached.
        """
        return self._run(
            operation.name, lambda conn: self._operate(conn, operation, *args, **kwargs)
        )

    async def arun(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation on an async session or connection, or on a sync one in a thread."""
        return await self._arun(
            operation.name, lambda conn: self._operate(conn, operation, *args, **kwargs)
        )

    def setup(self) -> None:
        """Bring the tables to this release's revision, as a part of the caller's transaction."""
        self._run("setup", self._set_up)

    async def asetup(self) -> None:
        """`setup` in the other colour."""
        await self._arun("setup", self._set_up)

    def dispose(self) -> None:
        """Nothing: the caller's transaction is the caller's."""

    async def adispose(self) -> None:
        """Nothing, as `dispose`."""

    def __str__(self) -> str:
        return f"{self.host}, using {type(self._guest).__name__}"

    def _run(self, name: str, step: Callable[[Connection], R]) -> R:
        if self._is_async:
            raise WrongEngine(
                f"this saver uses a transaction of an {type(self._guest).__name__}, which a "
                "synchronous call cannot join: call the a-method (graph.ainvoke, aput, …), or "
                "pass a Session to using()"
            )
        with translated(name), self._turn:
            return step(self._connection())

    async def _arun(self, name: str, step: Callable[[Connection], R]) -> R:
        if not self._is_async:
            return await in_thread(threads_of_guests(), partial(self._run, name, step))
        # A cancelled statement would cost the caller its connection, and all that was done on it.
        return await to_its_end(self._arun_once(name, step))

    async def _arun_once(self, name: str, step: Callable[[Connection], R]) -> R:
        with translated(name):
            async with self._async_turn:
                if hasattr(self._guest, "sync_session"):
                    found: R = await self._guest.run_sync(lambda _: step(self._connection()))
                else:
                    found = await self._guest.run_sync(step)
                return found

    def _connection(self) -> Connection:
        """The connection of the caller's transaction, which begins with it if it has not yet."""
        session = getattr(self._guest, "sync_session", self._guest)
        if isinstance(session, Connection):
            return session
        try:
            session.get_bind()
        except UnboundExecutionError:  # bound table by table: ours are not among them
            engine = self.host.engine
            return session.connection(bind_arguments={"bind": engine})  # type: ignore[no-any-return]
        return session.connection()  # type: ignore[no-any-return]

    def _operate(
        self, conn: Connection, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        self._join(conn, operation.access)
        if operation.access is CHANGE and not self.statements.dialect.forgives:
            _refuse_old_snapshot(conn)
        try:
            with self._savepoint(conn, operation.access):
                return self.host.execute(Lane(conn, self.statements), operation, *args, **kwargs)
        except DBAPIError as error:
            if not error.connection_invalidated:
                self.host.look(conn)  # was it a table that is missing?
            raise

    def _set_up(self, conn: Connection) -> None:
        self._join(conn, CHANGE)
        with self._savepoint(conn, CHANGE):
            self.host.set_up(conn)

    def _join(self, conn: Connection, access: Access) -> None:
        """Refuse a connection that has no transaction to join; begin what the driver puts off.

        sqlite3 begins before the first INSERT only. A savepoint before that would be a transaction
        of its own, and its release a commit.
        """
        if dialect_named(conn.dialect.name) is not self.host.statements.dialect:
            raise WrongEngine(
                f"the transaction is one of {conn.dialect.name}, the saver's tables are in another "
                "database: make the saver with an engine of the same database as the session"
            )
        if not conn.in_transaction():
            conn.begin()
        begin = self.host.statements.dialect.begin
        dbapi: Any = conn.connection.dbapi_connection
        driver: Any = conn.connection.driver_connection
        if begin is None:
            autocommits = dbapi.autocommit
        elif access is READ or driver.in_transaction:
            return
        else:
            self.host.check_mode(conn)
            autocommits = not begins_itself(driver)
        if autocommits:
            raise WrongEngine(
                "the session or connection is in AUTOCOMMIT, so there is no transaction to join: "
                "use one with another isolation level, or the saver without using()"
            )
        if begin is not None:
            conn.exec_driver_sql(begin)

    def _savepoint(self, conn: Connection, access: Access) -> Any:
        """What undoes a failed operation; in SQLite a read that fails has done nothing."""
        forgiving = self.host.statements.dialect.begin is not None and access is READ
        return nullcontext() if forgiving else conn.begin_nested()


def _refuse_old_snapshot(conn: Connection) -> None:
    """Refuse to delete or copy by what a transaction saw before others stored.

    What they have added to a chain since would be deleted with it, and no error would tell.
    """
    level = conn.get_isolation_level()
    if level in ("REPEATABLE READ", "SERIALIZABLE"):
        raise WrongEngine(
            f"the transaction is {level}, and may not see what was stored since it began: delete, "
            "prune and copy threads in one that is READ COMMITTED, or outside of it"
        )
