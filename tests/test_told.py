"""What an error shows with its causes, as a log has it: never a value that was to be stored."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from string import ascii_letters, digits

import pytest
from backends import Backend, Called, called, named
from builders import checkpoint, config, put, values_of, version
from servers import postgres_database
from sqlalchemy import URL, CheckConstraint, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped
from test_own_tables import EVERY

from ckpt_orm import CheckpointError, DatabaseError, declare, from_config

SECRET = "S3CRET" * 3
POSTGRES = [backend for backend in EVERY if backend.database == "postgres"]


class Base(DeclarativeBase):
    pass


class Owned:
    user_id: Mapped[int | None] = from_config("user_id", CheckConstraint("user_id > 0", "positive"))


MODELS = declare(Base, prefix="told_", every=Owned)


@pytest.fixture
def own(backend: Backend, backend_url: URL) -> Iterator[Called]:
    """A saver on tables that refuse some rows, of a server that repeats parameters."""
    engine = create_engine(backend_url)
    Base.metadata.create_all(engine)
    if backend.database == "postgres":
        name = engine.dialect.identifier_preparer.quote(str(backend_url.database))
        with engine.begin() as connection:
            for setting in ("log_parameter_max_length_on_error", "log_parameter_max_length"):
                connection.execute(text(f"ALTER DATABASE {name} SET {setting} = -1"))
    engine.dispose()
    with called(backend, backend_url, models=MODELS) as found:
        yield found


def letters(number: int) -> str:
    """Text that does not compress."""
    return "".join(random.Random(number).choices(ascii_letters + digits, k=number))


def told(error: BaseException) -> str:
    """All that a log has of it, without the lines of code."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("    "))


@named(EVERY)
def test_a_row_that_the_application_refuses(own: Called) -> None:
    at = config("t", "", "1")
    at["configurable"]["user_id"] = -1
    given = version()
    made = checkpoint({"a": SECRET, "b": [SECRET]}, {"a": given, "b": given})
    for store in (
        lambda: own.put_writes(at, [("a", SECRET)], "task"),
        lambda: own.put(at, made, {"q": SECRET}, {"a": given, "b": given}),
    ):
        with pytest.raises(DatabaseError) as caught:
            store()
        words = told(caught.value)
        assert "positive" in words
        assert "see the cause" in words
        for hidden in (SECRET, SECRET.encode().hex(), "DETAIL", "CONTEXT"):
            assert hidden not in words
        assert isinstance(caught.value.__cause__, DBAPIError)
        assert caught.value.__cause__.orig is not None


@named(EVERY)
def test_a_value_that_the_column_does_not_take(own: Called) -> None:
    at = config("t", "", "1")
    at["configurable"]["user_id"] = SECRET
    with pytest.raises(CheckpointError) as caught:
        own.put_writes(at, [("a", 1)], "task")
    assert SECRET not in told(caught.value)


@named(POSTGRES)
def test_ids_that_are_too_long_together(backend: Backend, ready_url: URL) -> None:
    """As where a thread is copied whose namespace is long."""
    with called(backend, ready_url) as saver:
        put(saver, "t", {"a": [1]}, ns=letters(1_200))
        with pytest.raises(DatabaseError, match=r"\(54000\); .* use shorter"):
            saver.copy_thread("t", letters(2_300))


@named(POSTGRES)
def test_a_database_that_is_not_utf8(backend: Backend, postgres: URL) -> None:
    with (
        postgres_database(postgres, options="ENCODING 'LATIN1' LOCALE 'C'") as url,
        called(backend, url.set(drivername=backend.driver)) as saver,
    ):
        put(saver, "t", {"a": ["caf\u00e9"], "b": "caf\u00e9"})
        for store in (
            lambda: put(saver, "t", {"b": "\U0001f600"}),
            lambda: put(saver, "\U0001f600", {"a": [1]}),
        ):
            with pytest.raises(DatabaseError, match="use a database with ENCODING 'UTF8'"):
                store()
        assert values_of(saver, config("t")) == {"a": ["caf\u00e9"], "b": "caf\u00e9"}
