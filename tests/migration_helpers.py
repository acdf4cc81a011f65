"""What the tests of the migrations share: engines that are closed, and what a database holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, inspect, text

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Engines that are disposed of, and must have every connection back by then."""
    made: list[Engine] = []

    def make(url: URL, **options: Any) -> Engine:
        made.append(create_engine(url, **options))
        return made[-1]

    yield make
    for engine in made:
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        engine.dispose()


@pytest.fixture
def engine(database_url: URL, make_engine: MakeEngine) -> Engine:
    """An engine as an application makes one, on an empty database of each dialect."""
    return make_engine(database_url)


def tables(engine: Engine, schema: str | None = None) -> set[str]:
    """The names of the tables in a schema."""
    return set(inspect(engine).get_table_names(schema))


def columns(engine: Engine, table: str, schema: str | None = None) -> list[str]:
    """The names of a table's columns, in order."""
    return [column["name"] for column in inspect(engine).get_columns(table, schema)]


def execute(engine: Engine, *statements: str) -> None:
    """Run statements in one transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
