"""Two lanes for a constant statement: Core's, and a short one straight to the driver's cursor.

A statement of ours takes plain strings, numbers and bytes and returns them, so all that Core does
for it each time (a context, a result, the types of each column) changes nothing. It costs more than
the statement itself: 60 µs of 130 on SQLite, 160 of 290 on Postgres. The short lane compiles once
per dialect and executes the text.

It is left to Core whatever an application may want to see or change: events on the engine,
logging, `schema_translate_map`, drivers that were not measured. And on Postgres every error: what
fails in the short lane is executed again by Core, which tells it, and the pool, as it tells any
other. That is why a transaction that a failed statement would spoil does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy import Dialect as Engineer
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable

from ckpt_orm.columns import FILLED
from ckpt_orm.statements import Statements

#: Drivers whose rows need no processing: text is str, bytes are bytes.
DRIVERS = {"pysqlite", "aiosqlite", "psycopg", "psycopg_async"}

#: What an application can listen to when a statement is executed.
EVENTS = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")

#: psycopg's number of the binary format: as text, which is its default, bytes take twice the room.
BINARY = 1


@dataclass(frozen=True)
class Compiled:
    """A statement's text, and where its parameters go.

    Args:
        text: what the driver executes.
        names: the order of its parameters; None where they go by name.
        fixed: the values of those that belong to the statement.
        returns_rows: whether it is a query.
        processors: what the types of an application's own columns make of their values.
        is_plain: whether Core would do nothing but execute it.
    """

    text: str
    names: Sequence[str] | None
    fixed: Mapping[str, Any]
    returns_rows: bool
    processors: Mapping[str, Callable[[Any], Any]]
    is_plain: bool

    def parameters(self, given: Mapping[str, Any]) -> Any:
        """The parameters in the style of the driver."""
        values = {**self.fixed, **given}
        if self.processors:
            values |= {name: process(values[name]) for name, process in self.processors.items()}
        return values if self.names is None else [values[name] for name in self.names]


_COMPILED: WeakKeyDictionary[Engineer, dict[Executable, Compiled]] = WeakKeyDictionary()


def execute(
    conn: Connection, st: Statements, statement: Executable, params: Mapping[str, Any]
) -> Sequence[Any]:
    """Execute a constant; the rows it returns, as tuples."""
    if _is_clear(conn, st) and _compiled(conn.dialect, statement).is_plain:
        try:
            return _execute_directly(conn, statement, params)
        except conn.dialect.loaded_dbapi.Error as error:
            _tell(conn, st, statement, error)
    result = conn.execute(statement, params)
    return result.all() if result.returns_rows else ()


def execute_many(
    conn: Connection, st: Statements, statement: Executable, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Execute a constant that returns nothing once for each of `rows`, of which there may be none.

    For each row Core makes a dictionary of its parameters, which takes longer than SQLite does.
    """
    if rows and _is_clear(conn, st) and (compiled := _compiled(conn.dialect, statement)).is_plain:
        cursor: Any = conn.connection.cursor()
        try:
            cursor.executemany(compiled.text, [compiled.parameters(row) for row in rows])
            return
        except conn.dialect.loaded_dbapi.Error as error:
            _tell(conn, st, statement, error)
        finally:
            cursor.close()
    if rows:
        conn.execute(statement, rows)


def _tell(conn: Connection, st: Statements, statement: Executable, error: Exception) -> None:
    """Raise a driver's error as Core would, where Core must not meet it again.

    SQLite may have rolled the whole transaction back: what is executed next would be a new one,
    without what came before. And where a file is locked, it has waited already.
    """
    if st.dialect.forgives:
        text, base = _compiled(conn.dialect, statement).text, conn.dialect.loaded_dbapi.Error
        told: Any = DBAPIError.instance(
            text, None, error, base, hide_parameters=True, dialect=conn.dialect
        )
        raise told from error


def _is_clear(conn: Connection, st: Statements) -> bool:
    """Whether nobody would notice."""
    return (
        conn.dialect.driver in DRIVERS
        and (st.dialect.forgives or not conn.in_transaction())
        and "schema_translate_map" not in conn.get_execution_options()
        and not _is_watched(conn)
    )


def _is_watched(conn: Connection) -> bool:
    """Whether somebody logs executions or listens to them; where that cannot be told, yes."""
    if getattr(conn, "_echo", True) or getattr(conn.dialect, "_has_events", True):
        return True
    # Cheap, but also true for a view with an isolation level, which has an event of its own.
    some = getattr(conn, "_has_events", True) or getattr(conn.engine, "_has_events", True)
    return some and any(getattr(conn.dispatch, name) for name in EVENTS)


def _execute_directly(
    conn: Connection, statement: Executable, params: Mapping[str, Any]
) -> Sequence[Any]:
    compiled = _compiled(conn.dialect, statement)
    cursor: Any = conn.connection.cursor()
    try:
        if conn.dialect.name == "postgresql":
            getattr(cursor, "_cursor", cursor).format = BINARY
        cursor.execute(compiled.text, compiled.parameters(params))
        return cursor.fetchall() if compiled.returns_rows else ()
    finally:
        cursor.close()


def _compiled(dialect: Engineer, statement: Executable) -> Compiled:
    known = _COMPILED.setdefault(dialect, {})
    if statement not in known:
        made: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        fixed = {name: value for name, value in made.params.items() if value is not None}
        names = made.positiontup if made.positional else None
        # In Python, which an application's own columns may have.
        has_defaults = any(getattr(made, f"{kind}_prefetch", ()) for kind in ("insert", "update"))
        known[statement] = Compiled(
            text=str(made),
            names=names,
            fixed=fixed,
            returns_rows=bool(statement.is_select),
            processors=_processors(made, dialect),
            is_plain=not has_defaults,
        )
    return known[statement]


def _processors(made: Any, dialect: Engineer) -> dict[str, Callable[[Any], Any]]:
    """Those of parameters whose type is not one of our own, which need none here."""
    return {
        name: process
        for name, bind in made.binds.items()
        if name.startswith(FILLED)
        and (process := bind.type.dialect_impl(dialect).bind_processor(dialect))
    }
