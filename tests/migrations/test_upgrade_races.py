"""Eight processes start at once on an empty database, twenty times over: all of them succeed."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from migration_helpers import MakeEngine, tables
from servers import postgres_database
from sqlalchemy import URL, NullPool, create_engine, make_url

from ckpt_orm import migrations
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE

PROCESSES, ROUNDS = 8, 20


def work(pipe: Pipe) -> None:
    """Set up each database whose URL comes through the pipe, and say how it went."""
    while url := _next(pipe):
        engine = create_engine(make_url(url), poolclass=NullPool)
        try:
            migrations.setup_engine(engine)
            with engine.connect() as connection:
                migrations.check(connection)
            pipe.send("")
        except BaseException:
            pipe.send(traceback.format_exc())


def _next(pipe: Pipe) -> str | None:
    try:
        url: str = pipe.recv()
    except EOFError:
        return None
    return url


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Pipe]]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(PROCESSES)]
    started: list[SpawnProcess] = [context.Process(target=work, args=[end]) for _, end in pairs]
    for process, (_, far) in zip(started, pairs, strict=True):
        process.start()
        far.close()  # so that a worker that died is an EOFError and not a silence
    try:
        yield [near for near, _ in pairs]
    finally:
        for near, _ in pairs:
            near.close()
        for process in started:
            process.terminate()
            process.join(30)


def race(pipes: list[Pipe], url: URL) -> None:
    for pipe in pipes:
        pipe.send(url.render_as_string(hide_password=False))
    assert [pipe.recv() for pipe in pipes] == [""] * PROCESSES


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_eight_processes_start_at_once(
    workers: list[Pipe],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_engine: MakeEngine,
    dialect: str,
) -> None:
    for number in range(ROUNDS):
        if dialect == "sqlite":
            url = make_url(f"sqlite:///{tmp_path / f'{number}.db'}")
            race(workers, url)
            assert tables(make_engine(url)) == {*TABLES, VERSION_TABLE}
        else:
            with postgres_database(request.getfixturevalue("postgres")) as url:
                race(workers, url)
                engine = make_engine(url)
                assert tables(engine) == {*TABLES, VERSION_TABLE}
                engine.dispose()
