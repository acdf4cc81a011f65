"""WHERE the tables are: a schema and a prefix, and every name that follows from the two.

The prefix begins all our names, the schema holds them all, the version table too. A schema given
through a connection's `schema_translate_map` is resolved here, once: nothing below translates.
Names are quoted here as well, always, so that no schema or prefix needs to be a plain word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ckpt_orm.errors import InvalidConfig
from ckpt_orm.names import check_names

#: The tables of the newest revision, without prefix, in the order they are created.
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_segments")

#: What Alembic notes the revision in; never the application's own `alembic_version`.
VERSION_TABLE = "ckpt_orm_alembic_version"

#: What the official PostgresSaver leaves beside its three tables, the first of ours.
OFFICIAL_VERSION_TABLE = "checkpoint_migrations"
OFFICIAL_INDEXES = tuple(f"{table}_thread_id_idx" for table in TABLES[:3])


@dataclass(frozen=True)
class Place:
    """A schema (None leaves it to the connection) and what our names in it begin with."""

    schema: str | None = None
    prefix: str = ""

    @classmethod
    def on(cls, connection: Connection | None, schema: str | None, prefix: str) -> Place:
        """The place as `connection` sees it, through its `schema_translate_map`.

        Raises:
            InvalidConfig: where names would not fit into the database, or a SQLite one has no such
                schema.
        """
        options = connection.get_execution_options() if connection is not None else {}
        translate: dict[str | None, Any] = options.get("schema_translate_map") or {}
        place = cls(translate.get(schema, schema), prefix)
        place.fitting(connection.dialect.name if connection is not None else "")
        if connection is not None and place.schema and connection.dialect.name == "sqlite":
            check_attached(connection, place.schema)
        return place

    def fitting(self, dialect: str) -> Place:
        """The place, if a database of that dialect can have it.

        Raises:
            InvalidConfig: where it cannot.
        """
        check_names(self.schema, self.prefix, dialect)
        return self

    @property
    def version_table(self) -> str:
        """The name of the version table."""
        return self.prefix + VERSION_TABLE

    def name(self, table: str) -> str:
        """The name of one of our tables, as it is in the catalog."""
        return self.prefix + table

    def sql(self, table: str) -> str:
        """The name of one of our tables, as it is written in a statement."""
        return self.qualified(self.prefix + table)

    def qualified(self, name: str) -> str:
        """Any name in our schema, as it is written in a statement."""
        return f"{quoted(self.schema)}.{quoted(name)}" if self.schema else quoted(name)


def check_attached(connection: Connection, schema: str) -> None:
    """Refuse a schema that a SQLite connection has not, which are its attached files.

    Raises:
        InvalidConfig: where it has not.
    """
    cursor = connection.connection.cursor()  # Core would begin a transaction
    try:
        cursor.execute("PRAGMA database_list")
        attached = {str(row[1]).lower() for row in cursor.fetchall()}
    finally:
        cursor.close()
    if schema.lower() not in attached:
        raise InvalidConfig(
            f"SQLite has no schema {schema!r} here: leave the schema out, or ATTACH a file by that "
            "name to each connection, in a listener to the engine's `connect`"
        )


def quoted(name: str) -> str:
    """An identifier between double quotes, which both dialects read the same."""
    return '"' + name.replace('"', '""') + '"'
