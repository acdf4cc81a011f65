"""WHAT A REVISION IS WRITTEN WITH: where it runs, raw SQL with our names, and the mark it leaves.

A revision runs in one of three environments: ours, an application's whose `version_locations` name
ours, or inside an application's own revision. `here` finds the schema and the prefix in each. In
the last two Alembic notes progress in the application's table, which the saver does not know, so
each step ends with `record`, which notes it in ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from alembic import op
from sqlalchemy import Connection, inspect, text

from ckpt_orm.errors import DataWouldBeLost
from ckpt_orm.migrations import adopt
from ckpt_orm.migrations.locks import interrupted, may_interrupt
from ckpt_orm.migrations.place import OFFICIAL_VERSION_TABLE, Place, quoted
from ckpt_orm.migrations.state import escaped

#: The name of our place in a context's options, and of our section of a configuration file.
OPTION = "ckpt_orm"

#: The name of the option that lets a downgrade delete rows.
DELETE = "ckpt_orm_delete_data"

_HAS_LZ4 = (
    "SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)"
)

_GIVEN: ContextVar[Place | None] = ContextVar("ckpt_orm_place", default=None)
_DELETE: ContextVar[bool] = ContextVar(DELETE, default=False)


@contextmanager
def placed(place: Place, delete_data: bool) -> Iterator[None]:
    """Run revisions at `place`, whatever the configuration says."""
    where, what = _GIVEN.set(place), _DELETE.set(delete_data)
    try:
        yield
    finally:
        _GIVEN.reset(where)
        _DELETE.reset(what)


def here() -> Place:
    """Where the running revision works."""
    context = op.get_context()
    if given := _GIVEN.get() or context.opts.get(OPTION):
        place: Place = given
        return place
    section: Mapping[str, str] = {}
    if context.config is not None:
        section = context.config.get_section(OPTION) or {}
    return Place.on(online(), section.get("schema") or None, section.get("prefix", ""))


def online() -> Connection | None:
    """The connection the revision runs on, None where it only prints SQL."""
    context = op.get_context()
    return None if context.as_sql else context.connection


def dialect() -> str:
    """The name of the dialect the revision runs on, or prints SQL for."""
    return op.get_context().dialect.name


def run(sql: str) -> None:
    """Execute SQL in which `{table}` stands for one of our names."""
    op.execute(text(escaped(sql.format_map(_Names(here())))))


class _Names(dict[str, str]):
    """Each name of ours as it is written at a place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __missing__(self, name: str) -> str:
        return self._place.sql(name)


def has_column(table: str, column: str) -> bool:
    """Whether a table has a column already; taken for no where there is no database to ask."""
    if (connection := online()) is None:
        return False
    place = here()
    columns = inspect(connection).get_columns(place.name(table), place.schema)
    return column in {found["name"] for found in columns}


def refuse_foreign() -> None:
    """Stop before a table of another shape is touched, where there is a database to ask."""
    if (connection := online()) is not None:
        adopt.refuse_foreign(connection, here())


def record(revision: str | None) -> None:
    """Note in our version table where the tables are, unless Alembic itself does so."""
    place, context = here(), op.get_context()
    if context.version_table == place.version_table:
        return
    table = place.qualified(place.version_table)
    statements = [
        f"CREATE TABLE IF NOT EXISTS {table} (version_num VARCHAR(32) NOT NULL,"
        f" CONSTRAINT {quoted(place.version_table + '_pkc')} PRIMARY KEY (version_num))",
        f"DELETE FROM {table}",
        f"INSERT INTO {table} (version_num) VALUES ('{revision}')",
    ]
    if revision is None:
        statements = [f"DROP TABLE IF EXISTS {table}"]
    for statement in statements:
        op.execute(text(escaped(statement)))


def create_index(name: str, table: str, columns: str) -> None:
    """Create an index on one of our tables, whatever is left of an attempt that was broken off.

    On Postgres a table with rows is indexed concurrently, for which the transaction is interrupted;
    an empty one, and one inside a caller's transaction, as part of it. An index of this name that
    an operator has built in advance is taken as it is.
    """
    place, connection = here(), online()
    index = quoted(place.name(name))
    create = f"IF NOT EXISTS {index} ON {{{table}}} ({columns})"
    if dialect() != "postgresql":
        qualified = place.qualified(place.name(name))
        run(f"CREATE INDEX IF NOT EXISTS {qualified} ON {quoted(place.name(table))} ({columns})")
        return
    found = f"to_regclass($name${place.qualified(place.name(name))}$name$)"
    broken = f"SELECT FROM pg_index WHERE indexrelid = {found} AND NOT indisvalid"
    drop = f"EXECUTE 'DROP INDEX ' || {found}"
    run(f"DO $$ BEGIN IF EXISTS ({broken}) THEN {drop}; END IF; END $$")
    if connection is None or not may_interrupt(connection) or not _has_rows(connection, table):
        run(f"CREATE INDEX {create}")
        return
    with interrupted(connection, place):
        run(f"CREATE INDEX CONCURRENTLY {create}")


def _has_rows(connection: Connection, table: str) -> bool:
    asked = f"SELECT EXISTS (SELECT 1 FROM {here().sql(table)})"
    return bool(connection.scalar(text(escaped(asked))))


def compress(table: str, column: str, method: str) -> None:
    """Set how a column's new values are compressed, on servers that can be told.

    A statement as text: those before 14 cannot even parse it. The server is asked as part of it, so
    that a printed script is right for whichever server it is replayed on.
    """
    if dialect() != "postgresql":
        return
    alter = f"ALTER TABLE {{{table}}} ALTER COLUMN {column} SET COMPRESSION {method}"
    run(f"DO $$ BEGIN IF EXISTS ({_HAS_LZ4}) THEN EXECUTE $sql${alter}$sql$; END IF; END $$")


def refuse_loss(*tables: str, remedy: str = "delete them first") -> None:
    """Stop before rows are deleted that nobody asked to delete.

    Args:
        tables: the tables that are about to be dropped.
        remedy: what to do with their rows instead.

    Raises:
        DataWouldBeLost: one of the tables has rows, and `delete_data` was not given.
    """
    context = op.get_context()
    if (connection := online()) is None or context.opts.get(DELETE) or _DELETE.get():
        return
    given = getattr(context.config and context.config.cmd_opts, "x", None) or []
    if "delete-data=yes" in given:
        return
    for table in tables:
        if _has_rows(connection, table):
            raise DataWouldBeLost(here().sql(table).replace('"', ""), remedy)


def is_official() -> bool:
    """Whether the tables were the official PostgresSaver's before they were ours."""
    connection, place = online(), here()
    if connection is None or connection.dialect.name != "postgresql":
        return False
    return inspect(connection).has_table(place.name(OFFICIAL_VERSION_TABLE), place.schema)
