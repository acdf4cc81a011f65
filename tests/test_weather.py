"""Broken weather: cancelled calls, lost connections, timeouts, contention, killed processes.

After each of them the pool is full again, the next call works, what was acknowledged is there, and
no checkpoint is without its blobs.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from backends import ASYNC_BACKENDS, BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, id_of, put, values_of, version
from langgraph.checkpoint.base.id import uuid6
from putting import CHANNELS
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from ckpt_orm import DatabaseError, DatabaseUnavailable, SQLAlchemySaver

POSTGRES = [backend for backend in BACKENDS if backend.database == "postgres"]
SQLITE = [backend for backend in BACKENDS if backend.database == "sqlite"]
PUTTING = str(Path(__file__).with_name("putting.py"))

OTHERS = "datname = current_database() AND pid <> pg_backend_pid()"
TERMINATE = text(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OTHERS}")
WAIT = f"FROM pg_stat_activity WHERE {OTHERS} AND wait_event_type = 'Lock'"
WAITING = text(f"SELECT count(*) {WAIT}")
TERMINATE_WAITING = text(f"SELECT pg_terminate_backend(pid, 5000) {WAIT}")


@pytest.fixture
def beside(ready_url: URL) -> Iterator[Engine]:
    """An engine beside the saver's."""
    engine = create_engine(ready_url, poolclass=NullPool)
    yield engine
    engine.dispose()


def terminate(engine: Engine) -> None:
    """End all connections to the database, as an administrator or a failover does."""
    with engine.connect() as connection:
        assert all(connection.scalars(TERMINATE).all())


def is_whole(saver: Called) -> None:
    """Every checkpoint has all its values."""
    for item in saver.list(None):
        values = item.checkpoint["channel_values"]
        assert values.keys() == item.checkpoint["channel_versions"].keys()


# --- cancelled ---


#: How a loop makes its tasks: as ever, and such that one runs at once as far as it comes.
FACTORIES = [None, *([asyncio.eager_task_factory] if sys.version_info >= (3, 12) else [])]


@contextmanager
def without_what_aiosqlite_loses(backend: Backend) -> Iterator[None]:
    """Let it lose a connection that is there only after the task that asked for it was cancelled.

    `aiosqlite.Connection._connect` (0.22.1) forgets it, and so it is closed by its finalizer, of
    which Python 3.13 warns. What SQLAlchemy has been given is counted by its pool.
    """
    with warnings.catch_warnings():
        if backend.name == "aiosqlite":
            warnings.filterwarnings("ignore", "unclosed database", ResourceWarning)
        yield


@named(ASYNC_BACKENDS)
@pytest.mark.parametrize("factory", FACTORIES, ids=["lazy", "eager"][: len(FACTORIES)])
def test_fifty_puts_cancelled_at_random_points(
    backend: Backend, ready_url: URL, factory: Any
) -> None:
    rng = random.Random(7)
    two_connections = {"pool_size": 2, "max_overflow": 0, "pool_timeout": 20}
    with (
        without_what_aiosqlite_loses(backend),
        called(backend, ready_url, two_connections) as saver,
    ):

        async def cancelled(number: int) -> bool:
            values = {channel: [number] * 500 for channel in CHANNELS}
            found = checkpoint(values, {channel: version() for channel in CHANNELS})
            saving = saver.saver.aput(config(f"t{number}"), found, {}, found["channel_versions"])
            task = asyncio.ensure_future(saving)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            await asyncio.sleep(rng.choice([0, 0.0005, 0.001, 0.002, 0.004, 0.008]))
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True
            return False

        async def main() -> list[bool]:
            found = []
            for number in range(40):
                found.append(await cancelled(number))
                assert saver.checked_out() == 0
            return found + await asyncio.gather(*(cancelled(n) for n in range(40, 50)))

        assert saver.loop is not None
        saver.loop.set_task_factory(factory)
        was_cancelled = saver.loop.run_until_complete(main())
        assert any(was_cancelled)
        assert saver.checked_out() == 0
        for number in range(50):
            stored = saver.get_tuple(config(f"t{number}"))
            expected = {channel: [number] * 500 for channel in CHANNELS}
            assert stored is None or stored.checkpoint["channel_values"] == expected
            assert stored is not None or was_cancelled[number]
        is_whole(saver)
        with create_engine(ready_url, poolclass=NullPool).connect() as connection:
            assert_no_blob_alone(connection)
        assert values_of(saver, put(saver, "after", {"a": [1]})) == {"a": [1]}


def assert_no_blob_alone(connection: Connection) -> None:
    stored = "SELECT thread_id FROM checkpoints"
    alone = f"SELECT count(*) FROM checkpoint_blobs WHERE thread_id NOT IN ({stored})"
    assert connection.scalar(text(alone)) == 0


# --- lost connections ---


@named(POSTGRES)
def test_connections_lost_between_calls(saver: Called, beside: Engine) -> None:
    stored = put(saver, "t", {"a": [1]})
    calls: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(stored),
        lambda: put(saver, "t", {"a": [2]}, stored),
        lambda: saver.put_writes(stored, [("c", 1)], "task"),
        lambda: saver.get_delta_channel_history(config=stored, channels=["a"]),
        lambda: saver.copy_thread("t", "u"),
        lambda: saver.prune(["u"]),
        lambda: saver.delete_for_runs(["none"]),
        lambda: saver.delete_thread("u"),
    ]
    for call in calls:
        terminate(beside)
        call()
        assert saver.checked_out() == 0
    listing = saver.list(config("t"))
    assert next(listing).checkpoint["channel_values"] == {"a": [2]}
    terminate(beside)
    assert [id_of(item.config) for item in listing] == [id_of(stored)]


@named(POSTGRES)
def test_connections_lost_while_a_statement_starts(saver: Called, beside: Engine) -> None:
    stored = put(saver, "t", {"a": [1]})
    calls: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(stored),
        lambda: put(saver, "t", {"a": [2]}, id="2", new=[], versions={}),
        lambda: saver.copy_thread("t", "u"),
        lambda: list(saver.list(None)),
    ]
    for call in calls:
        with once_before_a_statement(saver.engine, lambda: terminate(beside)) as happened:
            call()
        assert happened
    assert len(list(saver.list(None))) == 4


@contextmanager
def once_before_a_statement(engine: Engine, action: Callable[[], None]) -> Iterator[list[bool]]:
    happened: list[bool] = []

    def before(*_: Any) -> None:
        if not happened:
            happened.append(True)
            action()

    event.listen(engine, "before_cursor_execute", before)
    try:
        yield happened
    finally:
        event.remove(engine, "before_cursor_execute", before)


@named(POSTGRES)
def test_connections_lost_in_the_middle_of_a_statement(saver: Called, beside: Engine) -> None:
    """A put that waits for a lock is terminated; the lock is released; its second run stores it."""
    put(saver, "t", {"a": [1]})
    with locked(beside) as lock:

        def release() -> None:
            try:
                until_waiting(beside)
                with beside.connect() as connection:
                    connection.execute(TERMINATE_WAITING)
            finally:
                lock.rollback()

        thread = threading.Thread(target=release)
        thread.start()
        stored = put(saver, "t", {"a": [2]})
        thread.join()
    assert values_of(saver, stored) == {"a": [2]}
    assert len(list(saver.list(config("t")))) == 2


@contextmanager
def locked(engine: Engine) -> Iterator[Connection]:
    """A transaction that lets nobody else at the checkpoints."""
    with engine.connect() as connection:
        connection.execute(text("LOCK TABLE checkpoints"))
        yield connection


def until_waiting(engine: Engine) -> None:
    """Return when some connection waits for a lock."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(WAITING):
            time.sleep(0.01)


def test_an_engine_that_is_disposed_of_meanwhile(saver: Called) -> None:
    stored = put(saver, "t", {"a": [1]})
    for _ in range(3):
        dispose(saver)
        assert values_of(saver, stored) == {"a": [1]}
        put(saver, "t", {"a": [2]}, stored)
    listing = saver.list(config("t"))
    next(listing)
    dispose(saver)
    assert len(list(listing)) == 3


def dispose(saver: Called) -> None:
    """As an application does it: by its own engine, in its own colour."""
    if isinstance(saver.given, Engine):
        saver.given.dispose()
    else:
        assert saver.loop is not None
        saver.loop.run_until_complete(saver.given.dispose())


# --- time is up ---


@named(POSTGRES)
def test_a_statement_timeout_is_told(backend: Backend, ready_url: URL, beside: Engine) -> None:
    """By its code, without another run: it would take as long again."""
    options: dict[str, Any] = (
        {"server_settings": {"statement_timeout": "300"}}
        if backend.driver.endswith("asyncpg")
        else {"options": "-c statement_timeout=300"}
    )
    with called(backend, ready_url, {"connect_args": options}) as saver:
        put(saver, "t", {"a": [1]})
        with locked(beside):
            calls = [
                lambda: put(saver, "t", {"a": ["SECRET"]}),
                lambda: saver.get_tuple(config("t")),
            ]
            for call in calls:
                runs = count_statements(saver)
                with pytest.raises(DatabaseError, match="57014") as caught:
                    call()
                assert not isinstance(caught.value, DatabaseUnavailable)
                assert caught.value.code == "57014"
                assert caught.value.operation in ("put", "fetch")
                assert "SECRET" not in str(caught.value)
                assert runs() == 1
                assert saver.checked_out() == 0
        assert values_of(saver, config("t")) == {"a": [1]}


def count_statements(saver: Called) -> Callable[[], int]:
    seen: list[str] = []
    event.listen(saver.engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    return lambda: len(seen)


BUSY = r"put failed.*SQLITE_BUSY.* see who leaves a transaction open"


@named(SQLITE)
def test_a_sqlite_file_that_is_locked(backend: Backend, ready_url: URL, beside: Engine) -> None:
    patience = {"connect_args": {"timeout": 0.05}}
    with called(backend, ready_url, patience) as saver:
        put(saver, "t", {"a": [1]})
        with beside.connect() as other:
            other.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseUnavailable, match=BUSY) as caught:
                put(saver, "t", {"a": [2]})
            assert isinstance(caught.value, ConnectionError)
            assert saver.checked_out() == 0
            release = threading.Timer(0.2, other.rollback)
            release.start()
            put(saver, "t", {"a": [3]})
            release.join()
        assert values_of(saver, config("t")) == {"a": [3]}
        assert len(list(saver.list(config("t")))) == 2


# --- processes ---


def test_four_processes_on_one_sqlite_file(sqlite_url: URL) -> None:
    """Two on engines of the saver's, two on an application's own, which is not tuned at all."""
    with SQLAlchemySaver.from_url(sqlite_url) as saver:
        saver.setup()
        names = ["made 1", "made 2", "own 1", "own 2"]
        command = [sys.executable, PUTTING, "many", str(sqlite_url)]
        running = [subprocess.Popen([*command, name, "50"]) for name in names]
        assert [process.wait(120) for process in running] == [0] * 4
        for name in names:
            listed = list(saver.list(config(name)))
            assert [item.metadata["number"] for item in listed] == list(range(50))[::-1]
        assert len(list(saver.list(None))) == 200


def test_a_process_killed_while_it_puts(database_url: URL) -> None:
    """Twenty times. What was acknowledged is there; what is there is whole."""
    rng = random.Random(11)
    url = database_url.render_as_string(hide_password=False)
    command = [sys.executable, PUTTING, "rounds", url]
    with SQLAlchemySaver.from_url(database_url) as saver:
        saver.setup()
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number in range(20):
                process.stdin.write(f"t{number}\n")
                process.stdin.flush()
                pid = int(process.stdout.readline())
                acknowledged = [process.stdout.readline().strip() for _ in range(rng.randrange(6))]
                time.sleep(rng.random() * 0.01)
                os.kill(pid, signal.SIGKILL)
                for line in iter(process.stdout.readline, "over\n"):
                    assert line, "the process of all rounds has ended"
                    # The last line of a killed process may be cut off.
                    acknowledged += [line.strip()] if len(line) == len(f"{uuid6()}\n") else []
                check_round(saver, f"t{number}", acknowledged)
            process.stdin.close()
            assert process.wait(30) == 0
        put(saver, "after", {"a": [1]})


def check_round(saver: SQLAlchemySaver, thread: str, acknowledged: list[str]) -> None:
    listed = list(saver.list(config(thread)))
    ids = [id_of(item.config) for item in listed][::-1]
    assert ids[: len(acknowledged)] == acknowledged
    assert len(ids) - len(acknowledged) in (0, 1)
    for item in listed:
        number = item.metadata["number"]  # type: ignore[typeddict-item]
        values = {channel: [channel, number] * 200 for channel in CHANNELS}
        assert item.checkpoint["channel_values"] == values
