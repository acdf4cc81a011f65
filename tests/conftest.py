"""Fixtures every test may use: a Postgres server for the session, a fresh database per test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import BACKENDS, Backend, Called, called
from hypothesis import settings
from servers import emptied, postgres_database, postgres_server
from sqlalchemy import URL, make_url

from ckpt_orm import SQLAlchemySaver

# Where a change is decided about, it is judged by the same examples each time; elsewhere every run
# looks at new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A running Postgres server, as the URL of its maintenance database."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres: URL) -> Iterator[URL]:
    """A new, empty Postgres database."""
    with postgres_database(postgres) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> URL:
    """A SQLite file that does not exist yet."""
    return make_url(f"sqlite:///{tmp_path / 'checkpoints.db'}")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> URL:
    """A new, empty database on each dialect (sync drivers pysqlite and psycopg)."""
    url: URL = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each way to hold and to call a saver."""
    found: Backend = request.param
    return found


@pytest.fixture
def backend_url(request: pytest.FixtureRequest, backend: Backend) -> URL:
    """A new, empty database for the backend."""
    url: URL = request.getfixturevalue(f"{backend.database}_url")
    return url


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file whose tables are set up, to be copied."""
    path = tmp_path_factory.mktemp("tables") / "checkpoints.db"
    _set_up(make_url(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def postgres_tables(postgres: URL) -> Iterator[URL]:
    """A Postgres database whose tables are set up, to be emptied before each use."""
    with postgres_database(postgres) as url:
        _set_up(url)
        yield url


def _set_up(url: URL) -> None:
    with SQLAlchemySaver.from_url(url) as saver:
        saver.setup()


@pytest.fixture
def ready_url(request: pytest.FixtureRequest, backend: Backend) -> URL:
    """A database for the backend with empty tables, which a test must leave as tables.

    The Postgres one is shared by all tests that ask for it: a test that changes more than rows
    takes `backend_url`.
    """
    if backend.database == "postgres":
        url: URL = emptied(request.getfixturevalue("postgres_tables"))
        return url
    url = request.getfixturevalue("sqlite_url")
    shutil.copyfile(request.getfixturevalue("sqlite_tables"), str(url.database))
    return url


@pytest.fixture
def saver(backend: Backend, ready_url: URL) -> Iterator[Called]:
    """A set-up saver on every backend; nothing may be checked out when the test is over."""
    with called(backend, ready_url) as found:
        yield found
