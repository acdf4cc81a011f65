"""Eight processes start at once on an empty database, twenty times over: all of them succeed."""

from __future__ import annotations

import asyncio
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

from ckpt_orm import SQLAlchemySaver, migrations
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE

PROCESSES, ROUNDS = 8, 20


def by_engine(url: str) -> None:
    engine = create_engine(make_url(url), poolclass=NullPool)
    migrations.setup_engine(engine)
    with engine.connect() as connection:
        migrations.check(connection)


def by_saver(url: str) -> None:
    """Which brings a new SQLite file to WAL first."""
    with SQLAlchemySaver.from_url(url) as saver:
        saver.setup()
        assert saver.count() == 0


def by_async_saver(url: str) -> None:
    async def set_up() -> None:
        given = make_url(url)
        driver = "sqlite+aiosqlite" if given.get_backend_name() == "sqlite" else given.drivername
        async with SQLAlchemySaver.from_url(given.set(drivername=driver)) as saver:
            await saver.asetup()
            assert await saver.acount() == 0

    asyncio.run(set_up())


WAYS = {"engine": by_engine, "saver": by_saver, "async saver": by_async_saver}


def work(pipe: Pipe) -> None:
    """Set up each database that is named through the pipe, and say how it went."""
    while asked := _next(pipe):
        pipe.send(_outcome(*asked))


def _outcome(way: str, url: str) -> str:
    try:
        WAYS[way](url)
    except BaseException:
        return traceback.format_exc()
    return ""


def _next(pipe: Pipe) -> tuple[str, str] | None:
    try:
        asked: tuple[str, str] = pipe.recv()
    except EOFError:
        return None
    return asked


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


def race(pipes: list[Pipe], way: str, url: URL) -> None:
    for pipe in pipes:
        pipe.send((way, url.render_as_string(hide_password=False)))
    assert [pipe.recv() for pipe in pipes] == [""] * PROCESSES


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_eight_processes_start_at_once(
    workers: list[Pipe],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_engine: MakeEngine,
    dialect: str,
    way: str,
) -> None:
    for number in range(ROUNDS):
        if dialect == "sqlite":
            url = make_url(f"sqlite:///{tmp_path / f'{number}.db'}")
            race(workers, way, url)
            assert tables(make_engine(url)) == {*TABLES, VERSION_TABLE}
        else:
            with postgres_database(request.getfixturevalue("postgres")) as url:
                race(workers, way, url)
                engine = make_engine(url)
                assert tables(engine) == {*TABLES, VERSION_TABLE}
                engine.dispose()
