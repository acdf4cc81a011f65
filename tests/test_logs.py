"""Values that grow, in the database: every version as it was put, whoever wrote and whoever reads.

Each test stores lists long enough to become logs, and looks at the rows too, since a value that was
stored whole would pass as well.
"""

from __future__ import annotations

import json
import os
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing import get_context
from multiprocessing.pool import Pool
from typing import Any

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, exact, id_of, put, values_of, version
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from servers import execute
from sqlalchemy import URL, Engine, create_engine, delete, event, func, select, text, update
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from ckpt_orm import (
    CheckpointBlob,
    CheckpointSegment,
    CorruptCheckpoint,
    InvalidConfig,
    Retention,
    SQLAlchemySaver,
    WrongEngine,
    packing,
)
from ckpt_orm.cli.commands import app
from ckpt_orm.growth import THRESHOLD
from ckpt_orm.logs import Shelf

#: One backend of each database, where the colour makes no difference.
PLAIN = [backend for backend in BACKENDS if backend.name in ("sqlite", "psycopg")]

#: Both databases in both colours; the drivers among them differ in how they tell what was stored.
FOUR = [b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")]


@pytest.fixture(params=FOUR, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


#: Items of a list that is a log from its first version on.
MANY = 200

_NUMBER = count()


def items(number: int) -> list[str]:
    """Different strings of 600 characters."""
    return [random.Random(next(_NUMBER)).randbytes(300).hex() for _ in range(number)]


def chains(saver: Called, thread: str = "t") -> int:
    """How many chains a thread has."""
    segment = CheckpointSegment
    asked = select(func.count(func.distinct(segment.chain))).where(segment.thread_id == thread)
    return int(scalar(saver, asked))


def logs(saver: Called, thread: str = "t") -> int:
    """How many versions of a thread are stored as logs."""
    blob = CheckpointBlob
    asked = select(func.count()).where(blob.thread_id == thread, blob.chain.is_not(None))
    return int(scalar(saver, asked))


def stored(saver: Called, thread: str = "t") -> int:
    """The bytes of a thread's values."""
    blob, segment = CheckpointBlob, CheckpointSegment
    of_blobs = select(func.sum(func.length(blob.blob))).where(blob.thread_id == thread)
    of_chains = select(func.sum(func.length(segment.data))).where(segment.thread_id == thread)
    return int(scalar(saver, of_blobs) or 0) + int(scalar(saver, of_chains) or 0)


def scalar(saver: Called, statement: Any) -> Any:
    """What a statement finds, on a connection of its own."""
    engine = create_engine(database_of(saver))
    with engine.connect() as connection:
        found = connection.scalar(statement)
    engine.dispose()
    return found


def change(saver: Called, statement: Any) -> int:
    """How many rows a statement has changed."""
    engine = create_engine(database_of(saver))
    with engine.begin() as connection:
        changed = connection.execute(statement).rowcount
    engine.dispose()
    return int(changed)


def database_of(saver: Called) -> URL:
    """The database, by a synchronous driver."""
    url: URL = saver.engine.url
    plain = "sqlite" if url.get_backend_name() == "sqlite" else "postgresql+psycopg"
    return url.set(drivername=plain)


def grow(saver: Called, steps: int, start: list[str], parent: Any = None) -> list[Any]:
    """A list that grows by an item a step: (config, value) of each version."""
    versions, value = [], list(start)
    for _ in range(steps):
        value = [*value, *items(1)]
        parent = put(saver, "t", {"messages": value, "n": len(value)}, parent)
        versions.append((parent, value))
    return versions


def assert_all(saver: Any, versions: list[Any]) -> None:
    """Every version comes back, alone and in a list."""
    for at, value in versions:
        assert values_of(saver, at)["messages"] == value
    listed = {id_of(found.config): found for found in saver.list(config("t"))}
    for at, value in versions:
        assert listed[id_of(at)].checkpoint["channel_values"]["messages"] == value


def test_a_growing_list_costs_what_it_grew(saver: Called) -> None:
    versions = grow(saver, 40, items(40))
    assert_all(saver, versions)
    assert (chains(saver), logs(saver)) == (1, 39)
    whole = len(saver.serde.dumps_typed(versions[-1][1])[1])
    assert stored(saver) < 2.2 * whole


def test_messages_that_are_edited_removed_and_trimmed(saver: Called) -> None:
    value: list[Any] = [AIMessage(text, id=str(n)) for n, text in enumerate(items(MANY))]
    at, versions = None, []
    for step in range(12):
        value = list(value)
        if step % 4 == 0:
            value[MANY // 2] = AIMessage(items(1)[0], id="edited")
        elif step % 4 == 1:
            del value[7]
        elif step % 4 == 2:
            value = [*value[3:], AIMessage(items(1)[0], id=f"new {step}")]
        at = put(saver, "t", {"messages": value}, at)
        versions.append((at, value))
    assert_all(saver, versions)
    assert chains(saver) == 1
    whole = len(saver.serde.dumps_typed(value)[1])
    assert stored(saver) < 1.2 * whole


def test_a_list_of_which_the_first_items_are_dropped(saver: Called) -> None:
    """Those of other kinds than what is first then, and more of them than are appended."""
    first: list[Any] = [1, "short", {"a": 1}, None]
    value, at, versions = [*first, *items(MANY)], None, []
    for _ in range(3):
        value = [*value, *items(1)]
        at = put(saver, "t", {"messages": value}, at)
        versions.append((at, value))
    for _ in first[1:]:
        value = [*value[2:], *items(1)]
        at = put(saver, "t", {"messages": value}, at)
        versions.append((at, value))
    assert_all(saver, versions)


def test_a_list_in_a_dict_shares_too(saver: Called) -> None:
    at, value = None, {"before": "x" * 100, "list": items(MANY), "after": items(5)}
    for step in range(5):
        value = {**value, "list": [*value["list"], *items(1)], "step": step}
        at = put(saver, "t", {"state": value}, at)
        assert values_of(saver, at)["state"] == value
    assert chains(saver) == 1
    assert stored(saver) < 1.2 * len(saver.serde.dumps_typed(value)[1])


def test_a_long_string_that_grows(saver: Called) -> None:
    """Which as a scalar would be inlined in every checkpoint's document."""
    at, text, versions = None, "".join(items(40)), []
    for step in range(5):
        text += items(1)[0]
        at = put(saver, "t", {"messages": text, "n": step}, at)
        versions.append((at, text))
    at = put(saver, "t", {"messages": text, "n": 6}, at, new=["n"])
    assert_all(saver, [*versions, (at, text)])
    assert chains(saver) == 1
    assert stored(saver) < 2.5 * len(text)


def test_what_does_not_grow_keeps_the_official_layout(saver: Called) -> None:
    at = put(saver, "t", {"a": items(20), "b": items(3), "c": "small"})
    put(saver, "t", {"a": items(20), "b": items(3), "c": "small"}, at)
    assert (chains(saver), logs(saver)) == (0, 0)


def test_an_unchanged_value_of_a_new_version_is_still_there_after_a_prune(saver: Called) -> None:
    first = put(saver, "t", {"messages": (value := items(MANY))})
    last = put(saver, "t", {"messages": value}, first)
    shorter = put(saver, "t", {"messages": value[:-1]}, last)
    assert chains(saver) == 1
    assert_all(saver, [(first, value), (last, value), (shorter, value[:-1])])
    saver.prune(["t"])
    assert values_of(saver, shorter)["messages"] == value[:-1]


def test_a_list_of_versions_is_in_memory_a_page_at_a_time(saver: Called) -> None:
    """Their chain once, and one version after the other: not what all of them would take whole."""
    versions = grow(saver, 200, items(MANY))
    whole = sum(len(item) for item in versions[-1][1])
    tracemalloc.start()
    try:
        sizes = [len(t.checkpoint["channel_values"]["messages"]) for t in saver.list(config("t"))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [len(value) for _, value in reversed(versions)]
    assert peak < 12 * whole


def test_a_put_is_repeated(saver: Called) -> None:
    """As it is after a connection was lost, when nobody knows whether it had been committed."""
    versions = grow(saver, 3, items(MANY))
    at, value = versions[-1]
    found = saver.get_tuple(at)
    for _ in range(3):
        again = saver.put(
            versions[-2][0],
            found.checkpoint,
            found.metadata,
            {"messages": found.checkpoint["channel_versions"]["messages"]},
        )
        assert again == at
    assert_all(saver, versions)
    assert chains(saver) == 1
    assert_all(saver, versions + grow(saver, 3, value, at))


def test_a_fork_is_a_chain_of_its_own(saver: Called) -> None:
    versions = grow(saver, 10, items(MANY))
    at, value = versions[4]
    assert values_of(saver, at)["messages"] == value
    fork = grow(saver, 5, value, at)
    assert_all(saver, versions + fork)
    assert chains(saver) == 2
    assert_all(saver, versions + fork + grow(saver, 5, versions[-1][1], versions[-1][0]))


@pytest.fixture
def other(backend: Backend, ready_url: URL, saver: Called) -> Iterator[Called]:
    """Another process's saver, which knows nothing of the first one's puts."""
    with called(backend, ready_url) as found:
        yield found


def test_two_savers_that_know_nothing_of_each_other(saver: Called, other: Called) -> None:
    versions = grow(saver, 5, items(MANY))
    at, value = versions[-1]
    assert values_of(other, at)["messages"] == value
    theirs = grow(other, 5, value, at)  # goes on with the chain
    assert chains(saver) == 1
    ours = grow(saver, 5, value, at)  # believes the chain to end where it knows it to
    assert chains(saver) == 2
    for each in (saver, other):
        assert_all(each, versions + theirs + ours)


def test_the_chain_was_deleted_meanwhile(saver: Called, other: Called) -> None:
    _, value = grow(saver, 3, items(MANY))[-1]
    other.delete_thread("t")
    assert chains(saver) == 0
    assert_all(saver, grow(saver, 3, value, None))
    assert chains(saver) == 1


@named([backend for backend in FOUR if backend.database == "postgres"])
def test_a_chain_that_is_started_and_continued_while_its_thread_is_deleted(
    saver: Called, ready_url: URL
) -> None:
    """The one who deletes it has not seen its first segment in time to hold it."""
    engine = create_engine(ready_url, poolclass=NullPool)
    sync = SQLAlchemySaver(engine)
    session, value, ends = Session(engine), items(MANY), list[threading.Timer]()

    def before(*args: Any) -> None:
        if "DELETE FROM checkpoint_segments" in args[2] and not ends:
            put(sync, "t", {"messages": value})
            put(sync.using(session), "t", {"messages": [*value, *items(1)]})
            ends.append(threading.Timer(0.3, session.commit))
            ends[0].start()

    put(sync, "t", {"messages": ["short"]})
    event.listen(saver.engine, "before_cursor_execute", before)
    saver.delete_thread("t")
    ends[0].join()
    session.close()
    assert not saver.verify().faults
    assert saver.get_tuple(config("t")) is None
    assert chains(saver) == 0


@pytest.mark.parametrize("goes", ["delete_thread", "prune"])
@named([backend for backend in FOUR if backend.database == "postgres"])
def test_a_put_is_repeated_by_somebody_else_while_it_is_deleted(
    saver: Called, other: Called, ready_url: URL, goes: str
) -> None:
    """He waits for the deletion, and has seen the version by then whose chain he would start."""
    value = items(MANY)
    found = checkpoint({"messages": value}, versions := {"messages": version()})
    first = saver.put(config("t"), found, {}, versions)
    put(saver, "t", {"messages": ["short"]}, first)
    engine = create_engine(ready_url, poolclass=NullPool)
    with Session(engine) as session, ThreadPoolExecutor(1) as threads:
        guest = SQLAlchemySaver(engine).using(session)
        guest.prune(["t"]) if goes == "prune" else guest.delete_thread("t")
        again = threads.submit(other.put, config("t"), found, {}, versions)
        wait_until_waiting(engine, 1)
        session.commit()
        assert again.result() == first
    for each in (saver, other):
        assert values_of(each, first)["messages"] == value
    assert not saver.verify().faults


def wait_until_waiting(engine: Engine, number: int) -> None:
    """Until some transactions wait for others."""
    query = text("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
    with engine.connect() as conn:
        while conn.scalar(query) != number:
            conn.rollback()


@named([backend for backend in FOUR if backend.database == "postgres"])
def test_a_checkpoint_that_is_put_again_between_two_deletions(
    saver: Called, ready_url: URL
) -> None:
    """It is there with its values, or it is gone; one of the two is by somebody without a turn."""
    other = SQLAlchemySaver.from_url(ready_url)
    found = checkpoint({"messages": ["value"]}, versions := {"messages": version()})
    first = other.put(config("t"), found, {}, versions)
    put(other, "t", {"messages": ["more"]}, first)
    seen: list[str] = []

    def before(*args: Any) -> None:
        if args[2].startswith(("DELETE FROM checkpoints", "DELETE FROM checkpoint_blobs")):
            seen.append(args[2])
            if len(seen) == 1:
                execute(ready_url, "DELETE FROM checkpoint_blobs", "DELETE FROM checkpoints")
            elif len(seen) == 2:
                other.put(config("t"), found, {}, versions)

    event.listen(saver.engine, "before_cursor_execute", before)
    saver.prune(["t"])
    assert len(seen) > 2
    left = other.get_tuple(first)
    assert left is None or left.checkpoint["channel_values"] == {"messages": ["value"]}
    assert {fault.kind for fault in other.verify().faults} <= {"orphaned blob"}
    other.close()


@named([backend for backend in BACKENDS if backend.name == "psycopg"])
def test_a_put_and_a_deletion_do_not_deadlock(saver: Called, ready_url: URL) -> None:
    """Where several values grow, their chains are locked in the same order by both."""
    value = {"log": items(MANY), "messages": items(MANY)}
    first = put(saver, "t", value)
    engine, segment = create_engine(ready_url), CheckpointSegment
    guest = SQLAlchemySaver(engine).using
    longer = {channel: [*value[channel], "more"] for channel in ("messages", "log")}
    lock = select(segment.start).where(segment.channel == "messages").with_for_update()
    with Session(engine) as one, Session(engine) as two, ThreadPoolExecutor(2) as threads:
        with Session(engine) as third:
            third.execute(lock)
            putting = threads.submit(put, guest(one), "t", longer, first)
            wait_until_waiting(engine, 1)
            deleting = threads.submit(guest(two).delete_thread, "t")
            wait_until_waiting(engine, 2)
        last = putting.result()
        assert values_of(guest(one), last) == longer
        one.commit()
        deleting.result()
        two.rollback()
    engine.dispose()
    assert values_of(saver, last) == longer


def test_the_chain_was_pruned_meanwhile(saver: Called, other: Called) -> None:
    versions = grow(saver, 3, items(MANY))
    put(other, "t", {"messages": "short"}, versions[-1][0])
    other.prune(["t"])
    assert chains(saver) == 0
    assert_all(saver, grow(saver, 3, versions[-1][1], None))


@named(PLAIN)
def test_a_chain_is_deleted_with_the_last_version_that_needs_it(saver: Called) -> None:
    versions = grow(saver, 6, items(MANY))
    fork = grow(saver, 3, versions[2][1], versions[2][0])
    assert chains(saver) == 2
    saver.prune(["t"])
    assert chains(saver) == 1
    assert values_of(saver, fork[-1][0])["messages"] == fork[-1][1]
    assert stored(saver) < 1.1 * len(saver.serde.dumps_typed(fork[-1][1])[1])


@named(PLAIN)
def test_runs_are_deleted(saver: Called) -> None:
    first = put(saver, "t", {"messages": items(MANY)}, metadata={"run_id": "r1"})
    value = [*values_of(saver, first)["messages"], *items(1)]
    second = put(saver, "t", {"messages": value}, first, {"run_id": "r2"})
    saver.delete_for_runs(["r1"])
    assert values_of(saver, second)["messages"] == value
    assert chains(saver) == 1
    saver.delete_for_runs(["r2"])
    assert (chains(saver), logs(saver)) == (0, 0)


@pytest.mark.parametrize("latest_only", [False, True])
def test_a_copy_goes_its_own_way(saver: Called, latest_only: bool) -> None:
    versions = grow(saver, 5, items(MANY))
    at, value = versions[-1]
    saver.copy_thread("t", "copy", latest_only=latest_only)
    there = config("copy", id=id_of(at))
    assert values_of(saver, there)["messages"] == value
    mine = put(saver, "t", {"messages": [*value, "mine"]}, at)
    theirs = put(saver, "copy", {"messages": [*value, "theirs"]}, there)
    # The second copy meets chains of the first that have gone on in another way.
    saver.copy_thread("t", "copy", latest_only=latest_only)
    assert values_of(saver, theirs)["messages"] == [*value, "theirs"]
    assert values_of(saver, config("copy", id=id_of(mine)))["messages"] == [*value, "mine"]
    saver.delete_thread("t")
    assert values_of(saver, theirs)["messages"] == [*value, "theirs"]
    assert values_of(saver, config("copy", id=id_of(mine)))["messages"] == [*value, "mine"]
    assert chains(saver, "t") == 0
    assert chains(saver, "copy") == 2


@pytest.mark.parametrize("deletes", ["sweep", "prune"])
@named([backend for backend in BACKENDS if backend.name == "psycopg"])
def test_a_deletion_and_an_unpacking_do_not_deadlock(
    saver: Called, other: Called, ready_url: URL, deletes: str
) -> None:
    versions = grow(saver, 4, items(MANY))
    beside, failed, seen = create_engine(ready_url, poolclass=NullPool), list[Any](), list[Any]()
    with ThreadPoolExecutor(1) as threads:

        def before(*args: Any) -> None:
            if args[2].startswith("DELETE FROM checkpoint_blobs") and not seen:
                seen.append(threads.submit(other.unpack))
                wait_until_waiting(beside, 1)

        for engine in (saver.engine, other.engine):
            event.listen(engine, "handle_error", failed.append)
        event.listen(saver.engine, "before_cursor_execute", before)
        saver.prune(["t"]) if deletes == "prune" else saver.sweep(Retention(keep_last=1))
        assert seen[0].result().skipped == 3
    assert failed == []
    at, value = versions[-1]
    assert values_of(saver, at)["messages"] == value


DELETIONS = [
    f"DELETE FROM checkpoint{table} WHERE thread_id = 'copy'"
    for table in ("s", "_segments", "_blobs", "_writes")
]


@pytest.mark.parametrize("goes_in_between", ["pack", "deletion", "prune"])
@named([backend for backend in FOUR if backend.database == "postgres"])
def test_the_latest_is_copied_beside_others(
    saver: Called, ready_url: URL, goes_in_between: str
) -> None:
    other = SQLAlchemySaver.from_url(ready_url)
    whole = SQLAlchemySaver.from_url(ready_url, growth="whole")
    state = {"messages": items(MANY), "log": items(MANY)}
    first = put(whole, "t", state)
    if goes_in_between == "deletion":
        saver.copy_thread("t", "copy", latest_only=True)
    seen: list[str] = []

    def before(*args: Any) -> None:
        word = "checkpoint_blobs" if goes_in_between == "pack" else "checkpoints"
        if f"INSERT INTO {word} " in args[2] and not seen:
            seen.append(args[2])
            if goes_in_between == "pack":
                assert other.pack().values == 2
            elif goes_in_between == "deletion":
                execute(ready_url, *DELETIONS)  # by somebody who takes no turn
            else:
                put(other, "t", {**state, "log": ["short"]}, first, new=["log"])
                other.prune(["t"])

    event.listen(saver.engine, "before_cursor_execute", before)
    saver.copy_thread("t", "copy", latest_only=True)
    assert seen
    assert other.verify().faults == []
    if goes_in_between == "prune":
        state["log"] = ["short"]
    assert values_of(other, config("copy")) == state
    other.close()
    whole.close()


@named(PLAIN)
def test_what_was_rolled_back_is_not_built_upon(saver: Called, other: Called) -> None:
    """The other saver makes the chain just as long, with other bytes."""
    at, value = grow(saver, 2, items(MANY))[-1]
    lost, kept = (f"{number}" + "x" * 600 for number in (1, 2))
    engine = create_engine(database_of(saver))
    with engine.connect() as connection:
        guest = saver.saver.using(connection)
        with connection.begin() as transaction:
            gone = put(guest, "t", {"messages": [*value, lost]}, at)
            transaction.rollback()
    engine.dispose()
    assert values_of(other, at)["messages"] == value
    theirs = put(other, "t", {"messages": [*value, kept]}, at)
    assert chains(saver) == 1
    mine = put(saver, "t", {"messages": [*value, lost, "more"]}, at)
    assert saver.get_tuple(gone) is None
    assert values_of(saver, theirs)["messages"] == [*value, kept]
    assert values_of(saver, mine)["messages"] == [*value, lost, "more"]


@named(PLAIN)
def test_a_reader_that_writes_whole(saver: Called, backend: Backend, ready_url: URL) -> None:
    versions = grow(saver, 3, items(MANY))
    whole = SQLAlchemySaver.from_url(ready_url, growth="whole")
    assert_all(whole, versions)
    before = logs(saver)
    versions += grow(whole, 2, versions[-1][1], versions[-1][0])  # type: ignore[arg-type]
    assert logs(saver) == before
    assert_all(saver, versions)
    whole.close()


def test_growth_is_one_of_two_words(sqlite_url: URL) -> None:
    with pytest.raises(InvalidConfig, match="use 'append', 'whole' or None"):
        SQLAlchemySaver.from_url(sqlite_url, growth="both")  # type: ignore[arg-type]


@named(PLAIN)
@pytest.mark.parametrize("damage", ["changed", "missing", "shortened", "no manifest"])
def test_a_damaged_chain_is_told(saver: Called, damage: str) -> None:
    at, _ = grow(saver, 4, items(MANY))[-1]
    segment, blob = CheckpointSegment, CheckpointBlob
    first = segment.start == 0
    same_size = select(func.length(segment.data)).where(first).scalar_subquery()
    size = int(scalar(saver, select(same_size)))
    statements = {
        "changed": update(segment).where(first).values(data=b"x" * size),
        "missing": delete(segment).where(segment.start > 0),
        "shortened": update(segment).where(first).values(data=b"x" * (size - 1)),
        "no manifest": update(blob).where(blob.chain.is_not(None)).values(blob=b"x" * 40),
    }
    assert change(saver, statements[damage]) > 0
    with pytest.raises(CorruptCheckpoint, match="checkpoint_blobs"):
        saver.get_tuple(at)
    report = saver.saver.verify()
    assert not report.ok
    assert {fault.table for fault in report.faults} == {"checkpoint_blobs"}


@named(PLAIN)
def test_logs_are_verified_and_swept(saver: Called) -> None:
    from datetime import timedelta

    from ckpt_orm import Retention

    versions = grow(saver, 6, items(MANY))
    grow(saver, 2, versions[0][1], versions[0][0])
    report = saver.saver.verify()
    assert report.ok
    assert report.payloads >= 8
    predicted = saver.saver.sweep(Retention(keep_last=1), dry_run=True)
    swept = saver.saver.sweep(Retention(keep_last=1))
    assert swept == predicted
    assert swept.segments > 0
    assert chains(saver) == 1
    assert saver.saver.verify().ok
    gone = saver.saver.sweep(Retention(idle_after=timedelta(0)))
    assert gone.segments > 0
    assert (chains(saver), logs(saver)) == (0, 0)


@named(PLAIN)
def test_what_is_encrypted_is_stored_whole(backend: Backend, ready_url: URL) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with called(backend, ready_url, serde=serde) as saver:
        versions = grow(saver, 3, items(MANY))
        assert_all(saver, versions)
        assert logs(saver) == 0


@pytest.fixture(scope="module")
def eight() -> Iterator[Pool]:
    """Processes, whose start is what takes long."""
    with get_context("spawn").Pool(8) as pool:
        yield pool


@named(PLAIN)
def test_processes_fork_one_version(saver: Called, ready_url: URL, eight: Pool) -> None:
    at, value = grow(saver, 2, items(MANY))[-1]
    jobs = [(str(ready_url.render_as_string(False)), at, number) for number in range(8)]
    forks = [fork for forks in eight.map(_forked, jobs, chunksize=1) for fork in forks]
    for number, fork in forks:
        found = values_of(saver, fork)["messages"]
        assert found[: len(value)] == value
        steps = len(found) - len(value)
        assert found[len(value) :] == [f"{number} {step}" for step in range(steps)]
    assert 2 <= chains(saver) <= 8
    assert saver.saver.verify().ok


def _forked(job: tuple[str, Any, int]) -> list[tuple[int, Any]]:
    url, at, number = job
    forks = []
    with SQLAlchemySaver.from_url(url) as saver:
        for step in range(5):
            value = values_of(saver, at)["messages"]
            versions = {"messages": saver.get_next_version(f"{step + 10**6}", None)}
            at = put(saver, "t", {"messages": [*value, f"{number} {step}"]}, at, versions=versions)
            forks.append((number, at))
    return forks


def test_callers_at_once(saver: Called) -> None:
    at, value = grow(saver, 2, items(MANY))[-1]

    def forked(number: int) -> Callable[[Any], Any]:
        versions: Any = {"messages": f"{number + 10**6:032d}.0"}
        from builders import checkpoint

        built = checkpoint({"messages": [*value, str(number)]}, versions)
        return lambda each: each.put(at, built, {}, versions)

    forks = saver.at_once(*map(forked, range(8)))
    for number, fork in enumerate(forks):
        assert values_of(saver, fork)["messages"] == [*value, str(number)]


@named(PLAIN)
def test_a_put_that_breaks_off_leaves_nothing(saver: Called) -> None:
    """At each of its statements, where it consists of several."""
    versions = grow(saver, 20, items(MANY))  # the next ones fold on SQLite
    at, value = versions[-1]
    engine = saver.engine
    for doomed in range(1, 7):
        executed = count(1)

        def fail(*_: Any, doomed: int = doomed, executed: Any = executed) -> None:
            if next(executed) == doomed:
                raise RuntimeError("pulled the plug")

        event.listen(engine, "before_cursor_execute", fail)
        try:
            broken = put_or_none(saver, value, at)
        finally:
            event.remove(engine, "before_cursor_execute", fail)
        if broken is not None:
            versions.append((broken, [*value, "more"]))
        assert_all(saver, versions)
        assert saver.saver.verify().ok
    assert_all(saver, versions + grow(saver, 20, value, at))


def put_or_none(saver: Called, value: list[str], at: Any) -> Any:
    """A put that may be made to fail."""
    versions = {"messages": version(), "n": version()}
    built = checkpoint({"messages": [*value, "more"], "n": 1}, versions)
    try:
        return saver.put(at, built, {}, versions)
    except RuntimeError:
        return None


@named([backend for backend in BACKENDS if backend.name == "psycopg"])
def test_puts_beside_prunes_deletes_and_copies(saver: Called, other: Called) -> None:
    """What is acknowledged after the last deletion is there; nothing is ever half there."""

    def write(seed: int) -> None:
        chance, at, value = random.Random(seed), None, items(MANY)
        for _ in range(40):
            value = [*value, f"{seed} {chance.random()}"]
            at = put_blind(saver, value, at)
            found = saver.get_tuple(config("t"))
            if found is not None and "messages" in found.checkpoint["channel_values"]:
                value = found.checkpoint["channel_values"]["messages"]
                at = found.config

    def upset(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            {
                0: lambda: other.prune(["t"]),
                1: lambda: other.delete_thread("t"),
                2: lambda: other.copy_thread("t", "copy"),
                3: lambda: other.prune(["copy"]),
            }[chance.randrange(4)]()

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(write, n) for n in (1, 2)]
        jobs += [threads.submit(upset, n) for n in (3, 4)]
        for job in jobs:
            job.result()
    for thread in ("t", "copy"):
        list(saver.list(config(thread)))
    faults = [fault for fault in saver.saver.verify().faults if fault.kind != "orphaned blob"]
    assert faults == []


def put_blind(saver: Called, value: list[str], at: Any) -> Any:
    """A put that asks nothing first."""
    versions = {"messages": version()}
    built = checkpoint({"messages": value}, versions)
    return saver.put(at or config("t"), built, {}, versions)


def test_a_child_process_goes_on(sqlite_url: URL) -> None:
    saver = SQLAlchemySaver.from_url(sqlite_url)
    saver.setup()
    at, value = grow(saver, 2, items(MANY))[-1]  # type: ignore[arg-type]
    saver.close()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            there = put(saver, "t", {"messages": [*value, "child"]}, at)
            status = int(values_of(saver, there)["messages"] != [*value, "child"])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert values_of(saver, config("t"))["messages"] == [*value, "child"]
    saver.close()


@named(PLAIN)
def test_values_of_all_kinds_are_exact(saver: Called) -> None:
    """As logs: what stands around the changed part must not be changed with it."""
    rest = {"nan": float("nan"), "neg": -0.0, "big": 2**62, "set": {1, 2}, "bytes": b"\x00" * 70000}
    at = None
    for step in range(4):
        value = {"list": items(1) + [step] * 3, **rest, "text": "ab\x00" * 30000 + str(step)}
        at = put(saver, "t", {"state": value}, at)
        assert exact(values_of(saver, at)["state"]) == exact(value)
    assert chains(saver) == 1


@named([backend for backend in BACKENDS if not backend.is_async or backend.name == "asyncpg"])
def test_packed_and_unpacked(backend: Backend, ready_url: URL) -> None:
    with called(backend, ready_url, growth="whole") as saver:
        versions = grow(saver, 20, items(MANY // 2))
        fork = grow(saver, 3, versions[5][1], versions[5][0])
        small = put(saver, "small", {"messages": ["x"]})
        whole = stored(saver)
        packed = saver.pack()
        assert (packed.threads, packed.skipped) == (2, 0)
        assert packed.values == logs(saver) >= 20
        assert stored(saver) < whole / 5
        assert saver.verify().ok
        assert_all(saver, versions + fork)
        assert saver.pack().values == 0
        unpacked = saver.unpack()
        assert unpacked.values == packed.values
        assert (logs(saver), chains(saver), stored(saver)) == (0, 0, whole)
        assert saver.verify().ok
        assert_all(saver, versions + fork)
        assert values_of(saver, small) == {"messages": ["x"]}


@named([b for b in BACKENDS if b.name in ("sqlite", "psycopg", "psycopg-async", "asyncpg")])
def test_a_chain_that_moves_while_it_is_packed(
    saver: Called, backend: Backend, ready_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pack has planned to add comes after what is no longer the end."""
    first, value = grow(saver, 1, items(MANY))[0]
    with called(backend, ready_url, growth="whole") as whole:
        second = grow(whole, 1, value, first)[0]
    late: list[Any] = []
    planned = packing._packed

    def after_another(*args: Any) -> Any:
        change = planned(*args)
        if change is not None and not late:
            late.append(None)
            plain = SQLAlchemySaver.from_url(database_of(saver))
            plain.get_tuple(first)
            late[0] = put(plain, "t", {"messages": [*value, "late"], "n": 0}, first)
            plain.close()
        return change

    monkeypatch.setattr(packing, "_packed", after_another)
    packed = saver.pack()
    assert (packed.values, packed.skipped) == (0, 1)
    assert_all(saver, [(first, value), second, (late[0], [*value, "late"])])
    assert saver.verify().ok


@named(PLAIN)
def test_a_value_that_was_replaced_meanwhile_is_not_packed(saver: Called) -> None:
    """Under the same version, which those of an application may be."""
    versions: Any = {"messages": 1}
    with SQLAlchemySaver.from_url(database_of(saver), growth="whole") as whole:
        old = items(MANY)
        put(whole, "t", {"messages": old}, versions=versions)
        steps = packing.pack(lambda: Shelf(None, THRESHOLD, on=True), {}, None)
        result: Any = None
        new = items(MANY)
        try:
            while True:
                operation, arguments = steps.send(result)
                if operation is packing.store:
                    whole.delete_thread("t")
                    at = put(whole, "t", {"messages": new}, versions=versions)
                result = whole._runner.run(operation, *arguments)
        except StopIteration as end:
            packed = end.value
        assert (packed.values, packed.skipped) == (0, 1)
        assert values_of(whole, at)["messages"] == new
        assert whole.verify().ok


@named([backend for backend in BACKENDS if backend.name == "psycopg"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_nothing_is_deleted_by_an_old_snapshot(saver: Called, level: Any) -> None:
    at, value = grow(saver, 2, items(MANY))[-1]
    with saver.engine.connect().execution_options(isolation_level=level) as connection:
        guest = saver.saver.using(connection)
        assert guest.get_tuple(at) is not None
        for call in (lambda: guest.delete_thread("t"), lambda: guest.prune(["t"])):
            with pytest.raises(WrongEngine, match="READ COMMITTED"):
                call()
        put(guest, "t", {"messages": [*value, "more"]}, at)
        connection.rollback()
    assert values_of(saver, at)["messages"] == value


@named(PLAIN)
def test_a_run_goes_on_while_its_thread_is_packed_and_unpacked(saver: Called) -> None:
    at, value = grow(saver, 2, items(MANY))[-1]
    done = threading.Event()

    def convert() -> None:
        while not done.is_set():
            saver.saver.unpack()
            saver.saver.pack()

    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(convert)
        versions = grow(saver, 30, value, at)
        done.set()
        job.result()
    assert_all(saver, versions)
    assert saver.verify().ok


@named(PLAIN)
def test_packed_and_unpacked_on_the_command_line(saver: Called) -> None:
    with SQLAlchemySaver.from_url(database_of(saver), growth="whole") as whole:
        versions = grow(Called(whole, None, saver.engine), 3, items(MANY))
    url = database_of(saver).render_as_string(hide_password=False)
    for command, expected in (("pack", 3), ("unpack", 0)):
        done = CliRunner().invoke(app, [command, "--url", url, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"threads": 1, "values": 3, "skipped": 0}
        assert logs(saver) == expected
        assert_all(saver, versions)
    done = CliRunner().invoke(app, ["pack", "--url", url])
    assert "packed 3 values of 1 thread\n" in done.stdout


@named(PLAIN)
def test_chains_move_beside_somebody_who_listens(saver: Called, other: Called) -> None:
    """Whose statements are Core's, which tells in its own way how many rows were changed."""
    event.listen(saver.engine, "before_cursor_execute", lambda *_: None)
    at, value = grow(saver, 2, items(MANY))[-1]
    assert values_of(other, at)["messages"] == value
    theirs = grow(other, 2, value, at)
    ours = grow(saver, 2, value, at)
    assert chains(saver) == 2
    assert_all(other, theirs + ours)


def test_the_official_saver_reads_what_was_unpacked(postgres_url: URL) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    dsn = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    saver = SQLAlchemySaver.from_url(postgres_url)
    saver.setup()
    versions = grow(Called(saver, None, saver._runner.engine), 5, items(MANY))
    saver.unpack()
    saver.close()
    with PostgresSaver.from_conn_string(dsn) as official:
        for at, value in versions:
            found = official.get_tuple(at)
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == value


def test_adopted_tables_get_whole_values(postgres_url: URL) -> None:
    """Since whoever has the official saver beside ours could not read anything else."""
    from langgraph.checkpoint.postgres import PostgresSaver

    dsn = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with PostgresSaver.from_conn_string(dsn) as official:
        official.setup()
        for growth, expected in ((None, 0), ("append", 2)):
            saver = SQLAlchemySaver.from_url(postgres_url, growth=growth)  # type: ignore[arg-type]
            saver.setup()
            saver.get_tuple(config("t"))
            held = Called(saver, None, saver._runner.engine)
            versions = grow(held, 3, items(MANY))
            assert logs(held) >= expected
            assert (logs(held) == 0) == (expected == 0)
            if growth is None:
                found = official.get_tuple(versions[-1][0])
                assert found is not None
                assert found.checkpoint["channel_values"]["messages"] == versions[-1][1]
            saver.delete_thread("t")
            saver.close()


def test_the_text_of_sqlite_may_be_utf16(sqlite_url: URL) -> None:
    """Bytes are joined by an operator that is meant for text."""
    engine = create_engine(sqlite_url)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA encoding = 'UTF-16'"))
        connection.commit()
        saver = SQLAlchemySaver(engine)
    saver.setup()
    held = Called(saver, None, engine)
    at, value = grow(held, 3, items(MANY))[-1]
    saver.copy_thread("t", "copy")
    assert values_of(saver, config("copy", id=id_of(at)))["messages"] == value
    engine.dispose()
