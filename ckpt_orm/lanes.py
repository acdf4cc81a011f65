"""Two lanes for a constant statement: Core's, and a short one straight to the driver's cursor.

A statement of ours takes plain strings, numbers and bytes and returns them, so all that Core does
for it each time (a context, a result, the types of each column) changes nothing. It costs more than
the statement itself: 60 µs of 130 on SQLite, 160 of 290 on Postgres. The short lane compiles once
per dialect and executes the text. On SQLite it also commits what the driver has begun by itself.

It is left to Core whatever an application may want to see or change: events on the engine,
logging, `schema_translate_map`, drivers that were not measured. And on Postgres every error: what
fails in the short lane is executed again by Core, which tells it, and the pool, as it tells any
other. That is why a transaction that a failed statement would spoil does not use it, unless it is
one of a batch, all of which is executed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection
from sqlalchemy import Dialect as Engineer
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.base import Executable
from sqlalchemy.util import await_only

from ckpt_orm.columns import FILLED
from ckpt_orm.modes import begins_itself
from ckpt_orm.statements import Statements

#: Drivers whose rows need no processing: text is str, bytes are bytes.
DRIVERS = {"pysqlite", "aiosqlite", "psycopg", "psycopg_async"}

#: What an application can listen to when a statement is executed.
EVENTS = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")

#: What it can listen to when a transaction begins and ends.
TRANSACTION_EVENTS = ("begin", "commit", "rollback")

#: Both.
ALL = (*EVENTS, *TRANSACTION_EVENTS)

#: psycopg's number of the binary format: as text, which is its default, bytes take twice the room.
BINARY = 1


#: The execution option of a connection on which a batch is executed: if a statement fails, all of
#: it is executed again elsewhere.
TOGETHER = "ckpt_orm_together"

#: Drivers that can send statements without waiting for the results of those before.
PIPELINES = {"psycopg", "psycopg_async"}


class Compiled(NamedTuple):
    """A statement's text, and where its parameters go.

    Args:
        text: what the driver executes.
        parameters: puts parameters in the style of the driver.
        returns_rows: whether it is a query.
        is_plain: whether Core would do nothing but execute it.
    """

    text: str
    parameters: Callable[[Mapping[str, Any]], Any]
    returns_rows: bool
    is_plain: bool


class Lane:
    """A connection on which operations execute the statements of its dialect.

    Args:
        conn: the connection.
        st: the statements.
    """

    __slots__ = ("conn", "cursor", "st")

    def __init__(self, conn: Connection, st: Statements) -> None:
        self.conn, self.st = conn, st
        #: The driver's, while a transaction of its own is open that nobody would notice.
        self.cursor: Any = None

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction around constants: Core's, or the driver's own where it begins by itself."""
        by_itself = self.st.dialect.forgives and not self.conn.dialect.is_async
        return _Transaction(self) if by_itself and self._is_clear(ALL) else self.conn.begin()

    def snapshot(self) -> AbstractContextManager[Any]:
        """A transaction around constants that read, on a SQLite driver, unless one is open."""
        return _Snapshot(self)

    def pipeline(self) -> AbstractContextManager[Any]:
        """Wait for the results of all statements at the end, where driver and libpq can."""
        can = self.conn.dialect.driver in PIPELINES and self._is_clear() and _has_pipelines()
        return _Pipelined(self.conn) if can else nullcontext()

    def execute(
        self, statement: Executable, params: Mapping[str, Any], *, again: bool = True
    ) -> Sequence[Any]:
        """Execute a constant; the rows it returns, as tuples.

        Args:
            statement: one of the statements.
            params: its parameters.
            again: whether one that fails may be executed once more, to be told by Core.
        """
        compiled = self.shortened(statement)
        if compiled is not None:
            try:
                return self._execute_directly(compiled, compiled.parameters(params))
            except self.conn.dialect.loaded_dbapi.Error as error:
                self._tell(compiled, error, again=again)
        result = self.conn.execute(statement, params)
        return result.all() if result.returns_rows else ()

    def execute_many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute a constant that returns nothing once for each of `rows`, of which may be none.

        For each row Core makes a dictionary of its parameters, which takes longer than SQLite does.
        """
        if not rows:
            return
        compiled = self.shortened(statement)
        if compiled is not None:
            cursor = self.cursor or self.conn.connection.cursor()
            try:
                cursor.executemany(compiled.text, list(map(compiled.parameters, rows)))
                return
            except self.conn.dialect.loaded_dbapi.Error as error:
                self._tell(compiled, error)
            finally:
                if cursor is not self.cursor:
                    cursor.close()
        self.conn.execute(statement, rows)

    def shortened(self, statement: Executable) -> Compiled | None:
        """The statement for the short lane; None where it is left to Core."""
        if self.cursor is None and not self._is_clear():
            return None
        compiled = _compiled(self.conn.dialect, statement)
        return compiled if compiled.is_plain else None

    def _is_clear(self, events: Sequence[str] = EVENTS) -> bool:
        """Whether nobody would notice, by a log or by listening to `events`; if in doubt, not."""
        conn, options = self.conn, self.conn.get_execution_options()
        may_fail = self.st.dialect.forgives or options.get(TOGETHER) or not conn.in_transaction()
        if (
            conn.dialect.driver not in DRIVERS
            or not may_fail
            or "schema_translate_map" in options
            or getattr(conn, "_echo", True)
            or getattr(conn.dialect, "_has_events", True)
        ):
            return False
        # Cheap, but also true for a view with an isolation level, which has an event of its own.
        some = getattr(conn, "_has_events", True) or getattr(conn.engine, "_has_events", True)
        return not (some and any(getattr(conn.dispatch, name) for name in events))

    def _execute_directly(self, compiled: Compiled, given: Any) -> Sequence[Any]:
        # The parameters were made in the caller's context, which a coroutine does not have.
        if self.cursor is not None:
            self.cursor.execute(compiled.text, given)
            found: Sequence[Any] = self.cursor.fetchall() if compiled.returns_rows else ()
            return found
        conn = self.conn
        cursor: Any = conn.connection.cursor()
        try:
            if conn.dialect.is_async and conn.dialect.driver in PIPELINES:
                return await_only(_executed(cursor._cursor, compiled, given))
            if conn.dialect.name == "postgresql":
                cursor.format = BINARY
            cursor.execute(compiled.text, given)
            return cast("Sequence[Any]", cursor.fetchall()) if compiled.returns_rows else ()
        finally:
            cursor.close()

    def _tell(self, compiled: Compiled, error: Exception, *, again: bool = True) -> None:
        """Raise a driver's error as Core would, where Core must not meet it again.

        SQLite may have rolled the whole transaction back: what is executed next would be a new one,
        without what came before. And where a file is locked, it has waited already. A batch fails
        whole.
        """
        conn = self.conn
        fails_whole = self.st.dialect.forgives or conn.get_execution_options().get(TOGETHER)
        if fails_whole or not (again or is_lost(conn, error)):
            raise told(conn, compiled.text, error) from error


class _Transaction:
    """What a driver has begun, committed by it, or rolled back."""

    __slots__ = ("_driver", "_lane")

    def __init__(self, lane: Lane) -> None:
        # Looked up before the commit, after which a processor has forgotten everything.
        self._lane, self._driver = lane, _driver_of(lane)

    def __enter__(self) -> None:
        lane, words, cursor = self._lane, self._lane.st.dialect.begin, self._driver.cursor()
        is_open = begins_itself(self._driver) or self._driver.in_transaction
        if not is_open and words is not None:
            try:
                cursor.execute(words)
            except lane.conn.dialect.loaded_dbapi.Error as failed:
                raise told(lane.conn, words, failed) from failed
        lane.cursor = cursor

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lane, dialect = self._lane, self._lane.conn.dialect
        cursor, lane.cursor = lane.cursor, None
        cursor.close()
        if kind is not None:
            self._roll_back()
            return
        try:
            dialect.do_commit(self._driver)
        except dialect.loaded_dbapi.Error as failed:
            self._roll_back()
            raise told(lane.conn, "COMMIT", failed) from failed

    def _roll_back(self) -> None:
        """What came to this is the error to be told, whatever becomes of the attempt."""
        dialect = self._lane.conn.dialect
        with suppress(dialect.loaded_dbapi.Error, SQLAlchemyError):
            dialect.do_rollback(self._driver)


class _Snapshot:
    """A transaction for reads, at whose end nothing is open that was not: a driver's, or Core's.

    Not a generator, which would cost each of them more.
    """

    __slots__ = ("_cursor", "_driver", "_end", "_lane")

    def __init__(self, lane: Lane) -> None:
        self._lane, self._driver = lane, _driver_of(lane)
        self._cursor = self._driver.cursor()
        self._end: Callable[[], object] | None = None

    def __enter__(self) -> None:
        conn, is_clear = self._lane.conn, self._lane._is_clear()
        # Core's comes first where it executes: a listener may begin what would be begun here.
        if not conn.in_transaction():
            self._end = self._driver.rollback if is_clear else conn.begin().rollback
        # sqlite3 begins before writes only. Straight on the driver: Core would not let it begin.
        if not self._driver.in_transaction:
            self._cursor.execute("BEGIN")
            self._end = self._end or self._end_in_words
        if is_clear:
            self._lane.cursor = self._cursor

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lane.cursor = None
        if self._end is not None:
            self._end()
        self._cursor.close()

    def _end_in_words(self) -> None:
        # The rollback of Python 3.10 would also end what the caller is still reading.
        if self._driver.in_transaction:
            self._cursor.execute("ROLLBACK")


def _driver_of(lane: Lane) -> Any:
    return lane.conn.connection.dbapi_connection


class _Pipelined:
    """A pipeline of the driver's.

    Not a generator, which does something still when it is left behind, as those of other threads
    are in a child process: that would be done to the parent's connection.
    """

    __slots__ = ("_conn", "_driver", "_pipeline")

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        driver: Any = conn.connection.driver_connection
        self._driver, self._pipeline = driver, driver.pipeline()

    def __enter__(self) -> None:
        if self._conn.dialect.is_async:
            await_only(self._pipeline.__aenter__())
        else:
            self._pipeline.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        dialect = self._conn.dialect
        driver_error = dialect.loaded_dbapi.Error
        try:
            if dialect.is_async:
                await_only(self._pipeline.__aexit__(kind, error, traceback))
            else:
                self._pipeline.__exit__(kind, error, traceback)
        except driver_error as failed:
            self._give_up(failed)
            raise
        if isinstance(error, driver_error):
            self._give_up(error)

    def _give_up(self, error: Any) -> None:
        # Core sees no result of a pipeline, and would give the pool back what is closed.
        if self._conn.dialect.is_disconnect(error, self._driver, None):
            self._conn.invalidate(error)


def _has_pipelines() -> bool:
    import psycopg

    return psycopg.Pipeline.is_supported()


def is_lost(conn: Connection, error: Any) -> bool:
    """Whether an error says that the connection is gone, which Core tells the pool."""
    return bool(conn.dialect.is_disconnect(error, conn.connection.driver_connection, None))


def told(conn: Connection, text: str, error: Exception) -> BaseException:
    """A driver's error as Core would raise it."""
    base = conn.dialect.loaded_dbapi.Error
    return DBAPIError.instance(text, None, error, base, hide_parameters=True, dialect=conn.dialect)


async def _executed(cursor: Any, compiled: Compiled, given: Any) -> Sequence[Any]:
    """The rows that psycopg's own cursor returns.

    SQLAlchemy's asks right away whether there are any, which in a pipeline is not known yet.
    """
    cursor.format = BINARY
    await cursor.execute(compiled.text, given)
    return cast("Sequence[Any]", await cursor.fetchall()) if compiled.returns_rows else ()


@lru_cache(maxsize=1024)
def _compiled(dialect: Engineer, statement: Executable) -> Compiled:
    made: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    # In Python, which an application's own columns may have.
    has_defaults = any(getattr(made, f"{kind}_prefetch", ()) for kind in ("insert", "update"))
    return Compiled(
        text=str(made),
        parameters=_binder(made, _processors(made, dialect)),
        returns_rows=bool(statement.is_select),
        is_plain=not has_defaults,
    )


def _binder(made: Any, processors: Mapping[str, Callable[[Any], Any]]) -> Callable[..., Any]:
    """What puts parameters in order, or together with those that belong to the statement.

    The value of some is asked for with each execution: the tenant's, which must not stay.
    """
    names = made.positiontup if made.positional else None
    binds: dict[str, Any] = made.binds
    asked = {name: bind.callable for name, bind in binds.items() if bind.callable is not None}
    fixed = {name: bind.value for name, bind in binds.items() if bind.value is not None}
    if names and len(names) > 1 and not asked and not processors:
        in_order = itemgetter(*names)
        return (lambda given: in_order({**fixed, **given})) if fixed else in_order

    def bind(given: Mapping[str, Any]) -> Any:
        values = {**fixed, **given}
        values |= {name: ask() for name, ask in asked.items()}
        values |= {name: process(values[name]) for name, process in processors.items()}
        return values if names is None else [values[name] for name in names]

    return bind


def _processors(made: Any, dialect: Engineer) -> dict[str, Callable[[Any], Any]]:
    """Those of parameters whose type is not one of our own, which need none here."""
    return {
        name: process
        for name, bind in made.binds.items()
        if (name.startswith(FILLED) or bind.callable is not None)
        and (process := bind.type.dialect_impl(dialect).bind_processor(dialect))
    }
