"""Fixtures every test may use: a Postgres server for the session, fresh empty databases per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import BACKENDS, Backend, Called, called
from servers import postgres_database, postgres_server
from sqlalchemy import URL, make_url


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


@pytest.fixture
def saver(backend: Backend, backend_url: URL) -> Iterator[Called]:
    """A set-up saver on every backend; nothing may be checked out when the test is over."""
    with called(backend, backend_url) as found:
        yield found
