"""UPGRADE AND DOWNGRADE: Alembic run by a program, on its connection or inside its own revision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from ckpt_orm.errors import SchemaError
from ckpt_orm.migrations import state
from ckpt_orm.migrations.locks import exclusively, open_for_ddl
from ckpt_orm.migrations.place import Place
from ckpt_orm.migrations.state import HEAD, REVISIONS

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import Script

#: Where a run that only prints SQL has come to, which no database can tell.
_PRINTED: WeakKeyDictionary[MigrationContext, dict[Place, str | None]] = WeakKeyDictionary()


def setup(
    connection: Connection, *, schema: str | None = None, prefix: str = "", to: str = HEAD
) -> None:
    """Create the tables, or bring them to a revision; do nothing where they are there already.

    It works inside the caller's transaction where one is open, which then decides what becomes of
    it, and in one of its own otherwise. A database that is ahead of `to` is left as it is. Nothing
    but SELECT is needed where there is nothing to do.

    Args:
        connection: a connection on either dialect; through `AsyncConnection.run_sync` too.
        schema: the schema the tables live in, created where it is missing; None leaves it to the
            connection.
        prefix: what the names of the tables begin with.
        to: the revision to come to.

    Raises:
        InvalidConfig: there is no such revision.
        ForeignTable: one of the names belongs to a table of another shape.
        SchemaLocked: another upgrade did not end in time.
    """
    place = Place.on(connection, schema, prefix)
    if not _reached(connection, place, to):
        with exclusively(connection, place):
            _upgrade(connection, place, to)


def setup_engine(
    engine: Engine, *, schema: str | None = None, prefix: str = "", to: str = HEAD
) -> None:
    """Do `setup` on a connection of the engine."""
    with engine.connect() as connection:
        setup(connection, schema=schema, prefix=prefix, to=to)


def _reached(connection: Connection, place: Place, to: str) -> bool:
    """Look, and end the transaction that looking began."""
    inside = connection.in_transaction()
    try:
        found = state.current(connection, schema=place.schema, prefix=place.prefix)
    finally:
        if not inside:
            connection.rollback()
    return state.reached(found, to)


def _upgrade(connection: Connection, place: Place, to: str) -> None:
    """Upgrade, unless another process has just done so."""
    found = state.current(connection, schema=place.schema, prefix=place.prefix)
    if state.reached(found, to):
        return
    from alembic import command

    from ckpt_orm.migrations.adopt import refuse_foreign

    refuse_foreign(connection, place)
    command.upgrade(configuration(place, connection=connection), to)


def configuration(place: Place, **attributes: Any) -> Config:
    """Alembic's configuration for our environment, with what a file cannot say in `attributes`."""
    from alembic.config import Config

    from ckpt_orm.migrations.script import OPTION

    config = Config(attributes={OPTION: place, **attributes})
    # A path with a percent sign in it must not be interpolated.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


def upgrade(
    to: str = HEAD, *, since: str | None = None, schema: str | None = None, prefix: str = ""
) -> None:
    """Upgrade the tables from inside an application's own revision; never take them back.

    What it runs belongs to that revision's transaction, and is printed with it under `--sql`.

    Args:
        to: the revision to come to.
        since: where the tables are; needed only under `--sql`, where no database can be asked, and
            there only if an earlier script has brought them somewhere.
        schema: the schema the tables live in; None leaves it to the connection.
        prefix: what the names of the tables begin with.
    """
    from ckpt_orm.migrations.script import online, placed

    place = Place.on(online(), schema, prefix)
    start, end = _index(_position(place, since, None)), _index(to)
    open_for_ddl(online())
    with placed(place, delete_data=False):
        for revision in REVISIONS[start:end]:
            script(revision).module.upgrade()
    _printed()[place] = to


def downgrade(
    to: str = "base",
    *,
    since: str | None = None,
    schema: str | None = None,
    prefix: str = "",
    delete_data: bool = False,
) -> None:
    """Take the tables back from inside an application's own revision; never upgrade them.

    Args:
        to: the revision to go back to; "base" drops the tables, unless they were the official
            PostgresSaver's before they were ours.
        since: where the tables are; needed only under `--sql`, and there only if they are not at
            the newest revision.
        schema: the schema the tables live in; None leaves it to the connection.
        prefix: what the names of the tables begin with.
        delete_data: whether tables that have rows may be dropped.
    """
    from ckpt_orm.migrations.script import online, placed

    place = Place.on(online(), schema, prefix)
    start, end = _index(_position(place, since, HEAD)), _index(to)
    open_for_ddl(online())
    with placed(place, delete_data):
        for revision in reversed(REVISIONS[end:start]):
            script(revision).module.downgrade()
    _printed()[place] = to


def _position(place: Place, since: str | None, unknown: str | None) -> str | None:
    """Where the tables are: what the database says, else the caller, else this script so far."""
    from ckpt_orm.migrations.script import online

    if (connection := online()) is not None:
        return state.current(connection, schema=place.schema, prefix=place.prefix)
    return since or _printed().get(place, unknown)


def _printed() -> dict[Place, str | None]:
    from alembic import op

    return _PRINTED.setdefault(op.get_context(), {})


def _index(revision: str | None) -> int:
    """How many of our revisions lead to this one.

    Raises:
        SchemaError: it is none of this release's, so what leads to it or away from it is not known.
    """
    if revision in (None, "base"):
        return 0
    if revision not in REVISIONS:
        raise SchemaError(
            f"there is no revision {revision!r} in this release of ckpt_orm, "
            f"whose newest is {HEAD}: install the release that has it"
        )
    return REVISIONS.index(revision) + 1


def script(revision: str) -> Script:
    """One of our revisions, as Alembic has loaded it."""
    from alembic.script import ScriptDirectory

    found = ScriptDirectory(Path(__file__).parent).get_revision(revision)
    assert found is not None
    return found
