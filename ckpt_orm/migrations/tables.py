"""WHOSE tables they are: made by the packaged revisions, or by an application's own.

Tables of the application's own models have no version of ours. What is compared is what statements
rely on: that each column of the models is there, and that the primary key is the one that ON
CONFLICT names. It is read from the catalog, once per saver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, inspect

from ckpt_orm.errors import ModelsNotReady
from ckpt_orm.migrations.place import Place
from ckpt_orm.migrations.run import setup
from ckpt_orm.migrations.state import check, is_adopted
from ckpt_orm.migrations.whereabouts import database_of, is_blank
from ckpt_orm.models import Models


def check_models(connection: Connection, models: Models) -> None:
    """Return where this release can work with the tables of some models.

    Raises:
        SchemaNotReady: the tables are missing, or older than this release or than the models.
    """
    schema, prefix = models.place
    if models.are_packaged:
        check(connection, schema=schema, prefix=prefix)
    elif problem := next(_problems(connection, models), None):
        place = Place.on(connection, schema, "")
        raise ModelsNotReady(problem, database_of(connection, place), is_blank(connection, place))


def setup_models(connection: Connection, models: Models) -> None:
    """Create the tables of models, or bring them to this release's revision: see `setup`.

    Raises:
        SchemaNotReady: the tables of an application's own models are not there, which only its own
            revisions can make.
    """
    schema, prefix = models.place
    if models.are_packaged:
        return setup(connection, schema=schema, prefix=prefix)
    inside = connection.in_transaction()
    try:
        check_models(connection, models)
    finally:
        if not inside:
            connection.rollback()  # ends the transaction that looking began
    return None


def are_adopted(connection: Connection, models: Models) -> bool:
    """Whether the tables of models were the official PostgresSaver's before they were ours."""
    return models.are_packaged and is_adopted(connection, *models.place)


def _problems(connection: Connection, models: Models) -> Iterator[str]:
    """What of the models is not in the database, in words."""
    schema = Place.on(connection, models.place[0], "").schema
    names = [table.name for table in models.tables]
    inspector = inspect(connection)
    columns = inspector.get_multi_columns(schema=schema, filter_names=names)
    keys: dict[Any, Any] = inspector.get_multi_pk_constraint(schema=schema, filter_names=names)
    for table in models.tables:
        at = (schema, table.name)
        found = {column["name"] for column in columns.get(at, ())}
        if not found:
            yield f"table {table.fullname!r} is missing"
        for column in table.columns:
            if column.name not in found:
                yield f"column '{table.fullname}.{column.name}' is missing"
        if _key(table) != keys[at]["constrained_columns"]:
            yield f"the primary key of table {table.fullname!r} is not {', '.join(_key(table))}"


def _key(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]
