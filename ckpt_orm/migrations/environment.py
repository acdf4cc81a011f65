"""An Alembic environment around our revisions: what an `env.py` calls.

    from alembic import context
    from ckpt_orm.migrations.environment import run

    run(context)

It runs on the connection, or the engine, a program put into `config.attributes["connection"]`, and
leaves locks and the transaction of a connection to that program; else on one to the URL it finds:
`-x url=…`, `CKPT_ORM_DATABASE_URL`, `sqlalchemy.url` of the section. `schema` and `prefix` are keys
of the same section, or `-x schema=…`, `-x prefix=…`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.schema import CreateSchema

from ckpt_orm.migrations import connect
from ckpt_orm.migrations.filters import theirs
from ckpt_orm.migrations.locks import LOCK_TIMEOUT, exclusively, open_for_ddl
from ckpt_orm.migrations.place import Place, quoted
from ckpt_orm.migrations.script import DELETE, OPTION
from ckpt_orm.migrations.state import REVISIONS
from ckpt_orm.models import declare

if TYPE_CHECKING:
    from alembic.operations.ops import MigrationScript
    from alembic.runtime.environment import EnvironmentContext
    from alembic.runtime.migration import MigrationContext

#: The environment variable that names the database.
URL_VARIABLE = "CKPT_ORM_DATABASE_URL"


def run(context: EnvironmentContext) -> None:
    """Run the command Alembic was called with, or print its SQL."""
    attributes = context.config.attributes
    if context.is_offline_mode():
        _print(context)
    elif isinstance(given := attributes.get("connection"), Engine):
        with given.connect() as connection:
            _alone(context, connection)
    elif given is not None:
        _migrate(context, given)
    else:
        connect.call(_url(context), lambda connection: _alone(context, connection))


def _alone(context: EnvironmentContext, connection: Connection) -> None:
    with exclusively(connection, _place(context, connection)):
        _migrate(context, connection)


def _migrate(context: EnvironmentContext, connection: Connection) -> None:
    place = _place(context, connection)
    with _untranslated(connection):
        _configure(context, place, connection=connection)
        if not context.get_context().opts.get("dont_mutate"):
            _create_schema(connection, place)
            open_for_ddl(connection)
        with context.begin_transaction():
            context.run_migrations()


def _print(context: EnvironmentContext) -> None:
    place = _place(context, None)
    dialect = context.config.attributes.get("dialect") or _url(context).get_backend_name()
    _configure(
        context,
        place,
        dialect_name=dialect,
        literal_binds=True,
        # psycopg's own style would print each percent sign twice.
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        if dialect == "postgresql":
            context.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            if place.schema:
                context.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(place.schema)}")
        context.run_migrations()


def _configure(context: EnvironmentContext, place: Place, **options: Any) -> None:
    compared = theirs(place.schema, place.prefix)
    context.configure(
        target_metadata=declare(schema=place.schema, prefix=place.prefix).metadata,
        version_table=place.version_table,
        version_table_schema=place.schema,
        include_name=compared.include_name,
        include_object=compared.include_object,
        include_schemas=place.schema is not None,
        compare_server_default=True,
        transactional_ddl=True,
        process_revision_directives=_number,
        **{OPTION: place, DELETE: context.config.attributes.get(DELETE, False)},
        **options,
    )


def _place(context: EnvironmentContext, connection: Connection | None) -> Place:
    attributes = context.config.attributes
    if OPTION in attributes:
        place: Place = attributes[OPTION]
        return place
    given = _given(context)
    schema = given.get("schema") or context.config.get_main_option("schema")
    prefix = given.get("prefix") or context.config.get_main_option("prefix")
    return Place.on(connection, schema or None, prefix or "")


def _url(context: EnvironmentContext) -> URL:
    """Where to connect to; read here and not from a section, in which `%` would have a meaning."""
    url = (
        context.config.attributes.get("url")
        or _given(context).get("url")
        or os.environ.get(URL_VARIABLE)
        or context.config.get_main_option("sqlalchemy.url")
    )
    if not url:
        raise CommandError(
            f"no database: set {URL_VARIABLE}, or `sqlalchemy.url` in the section "
            f"[{context.config.config_ini_section}], or pass `-x url=…`"
        )
    return connect.sync_url(url)


def _given(context: EnvironmentContext) -> dict[str, str]:
    return context.get_x_argument(as_dictionary=True)


def _create_schema(connection: Connection, place: Place) -> None:
    """Create the schema where it is missing; the right to do so is only needed then."""
    if place.schema is None or connection.dialect.name != "postgresql":
        return
    found = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    if not connection.scalar(found, {"name": place.schema}):
        connection.execute(CreateSchema(place.schema))


@contextmanager
def _untranslated(connection: Connection) -> Iterator[None]:
    """Our names are resolved already; a map that swaps two schemas would do it once more."""
    translate = connection.get_execution_options().get("schema_translate_map")
    if translate is None:
        yield
        return
    connection.execution_options(schema_translate_map={})
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=translate)


def _number(
    context: MigrationContext, revision: object, directives: Iterable[MigrationScript]
) -> None:
    """Give a new revision the next number, unless one was asked for with `--rev-id`."""
    config = context.config
    if config is None or not getattr(config.cmd_opts, "rev_id", None):
        for script in directives:
            script.rev_id = f"ckpt_orm_{len(REVISIONS) + 1:04}"
