"""WHO may do what: statements that let a role work with the tables, and not change them."""

from __future__ import annotations

from ckpt_orm.migrations.place import TABLES, Place, quoted


def grants(role: str, *, schema: str | None = None, prefix: str = "") -> tuple[str, ...]:
    """The statements, for Postgres, to be run by the owner of the tables.

    Args:
        role: the name of the role.
        schema: the schema the tables live in; None leaves it to the connection.
        prefix: what the names of the tables begin with.
    """
    place = Place(schema, prefix)
    to = f"TO {quoted(role)};"
    usage = (f"GRANT USAGE ON SCHEMA {quoted(schema)} {to}",) if schema else ()
    rows = "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE"
    return (
        *usage,
        *(f"{rows} {place.sql(table)} {to}" for table in TABLES),
        f"GRANT SELECT ON TABLE {place.qualified(place.version_table)} {to}",
    )
