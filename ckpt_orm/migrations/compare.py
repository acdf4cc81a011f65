"""WHAT DIFFERS between the database and the models, in words an operator can act on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from ckpt_orm.migrations.filters import theirs
from ckpt_orm.migrations.place import Place
from ckpt_orm.models import declare


def differences(connection: Connection, place: Place) -> list[str]:
    """One line for each table, column, default or index that is not as the models have it."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    compared = theirs(place.schema, place.prefix)
    context = MigrationContext.configure(
        connection,
        opts={
            "include_name": compared.include_name,
            "include_object": compared.include_object,
            "include_schemas": place.schema is not None,
            "compare_server_default": True,
            "version_table": place.version_table,
            "version_table_schema": place.schema,
        },
    )
    metadata = declare(schema=place.schema, prefix=place.prefix).metadata
    return [_line(difference) for difference in _flat(compare_metadata(context, metadata))]


def _flat(found: list[Any]) -> list[tuple[Any, ...]]:
    """Alembic lists the changes of one column in a list of their own."""
    return [
        difference for item in found for difference in (item if isinstance(item, list) else [item])
    ]


def _line(difference: tuple[Any, ...]) -> str:
    kind, *facts = difference
    if kind in ("add_table", "remove_table"):
        return f"table {facts[0].name}: {_STATES[kind[:3]]}"
    if kind in ("add_column", "remove_column"):
        return f"column {facts[1]}.{facts[2].name}: {_STATES[kind[:3]]}"
    if kind.startswith("modify_"):
        _, table, column, _, found, wanted = facts
        return f"column {table}.{column}: {kind[7:]} is {_plain(found)}, not {_plain(wanted)}"
    return f"{kind[kind.index('_') + 1 :]} {facts[0].name}: {_STATES[kind[:3]]}"


_STATES = {"add": "missing", "rem": "not one of ours"}


def _plain(value: Any) -> str:
    """A default is wrapped in a clause; everything else says what it is."""
    inner = getattr(value, "arg", value)
    return str(getattr(inner, "text", inner))
