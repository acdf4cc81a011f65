"""What the commands share: where the database is, and how results and failures are told.

Results go to stdout, plain enough for a script; everything else to stderr. No URL is ever printed,
and none is put into Alembic's configuration, where `%` has a meaning.

A command ends with 0 where it has done what it was told, and all is as it should be; with 1 where
it refuses, or finds what should not be; with 2 where it was told wrongly, or the database could not
be reached or failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console
from sqlalchemy import URL, Connection
from sqlalchemy.exc import SQLAlchemyError, StatementError

from ckpt_orm.engines import in_memory
from ckpt_orm.errors import BadURL, CheckpointError, DatabaseError, WrongEngine
from ckpt_orm.failures import code_of
from ckpt_orm.migrations import connect
from ckpt_orm.reasons import NETWORK, is_bare, reason_of, words_of

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


def on(url: str | None, operation: Callable[[Connection], _T], *, creates: bool = False) -> _T:
    """Run an operation on the database; what goes wrong is one line and an exit code."""
    with failures():
        return connect.call(database(url, creates=creates), operation)


def database(url: str | None, *, creates: bool = False) -> URL:
    """The URL that was given; one of a SQLite file that is not there only for what creates it.

    SQLite would make an empty file of a name that is mistyped.
    """
    if not url:
        fail("no database: pass --url, or set CKPT_ORM_DATABASE_URL", 2)
    made = connect.sync_url(url)
    if made.get_backend_name() == "sqlite" and in_memory(made):
        fail("a database in memory is gone with the command: name a file, sqlite:///file.db", 2)
    file = None if creates else sqlite_file(made)
    if file is not None and not file.exists():
        fail(
            f"there is no database {str(file)!r}, and none was made: correct --url, "
            "or make it by `ckpt-orm upgrade`",
            2,
        )
    return made


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite URL, None for another database and for one in memory."""
    if url.get_backend_name() != "sqlite" or in_memory(url):
        return None
    name = str(url.database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name).absolute()


@contextmanager
def failures() -> Iterator[None]:
    """Tells what goes wrong in one line."""
    from alembic.util import CommandError

    try:
        yield
    except (DatabaseError, BadURL, WrongEngine, ModuleNotFoundError) as error:
        fail(told(error), 2)
    except (CheckpointError, CommandError) as error:
        fail(told(error), 1)
    except BrokenPipeError:  # whoever reads the output has seen enough
        raise
    except Exception as error:
        if not (isinstance(error, (SQLAlchemyError, *NETWORK)) or is_bare(error)):
            raise
        fail(told(error), 2)


def told(error: Exception) -> str:
    """What an error says on a command line."""
    if isinstance(error, BadURL):
        return error.advice
    if isinstance(error, ModuleNotFoundError):
        return f"the driver {error.name!r} is not installed"
    if isinstance(error, DatabaseError) and isinstance(cause := error.__cause__, StatementError):
        # Nobody sees a cause here.
        reason = error.reason or words_of(cause, error.code)
        return str(type(error)(error.operation, error.code, error.kind, reason))
    if isinstance(error, CheckpointError):
        return str(error)
    # Of a driver's error only its own words: SQLAlchemy's would repeat the statement.
    code = code_of(error)
    words = words_of(error, code) if isinstance(error, StatementError) else str(error).strip()
    return reason_of(error, code) or words or f"{type(error).__name__} ({code})"


def fail(message: str, code: int) -> NoReturn:
    """End with a message and an exit code."""
    err.print(f"ckpt-orm: {message}")
    raise typer.Exit(code)
