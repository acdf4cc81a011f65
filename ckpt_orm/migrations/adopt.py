"""WHAT IS THERE ALREADY: tables with our names are ours to use only where they have our shape.

The official PostgresSaver's tables have it, at each of its versions; so have our own. SqliteSaver's
do not, though two of the names are the same, and neither does an application's own `checkpoints`.
Those are refused before anything is changed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Inspector, inspect
from sqlalchemy.types import JSON, Integer, LargeBinary, String, TypeEngine

from ckpt_orm.errors import ForeignTable
from ckpt_orm.migrations.place import Place

_Family = type[TypeEngine[Any]]

#: The columns every version of our tables has, and the primary key, which comes first.
_SHAPES: dict[str, tuple[dict[str, _Family], dict[str, _Family]]] = {
    "checkpoints": (
        {"thread_id": String, "checkpoint_ns": String, "checkpoint_id": String},
        {
            "parent_checkpoint_id": String,
            "type": String,
            "checkpoint": JSON,
            "metadata": JSON,
        },
    ),
    "checkpoint_blobs": (
        {"thread_id": String, "checkpoint_ns": String, "channel": String, "version": String},
        {"type": String, "blob": LargeBinary},
    ),
    "checkpoint_writes": (
        {
            "thread_id": String,
            "checkpoint_ns": String,
            "checkpoint_id": String,
            "task_id": String,
            "idx": Integer,
        },
        {"channel": String, "type": String, "blob": LargeBinary},
    ),
    "checkpoint_segments": (
        {
            "thread_id": String,
            "checkpoint_ns": String,
            "channel": String,
            "chain": LargeBinary,
            "start": Integer,
        },
        {"data": LargeBinary, "digest": LargeBinary},
    ),
}

_RENAME = "rename it, or keep ours elsewhere with `--schema` or `--prefix`"
_IMPORT = (
    "it is SqliteSaver's: copy its threads with `ckpt-orm import`, "
    "and keep ours in another file or under a `--prefix`"
)


def refuse_foreign(connection: Connection, place: Place) -> None:
    """Return where each of our names is free, or belongs to a table of our shape.

    Raises:
        ForeignTable: one of them has another shape.
    """
    inspector = inspect(connection)
    for table in _SHAPES:
        if not inspector.has_table(place.name(table), place.schema):
            continue
        if difference := _difference(inspector, place, table):
            remedy = _IMPORT if _is_sqlite_savers(inspector, place) else _RENAME
            name = f"{place.schema}.{place.name(table)}" if place.schema else place.name(table)
            raise ForeignTable(name, difference, remedy)


def _difference(inspector: Inspector, place: Place, table: str) -> str:
    """The first thing that differs, in words; "" where nothing does."""
    key, others = _SHAPES[table]
    columns = {c["name"]: c for c in inspector.get_columns(place.name(table), place.schema)}
    for name, family in (key | others).items():
        if name not in columns:
            return f"it has no column {name!r}"
        if not isinstance(columns[name]["type"], family):
            return f"its column {name!r} is {columns[name]['type']}, not {_words(family)}"
    found = inspector.get_pk_constraint(place.name(table), place.schema)["constrained_columns"]
    if found != list(key):
        return f"its primary key is ({', '.join(found)}), not ({', '.join(key)})"
    for name, column in columns.items():
        if name not in key | others and not column["nullable"] and column["default"] is None:
            return f"it has a column {name!r} of its own that must not be NULL"
    return ""


def _words(family: _Family) -> str:
    words = {String: "text", Integer: "an integer", JSON: "JSON", LargeBinary: "binary"}
    return words[family]


def _is_sqlite_savers(inspector: Inspector, place: Place) -> bool:
    if inspector.dialect.name != "sqlite" or not inspector.has_table("writes", place.schema):
        return False
    writes = {column["name"] for column in inspector.get_columns("writes", place.schema)}
    return {"thread_id", "task_id", "channel", "value"} <= writes
