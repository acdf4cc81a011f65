"""The commands, one function each: find the database, do one thing, say what was done.

Those here are about the schema; what looks after the rows is in `upkeep`.
"""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import Connection

from ckpt_orm import migrations
from ckpt_orm.cli import upkeep
from ckpt_orm.cli.shared import Prefix, Schema, Url, fail, failures, on, out
from ckpt_orm.migrations import HEAD, REVISIONS, state
from ckpt_orm.migrations.compare import differences
from ckpt_orm.migrations.locks import exclusively
from ckpt_orm.migrations.place import Place
from ckpt_orm.migrations.run import configuration, script
from ckpt_orm.urls import DRIVERS
from ckpt_orm.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    # A traceback with its variables would print the URL, and the password in it.
    pretty_exceptions_enable=False,
    # In columns the names of options would be cut.
    rich_markup_mode=None,
)
To = Annotated[str, typer.Argument(help="A revision, or 'head', or 'base'.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ckpt-orm {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the release and exit."
        ),
    ] = False,
) -> None:
    """Set up and look after the tables in which LangGraph's checkpoints are stored."""


@app.command()
def upgrade(to: To = "head", url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Create the tables, or bring them to a newer revision."""
    to = HEAD if to == "head" else _known(to)

    def operation(connection: Connection) -> tuple[str | None, str | None]:
        before = migrations.current(connection, schema=schema, prefix=prefix)
        connection.rollback()
        migrations.setup(connection, schema=schema, prefix=prefix, to=to)
        return before, migrations.current(connection, schema=schema, prefix=prefix)

    _report(*on(url, operation, creates=True))


@app.command()
def downgrade(
    to: To,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = "",
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Drop tables even if they have rows.")
    ] = False,
) -> None:
    """Take the tables back to an older revision; 'base' drops them, if they are empty."""
    from alembic import command

    from ckpt_orm.migrations.script import DELETE

    def operation(connection: Connection) -> tuple[str | None, str | None]:
        place = Place.on(connection, schema, prefix)
        with exclusively(connection, place):
            before = migrations.current(connection, schema=schema, prefix=prefix)
            attributes = {"connection": connection, DELETE: delete_data}
            command.downgrade(configuration(place, **attributes), _known(to))
            return before, migrations.current(connection, schema=schema, prefix=prefix)

    _report(*on(url, operation))


@app.command()
def current(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Print the revision the tables are at, or 'base' where there are none."""
    out.print(on(url, lambda c: migrations.current(c, schema=schema, prefix=prefix)) or "base")


@app.command()
def history(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """List the revisions, newest last; with a database, which of them it has."""
    found = on(url, lambda c: migrations.current(c, schema=schema, prefix=prefix)) if url else None
    # Lines and no table, which would be folded to the width of whatever reads them.
    out.print(f"  {'revision':14}what it does")
    for revision in REVISIONS:
        mark = "✓" if state.reached(found, revision) else " "
        out.print(f"{mark} {revision:14}{_summary(revision)}")


@app.command()
def check(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Compare the tables with this release: exit 0 for equal, 1 for not, 2 for unreachable."""

    def operation(connection: Connection) -> tuple[str | None, list[str]]:
        found = migrations.current(connection, schema=schema, prefix=prefix)
        if found is not None and found not in REVISIONS:
            return found, []
        return found, differences(connection, Place.on(connection, schema, prefix))

    found, lines = on(url, operation)
    behind = [revision for revision in REVISIONS if not state.reached(found, revision)]
    if found is not None and found not in REVISIONS:
        out.print(f"{found} is newer than this release, which needs {HEAD}: fine")
    else:
        out.print(f"{found or 'base'}, this release needs {HEAD}")
    for revision in behind:
        out.print(f"  to come: {revision} {_summary(revision)}")
    for line in lines:
        out.print(f"  differs: {line}")
    if behind or lines:
        raise typer.Exit(1)


@app.command()
def sql(
    to: To = "head",
    since: Annotated[str, typer.Option(help="The revision the database is at.")] = "base",
    dialect: Annotated[str, typer.Option(help="postgresql or sqlite.")] = "postgresql",
    schema: Schema = None,
    prefix: Prefix = "",
) -> None:
    """Print the SQL of an upgrade, or of a downgrade where `to` is older than `--since`."""
    from alembic import command

    if dialect not in DRIVERS:
        fail(f"--dialect {dialect!r} is none that there is: write {' or '.join(DRIVERS)}", 2)
    with failures():
        start, end = (_position(revision) for revision in (since, to))
        run = command.upgrade if start <= end else command.downgrade
        names = f"{_known(since)}:{_known(to)}"
        place = Place(schema, prefix).fitting(dialect)
        run(configuration(place, dialect=dialect), names, sql=True)


@app.command()
def stamp(to: To, url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Note a revision without running anything: for tables that were made by other means."""
    from alembic import command

    def operation(connection: Connection) -> tuple[str | None, str | None]:
        place = Place.on(connection, schema, prefix)
        with exclusively(connection, place):
            before = migrations.current(connection, schema=schema, prefix=prefix)
            command.stamp(configuration(place, connection=connection), _known(to))
            return before, migrations.current(connection, schema=schema, prefix=prefix)

    _report(*on(url, operation))


@app.command()
def grant(
    role: Annotated[str, typer.Argument(help="The role an application connects as.")],
    schema: Schema = None,
    prefix: Prefix = "",
) -> None:
    """Print the grants with which a role of Postgres can use the tables, and not change them."""
    for statement in migrations.grants(role, schema=schema, prefix=prefix):
        out.print(statement)


app.command()(upkeep.sweep)
app.command()(upkeep.verify)
app.command()(upkeep.pack)
app.command()(upkeep.unpack)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def demo(context: typer.Context) -> None:
    """Run a small agent whose state survives being stopped; `demo --help` says more."""
    # It needs LangGraph itself, which no other command does.
    from ckpt_orm.cli.demo import demo

    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command()(demo)
    alone(args=context.args, prog_name="ckpt-orm demo")


def _report(before: str | None, after: str | None) -> None:
    if before == after:
        out.print(f"{after or 'base'}: nothing to do")
    else:
        out.print(f"{before or 'base'} -> {after or 'base'}")


def _known(revision: str) -> str:
    _position(revision)
    return HEAD if revision == "head" else revision


def _position(revision: str) -> int:
    """Where a revision stands in the history; one that there is not ends the command."""
    with failures():
        return state.position(revision)


def _summary(revision: str) -> str:
    return str(script(revision).doc)
