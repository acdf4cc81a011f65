"""What the commands share: where the database is, and how results and failures are told.

Results go to stdout, plain enough for a script; everything else to stderr. No URL is ever printed,
and none is put into Alembic's configuration, where `%` has a meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ckpt_orm.errors import CheckpointError, DatabaseUnavailable
from ckpt_orm.migrations import connect

_T = TypeVar("_T")

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


def on(url: str | None, operation: Callable[[Connection], _T], unreachable: int = 1) -> _T:
    """Run an operation on the database; what goes wrong is one line and an exit code."""
    if not url:
        fail("no database: pass --url, or set CKPT_ORM_DATABASE_URL", 2)
    with failures(unreachable):
        return connect.call(url, operation)


@contextmanager
def failures(unreachable: int) -> Iterator[None]:
    """Tells what goes wrong in one line; `unreachable` is the exit code for no database."""
    from alembic.util import CommandError

    try:
        yield
    except DatabaseUnavailable as error:
        fail(str(error), unreachable)
    except (CheckpointError, CommandError) as error:
        fail(str(error), 1)
    except ModuleNotFoundError as error:
        fail(f"the driver {error.name!r} is not installed", unreachable)
    except (SQLAlchemyError, OSError) as error:
        # Of a driver's error only its own words: ours would repeat the statement.
        fail(str(getattr(error, "orig", error)).strip(), unreachable)


def fail(message: str, code: int) -> NoReturn:
    """End with a message and an exit code."""
    err.print(f"ckpt-orm: {message}")
    raise typer.Exit(code)
