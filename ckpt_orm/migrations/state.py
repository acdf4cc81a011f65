"""WHICH revision a database is at, read without Alembic and without leaving a trace.

A statement on a table that is missing would spoil the transaction around it on Postgres. So the
first statement asks the catalog whether there is a version table, and only then the second reads
it: two short reads, no savepoint, no rights beyond SELECT.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from ckpt_orm.errors import InvalidConfig, SchemaNotReady, UnsupportedDialect
from ckpt_orm.migrations.place import Place, quoted
from ckpt_orm.migrations.whereabouts import database_of, is_blank

#: Every revision of this release, oldest first.
REVISIONS = ("ckpt_orm_0001", "ckpt_orm_0002", "ckpt_orm_0003", "ckpt_orm_0004")

#: The revision this release works with.
HEAD = REVISIONS[-1]


def current(connection: Connection, *, schema: str | None = None, prefix: str = "") -> str | None:
    """The revision of the tables, None where there are none of ours.

    It works inside any transaction and leaves it usable, and begins one on a connection that has
    none, as every statement does.

    Args:
        connection: a connection on either dialect.
        schema: the schema the tables live in; None leaves it to the connection.
        prefix: what the names of the tables begin with.
    """
    place = Place.on(connection, schema, prefix)
    if not _has_version_table(connection, place):
        return None
    table = place.qualified(place.version_table)
    found: str | None = connection.scalar(text(f"SELECT version_num FROM {escaped(table)}"))
    return found


def check(connection: Connection, *, schema: str | None = None, prefix: str = "") -> None:
    """Return where this release can work with the tables; a database ahead of it is fine.

    Raises:
        SchemaNotReady: the tables are missing, or older than this release.
    """
    found = current(connection, schema=schema, prefix=prefix)
    if not reached(found, HEAD):
        place = Place.on(connection, schema, prefix)
        where = database_of(connection, place), is_blank(connection, place)
        raise SchemaNotReady(found, HEAD, place.schema, place.prefix, *where)


def is_adopted(connection: Connection, schema: str | None = None, prefix: str = "") -> bool:
    """Whether the tables were the official PostgresSaver's before they were ours.

    Told by the order of their ids, which is its database's and never changed: ours is binary.
    """
    if connection.dialect.name != "postgresql":
        return False
    name = Place.on(connection, schema, prefix).sql("checkpoints")
    return bool(connection.scalar(_ORDER.bindparams(name=name)) not in ("C", "POSIX"))


#: Which collation the ids of a table have.
_ORDER = text(
    "SELECT collname FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation"
    " WHERE attrelid = to_regclass(:name) AND attname = 'thread_id'"
)


def position(revision: str) -> int:
    """Where a revision stands in the history, the base before the first.

    Raises:
        InvalidConfig: for one that this release does not know.
    """
    names = ("base", *REVISIONS)
    if revision == "head":
        return len(REVISIONS)
    if revision not in names:
        raise InvalidConfig(
            f"there is no revision {revision!r}; there are {', '.join(names)} and head"
        )
    return names.index(revision)


def reached(found: str | None, wanted: str) -> bool:
    """Whether a database at `found` has everything of `wanted`.

    A revision this release does not know was made by a later one, which only ever adds.

    Raises:
        InvalidConfig: for a wanted one that this release does not know.
    """
    asked = position(wanted)
    return (found is not None and found not in REVISIONS) or position(found or "base") >= asked


def escaped(sql: str) -> str:
    """SQL for `text()` in which a name may hold a colon that is no parameter's."""
    return sql.replace(":", r"\:")


def _has_version_table(connection: Connection, place: Place) -> bool:
    """Ask the catalog, which answers false or nothing for a table that is missing."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        name = place.qualified(place.version_table)
        asked = text("SELECT to_regclass(:name) IS NOT NULL").bindparams(name=name)
    elif dialect == "sqlite":
        catalog = quoted(place.schema or "main") + ".sqlite_master"
        asked = text(
            f"SELECT 1 FROM {escaped(catalog)} WHERE type = 'table' AND name = :name"
        ).bindparams(name=place.version_table)
    else:
        raise UnsupportedDialect(dialect)
    return bool(connection.scalar(asked))
