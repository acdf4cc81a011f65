"""Who deletes from threads, or copies to them, takes turns; who puts takes none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaits
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psycopg
import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, put, values_of, version
from sqlalchemy import URL, create_engine, text
from sqlalchemy.orm import Session
from tenancy import scoped, tables

from ckpt_orm import Retention, SQLAlchemySaver
from ckpt_orm.operations import MOST_TURNS

POSTGRES = [backend for backend in BACKENDS if backend.database == "postgres"]

#: Seconds for which all go on at once; a deadlock is found after one.
LONG = 3

THREADS = ["t", "u"]


def run(saver: SQLAlchemySaver, rng: Random) -> None:
    """A run whose two logs grow, of which now one and now the other is named first."""
    thread = rng.choice(THREADS)
    values = {name: [f"{name}{number:0200d}" for number in range(30)] for name in "ab"}
    parent = config(thread)
    for number in range(6):
        names = "ab" if number % 2 else "ba"
        values = {name: [*values[name], os.urandom(300).hex()] for name in names}
        versions = {name: version() for name in names}
        metadata = {"run_id": rng.choice("rs"), "step": number}
        parent = saver.put(parent, checkpoint(values, versions), metadata, versions)
        saver.put_writes(parent, [("a", 1), ("b", [2])], f"task{number}")


def either_way(rng: Random) -> list[str]:
    return THREADS if rng.random() < 0.5 else THREADS[::-1]


def copy(saver: SQLAlchemySaver, rng: Random) -> None:
    saver.copy_thread(*either_way(rng), latest_only=rng.random() < 0.5)


def pack(saver: SQLAlchemySaver, rng: Random) -> None:
    saver.pack() if rng.random() < 0.5 else saver.unpack()


def delete(saver: SQLAlchemySaver, rng: Random) -> None:
    saver.delete_thread(rng.choice(THREADS))


OTHERS: list[Callable[[SQLAlchemySaver, Random], object]] = [
    delete,
    copy,
    pack,
    lambda saver, rng: saver.prune(either_way(rng)),
    lambda saver, rng: saver.delete_for_runs(["r"]),
    lambda saver, rng: saver.sweep(Retention(keep_last=2)),
    lambda saver, rng: saver.verify(repair=True),
]


@pytest.mark.parametrize("others", [[delete] * 5, [delete, *OTHERS]], ids=["deletions", "all"])
@named(POSTGRES[:1])
def test_no_deadlock(ready_url: URL, others: list[Any]) -> None:
    """A put that grows two logs locks two chains; a deletion locks those, and all other rows."""
    end = time.monotonic() + LONG

    def over_and_over(number: int, work: Any) -> None:
        rng = Random(number)
        with SQLAlchemySaver.from_url(ready_url) as saver:
            while time.monotonic() < end:
                work(saver, rng)

    before = deadlocks(ready_url)
    everybody = [run] * 5 + others
    with ThreadPoolExecutor(len(everybody)) as pool:
        list(pool.map(over_and_over, range(len(everybody)), everybody))
    assert deadlocks(ready_url) == before


def deadlocks(url: URL) -> int:
    """How many there have been, told once all others have left: until then they may keep it."""
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    alone = (
        "SELECT count(*) = 0 FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    found = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while connection.execute(alone).fetchone() == (False,):
            time.sleep(0.01)
        row = connection.execute(found).fetchone()
    assert row
    return int(row[0])


@contextmanager
def beside(call: Callable[[], object]) -> Iterator[Future[object]]:
    """A call in a thread of its own, which has ended when the block has."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def waits(call: Future[object]) -> bool:
    with suppress(StillWaits):
        call.result(0.3)
        return False
    return True


DELETIONS: Mapping[str, Callable[[Called], object]] = {
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"]),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["t"]),
    "copy_thread": lambda saver: saver.copy_thread("u", "t"),
    "copy_latest": lambda saver: saver.copy_thread("u", "t", latest_only=True),
}


@pytest.fixture
def session(backend: Backend, ready_url: URL) -> Iterator[Session]:
    """A transaction of somebody else's, on a synchronous engine."""
    with called(POSTGRES[0], ready_url) as other, Session(other.engine) as found:
        yield found


@pytest.mark.parametrize("second", DELETIONS.values(), ids=list(DELETIONS))
@pytest.mark.parametrize("first", DELETIONS.values(), ids=list(DELETIONS))
@named([POSTGRES[0]])
def test_turns_at_a_thread(
    saver: Called, session: Session, first: Callable[[Any], object], second: Callable[[Any], object]
) -> None:
    """Also where all rows that there are have come since, which the first one has not locked."""
    for thread in "tu":
        put(saver, thread, {"log": [1]}, metadata={"run_id": thread})
    first(SQLAlchemySaver(session.get_bind().engine).using(session))
    put(saver, "t", {"log": [2]}, metadata={"run_id": "t"})
    with beside(lambda: second(saver)) as call:
        try:
            assert waits(call)
        finally:
            session.rollback()
        call.result(10)


@named(POSTGRES)
def test_who_waits_for_no_turn(saver: Called, session: Session) -> None:
    for thread in "tu":
        parent = put(saver, thread, {"log": [1]}, metadata={"run_id": thread})
        put(saver, thread, {"log": [2]}, parent)
    SQLAlchemySaver(session.get_bind().engine).using(session).prune(["t"])
    assert values_of(saver, config("t")) == {"log": [2]}
    put(saver, "t", {"log": [3]})
    saver.copy_thread("t", "v")
    saver.prune(["u"])
    saver.delete_for_runs(["u"])
    saver.delete_thread("u")
    swept = saver.sweep(Retention(keep_last=1))
    assert (swept.threads, swept.skipped) == (1, 1)
    session.commit()
    assert saver.sweep(Retention(keep_last=1)).skipped == 0


@named(POSTGRES)
@pytest.mark.parametrize("threads", [2, MOST_TURNS + 1])
def test_turns_at_many_threads(saver: Called, session: Session, threads: int) -> None:
    """So many take one for all, since a server has no room for one each."""
    for number in range(threads):
        put(saver, f"t{number:03d}", {"log": [1]}, metadata={"run_id": "r"})
    put(saver, "other", {"log": [1]})
    SQLAlchemySaver(session.get_bind().engine).using(session).delete_for_runs(["r"])
    locks = session.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
    assert locks.scalar_one() == (3 if threads == 2 else 1)
    put(saver, "t001", {"log": [2]})
    with beside(lambda: saver.delete_thread("t001")) as call:
        assert waits(call)
        session.commit()
    call.result()
    assert saver.count() == 1


def test_tenants_have_turns_of_their_own(postgres_url: URL) -> None:
    tables(postgres_url)
    engine = create_engine(postgres_url)
    one, other = scoped(engine, "one"), scoped(engine, "other")
    with Session(engine) as transaction:
        one.using(transaction).delete_thread("t")
        other.delete_thread("t")
        with beside(lambda: one.delete_thread("t")) as call:
            try:
                assert waits(call)
            finally:
                transaction.rollback()
            call.result(10)
    engine.dispose()
