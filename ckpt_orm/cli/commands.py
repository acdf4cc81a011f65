"""The commands, one function each: find the database, do one thing, say what was done.

Results go to stdout, plain enough for a script; everything else to stderr. No URL is ever printed,
and none is put into Alembic's configuration, where `%` has a meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ckpt_orm import migrations
from ckpt_orm.errors import CheckpointError
from ckpt_orm.migrations import HEAD, REVISIONS, connect, state
from ckpt_orm.migrations.compare import differences
from ckpt_orm.migrations.locks import exclusively
from ckpt_orm.migrations.place import Place
from ckpt_orm.migrations.run import configuration, script

_T = TypeVar("_T")

app = typer.Typer(
    help="Set up and look after the tables in which LangGraph's checkpoints are stored.",
    no_args_is_help=True,
    # A traceback with its variables would print the URL, and the password in it.
    pretty_exceptions_enable=False,
)
out = Console(soft_wrap=True, markup=False, highlight=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CKPT_ORM_DATABASE_URL",
        show_default=False,
        help="The database, as SQLAlchemy writes it: postgresql://…, sqlite:///…",
    ),
]
Schema = Annotated[
    str | None, typer.Option(help="The schema the tables live in; else the connection's own.")
]
Prefix = Annotated[str, typer.Option(help="What the names of the tables begin with.")]
To = Annotated[str, typer.Argument(help="A revision, or 'head', or 'base'.")]


@app.command()
def upgrade(to: To = "head", url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Create the tables, or bring them to a newer revision."""
    to = HEAD if to == "head" else _known(to)

    def operation(connection: Connection) -> tuple[str | None, str | None]:
        before = migrations.current(connection, schema=schema, prefix=prefix)
        connection.rollback()
        migrations.setup(connection, schema=schema, prefix=prefix, to=to)
        return before, migrations.current(connection, schema=schema, prefix=prefix)

    _report(*_on(url, operation))


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

    _report(*_on(url, operation))


@app.command()
def current(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Print the revision the tables are at, or 'base' where there are none."""
    out.print(_on(url, lambda c: migrations.current(c, schema=schema, prefix=prefix)) or "base")


@app.command()
def history(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """List the revisions, newest last; with a database, which of them it has."""
    found = _on(url, lambda c: migrations.current(c, schema=schema, prefix=prefix)) if url else None
    table = Table("", "revision", "what it does", box=None)
    for revision in REVISIONS:
        mark = "✓" if state.reached(found, revision) else ""
        table.add_row(mark, revision, _summary(revision))
    out.print(table)


@app.command()
def check(url: Url = None, schema: Schema = None, prefix: Prefix = "") -> None:
    """Compare the tables with this release: exit 0 for equal, 1 for not, 2 for unreachable."""

    def operation(connection: Connection) -> tuple[str | None, list[str]]:
        found = migrations.current(connection, schema=schema, prefix=prefix)
        if found is not None and found not in REVISIONS:
            return found, []
        return found, differences(connection, Place.on(connection, schema, prefix))

    found, lines = _on(url, operation, unreachable=2)
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

    with _failures(1):
        start, end = (_position(revision) for revision in (since, to))
        run = command.upgrade if start <= end else command.downgrade
        names = f"{_known(since)}:{_known(to)}"
        run(configuration(Place(schema, prefix), dialect=dialect), names, sql=True)


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

    _report(*_on(url, operation))


@app.command()
def grant(
    role: Annotated[str, typer.Argument(help="The role an application connects as.")],
    schema: Schema = None,
    prefix: Prefix = "",
) -> None:
    """Print the grants with which a role of Postgres can use the tables, and not change them."""
    for statement in migrations.grants(role, schema=schema, prefix=prefix):
        out.print(statement)


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

    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command()(demo)
    alone(args=context.args, prog_name="ckpt-orm demo")


def _on(url: str | None, operation: Callable[[Connection], _T], unreachable: int = 1) -> _T:
    """Run an operation on the database; what goes wrong is one line and an exit code."""
    if not url:
        _fail("no database: pass --url, or set CKPT_ORM_DATABASE_URL", 2)
    with _failures(unreachable):
        return connect.call(url, operation)


@contextmanager
def _failures(unreachable: int) -> Iterator[None]:
    from alembic.util import CommandError

    try:
        yield
    except (CheckpointError, CommandError) as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        _fail(f"the driver {error.name!r} is not installed", unreachable)
    except (SQLAlchemyError, OSError) as error:
        # Of a driver's error only its own words: ours would repeat the statement.
        _fail(str(getattr(error, "orig", error)).strip(), unreachable)


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"ckpt-orm: {message}")
    raise typer.Exit(code)


def _report(before: str | None, after: str | None) -> None:
    if before == after:
        out.print(f"{after or 'base'}: nothing to do")
    else:
        out.print(f"{before or 'base'} -> {after or 'base'}")


def _known(revision: str) -> str:
    _position(revision)
    return HEAD if revision == "head" else revision


def _position(revision: str) -> int:
    """Where a revision stands in the history, the base before the first."""
    names = ("base", *REVISIONS)
    if revision == "head":
        return len(REVISIONS)
    if revision not in names:
        _fail(f"there is no revision {revision!r}; there are {', '.join(names)} and head", 1)
    return names.index(revision)


def _summary(revision: str) -> str:
    return str(script(revision).doc)
