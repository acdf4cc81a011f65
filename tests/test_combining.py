"""Calls that store at the same time share transactions, and nobody is worse off for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import pytest
from backends import ASYNC_BACKENDS, BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, put, values_of, version
from interrupts import Interrupted
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from ckpt_orm import DatabaseError, SQLAlchemySaver, combining, operations, runners
from ckpt_orm.combining import PATIENCE, Call, LoopLine, Role, ThreadLine
from ckpt_orm.logs import ChainMoved
from ckpt_orm.rows import Key, PutRows

WAYS = 16
POSTGRES = [backend for backend in BACKENDS if backend.database == "postgres"]
SYNC = [backend for backend in BACKENDS if not backend.is_async]

#: What is executed by a batch and by nobody else, of what an engine's listeners see.
BATCH_BEGINS = ("WITH hurry AS", "SET LOCAL lock_timeout", "BEGIN IMMEDIATE")


def putting(thread: str, **values: Any) -> Callable[[Any], Any]:
    """A call that puts a checkpoint."""
    versions = {channel: version() for channel in values}
    stored = checkpoint(values, versions)
    return lambda saver: saver.put(config(thread), stored, {"source": "input"}, versions)


def putting_many() -> list[Callable[[Any], Any]]:
    return [putting(f"t{number}", a=[number]) for number in range(WAYS)]


def are_stored(saver: Called, threads: range) -> None:
    for number in threads:
        assert values_of(saver, config(f"t{number}")) == {"a": [number]}


@contextmanager
def crowded(saver: Called) -> Iterator[list[int]]:
    """Whoever gives a connection back takes his time, so that others stand in line; how often."""
    taken: list[int] = []
    put(saver, "before", {"a": [1]})  # the first call looks at the schema, which nobody shares

    def checkin(*_: Any) -> None:
        taken.append(threading.get_ident())
        time.sleep(0.05)

    event.listen(saver.engine.pool, "checkin", checkin)
    try:
        yield taken
    finally:
        event.remove(saver.engine.pool, "checkin", checkin)
    assert saver.checked_out() == 0


@pytest.fixture(params=["at once", "in turn"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a batch is stored: on Postgres by one statement, or as with an application's columns."""
    if request.param == "in turn":
        monkeypatch.setattr(runners, "rows_of", lambda batch: None)
    return str(request.param)


@pytest.fixture
def beside(ready_url: URL) -> Iterator[Engine]:
    """An engine beside the saver's."""
    engine = create_engine(ready_url, poolclass=NullPool)
    yield engine
    engine.dispose()


# --- together ---


class Handover:
    """A lock whose next owner is quick: something happens before who has left it goes on."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._lock, self._then = threading.Lock(), then

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        self._then()


def rows(thread: str = "t") -> PutRows:
    return PutRows(Key(thread, "", "1"), None, "{}", "{}", [])


def stood_in_line(leaders: int, relief: int) -> tuple[list[str], float]:
    """What was stored together while a leader took long, and the seconds until then."""
    line, taken = ThreadLine(leaders, relief), list[str]()
    slow = Call(operations.put, (rows("slow"),))
    line._line.enter(slow)
    slow.others = [Call(operations.put, (rows(),))]  # it leads a batch

    def together(batch: Any) -> list[Call]:
        taken.extend(call.rows.key.thread_id for call in batch)
        return []

    def run(number: int) -> None:
        call = Call(operations.put, (rows(f"{number}"),))
        line.run(call, lambda: taken.append(f"{number} alone"), together)

    with ThreadPoolExecutor(3) as pool:
        begin = time.monotonic()
        for _ in pool.map(run, range(3), timeout=30):
            pass
        took = time.monotonic() - begin
    line._line.leave(slow)
    assert not line._line._leading
    return taken, took


def test_who_has_waited_for_long_leads_beside_those_who_take_long() -> None:
    taken, _ = stood_in_line(leaders=2, relief=4)
    assert sorted(name.removesuffix(" alone") for name in taken) == ["0", "1", "2"]
    assert sum(name.endswith(" alone") for name in taken) < 3, "the first takes the others along"


def test_where_one_leads_only_nobody_relieves_him() -> None:
    taken, took = stood_in_line(leaders=1, relief=1)
    assert sorted(taken) == ["0 alone", "1 alone", "2 alone"]
    assert took >= PATIENCE


def test_two_store_at_once_on_connections_of_their_own() -> None:
    """Where nobody leads a batch, as when an agent saves a checkpoint and its writes."""
    line = ThreadLine(2, 4)
    calls = [Call(operations.put, (rows(),)) for _ in range(3)]
    for call in calls:
        line._line.enter(call)
    assert [call.role for call in calls] == [Role.LEADS, Role.LEADS, Role.WAITS]
    line._line.leave(calls[0])
    assert calls[2].role is Role.LEADS


def interrupted_at(place: int, *, leads: bool) -> bool:
    """Whether there is such a place in a call; all others are stored.

    It leads, or it is taken along.
    """
    line, stored = ThreadLine(1, 1), list[str]()
    interrupts = Interrupted(place, {combining.__file__})
    slow = Call(operations.put, (rows("slow"),))
    line._line.enter(slow)

    def together(batch: Any) -> list[Call]:
        stored.extend(call.rows.key.thread_id for call in batch)
        return []

    def run(name: str, context: Any) -> None:
        call = Call(operations.put, (rows(name),))
        with context, suppress(KeyboardInterrupt):
            line.run(call, lambda: stored.append(name), together)

    order = ["it", "0", "1"] if leads else ["0", "it", "1"]
    with ThreadPoolExecutor(3) as pool:
        running = []
        for number, name in enumerate(order):
            running.append(pool.submit(run, name, interrupts if name == "it" else nullcontext()))
            until(lambda number=number: len(line._line._queue) > number or interrupts.happened)
        with line._lock:
            line._line.leave(slow)
        for each in running:
            each.result(timeout=20)
    assert {"0", "1"} <= set(stored)
    assert not line._line._leading
    assert not line._line._waiting()
    return interrupts.happened


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 0.05
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.0005)


@pytest.mark.parametrize("leads", [True, False])
def test_an_interrupt_at_any_place_leaves_nobody_waiting(leads: bool) -> None:
    place = 1
    while interrupted_at(place, leads=leads):
        place += 1
    assert place > 5


@pytest.mark.parametrize("outcome", [Role.IS_STORED, Role.GOES_ALONE])
def test_who_is_taken_along_at_once_waits_for_the_end(outcome: Role) -> None:
    line, leader, alone = ThreadLine(1, 1), Call(operations.put, (rows(),)), list[bool]()
    line._line.enter(leader)
    handover = Handover(lambda: leader.others or line._line.gather(leader))
    line._lock = handover  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as pool:
        call = Call(operations.put, (rows(),))
        waiting = pool.submit(line.run, call, lambda: alone.append(True), lambda batch: None)
        with pytest.raises(FutureTimeout):
            waiting.result(timeout=0.1)
        assert leader.others == [call]
        call.outcome = outcome
        line._line.leave(leader)
        waiting.result(timeout=10)
    assert alone == ([True] if outcome is Role.GOES_ALONE else [])


def test_who_is_left_out_is_told_that_a_chain_has_moved() -> None:
    """He does not go alone with the same rows: what the batch has stored of them may be deleted."""
    line, leader, alone = ThreadLine(1, 1), Call(operations.put, (rows(),)), list[bool]()
    line._line.enter(leader)
    with ThreadPoolExecutor(1) as pool:
        call = Call(operations.put, (rows(),))
        waiting = pool.submit(line.run, call, lambda: alone.append(True), lambda batch: [])
        until(lambda: line._line._queue)
        with line._lock:
            line._line.gather(leader)
            combining._conclude([leader, call], [call])
            line._line.leave(leader)
        with pytest.raises(ChainMoved):
            waiting.result(timeout=10)
    assert not alone


def test_a_task_that_leads_may_be_left_out_too() -> None:
    asyncio.run(lead_and_be_left_out())


async def lead_and_be_left_out() -> None:
    line, leader, alone = LoopLine(1, 1), Call(operations.put, (rows(),)), list[bool]()
    line._line.enter(leader)
    calls = [Call(operations.put, (rows(),)) for _ in range(2)]

    async def go_alone() -> None:
        alone.append(True)

    async def together(batch: Any) -> Any:
        return batch[:1]

    tasks = [asyncio.ensure_future(line.run(call, go_alone, together)) for call in calls]
    await asyncio.sleep(0)
    line._line.leave(leader)
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, ChainMoved)
    assert second is None
    assert not alone


def continued_elsewhere(saver: Called, backend: Backend, url: URL) -> None:
    """Each thread's list stored as a log, whose chain then moves on without the saver knowing."""
    for size in range(20, 23):
        growing(saver, size)
    with called(backend, url) as other:
        for n in range(WAYS):
            value = values_of(other, config(f"t{n}"))["a"]
            put(other, f"t{n}", {"a": [*value, "from elsewhere" * 90]})


STORED_APART = """
    SELECT count(*) FROM checkpoint_segments s WHERE EXISTS (
        SELECT FROM checkpoint_blobs b WHERE b.chain = s.chain AND b.stop > s.start
    ) AND NOT EXISTS (
        SELECT FROM checkpoint_blobs b WHERE b.chain = s.chain AND b.xmin::text = s.xmin::text
    )
"""


@named(POSTGRES)
def test_what_a_batch_leaves_of_a_chain_is_used_by_nobody(
    saver: Called, backend: Backend, ready_url: URL, beside: Engine
) -> None:
    """Each segment that a version needs was stored together with one: none could be deleted."""
    continued_elsewhere(saver, backend, ready_url)
    moved = [putting(f"t{n}", a=grown(n, 23)) for n in range(WAYS)]
    started = [putting(f"t{n}", b=f"{n}" * 70_000) for n in range(WAYS)]
    with crowded(saver):
        saver.at_once(*moved, *started)
    stored = [found.checkpoint["channel_values"] for found in saver.list(None)]
    for n in range(WAYS):
        assert {"a": grown(n, 23)} in stored
        assert {"b": f"{n}" * 70_000} in stored
    with beside.connect() as connection:
        assert connection.scalar(text(STORED_APART)) == 0


@named(POSTGRES)
def test_what_does_not_grow_is_stored_though_a_chain_of_its_thread_has_moved(
    saver: Called, backend: Backend, ready_url: URL
) -> None:
    """A batch leaves out all of a thread whose chain is not what was known."""
    continued_elsewhere(saver, backend, ready_url)
    given: list[dict[str, Any]] = [
        values for n in range(WAYS) for values in ({"a": grown(n, 23)}, {"b": [n]}, {"c": n}, {})
    ]
    calls = [putting(f"t{n // 4}", **values) for n, values in enumerate(given)]
    before = saver.count()
    with crowded(saver):
        saver.at_once(*calls)
    stored = [found.checkpoint["channel_values"] for found in saver.list(None)]
    assert len(stored) == before + len(calls) + 1
    assert all(values in stored for values in given)


def test_calls_of_the_same_time_share_transactions(saver: Called, beside: Engine) -> None:
    with crowded(saver) as taken:
        saver.at_once(*putting_many())
    assert len(taken) <= WAYS // 2
    are_stored(saver, range(WAYS))
    if beside.dialect.name == "postgresql":
        transactions = "SELECT count(DISTINCT xmin::text) FROM checkpoints WHERE thread_id ~ '^t'"
        with beside.connect() as connection:
            assert connection.scalar(text(transactions)) == len(taken)


def grown(number: int, size: int) -> list[str]:
    """A list that is another one for each thread, and long enough to share its bytes."""
    return [f"{number}: {item} " + "x" * 1200 for item in range(size)]


def growing(saver: Called, size: int) -> int:
    """Each thread's list stored one item longer than before, all at once; in how many turns."""
    calls = [putting(f"t{number}", a=grown(number, size)) for number in range(WAYS)]
    with crowded(saver) as taken:
        saver.at_once(*calls)
    for number in range(WAYS):
        assert values_of(saver, config(f"t{number}")) == {"a": grown(number, size)}
    return len(taken)


def chains(beside: Engine) -> dict[str, int]:
    """How many chains each thread has."""
    found = "SELECT thread_id, count(DISTINCT chain) FROM checkpoint_segments GROUP BY thread_id"
    with beside.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(text(found))}


def test_what_grows_in_many_threads_at_once(saver: Called, beside: Engine) -> None:
    assert min(growing(saver, size) for size in range(20, 26)) <= WAYS // 2
    assert chains(beside) == {f"t{number}": 1 for number in range(WAYS)}


def test_a_chain_that_has_moved_fails_its_batch_and_nothing_else(
    saver: Called, backend: Backend, ready_url: URL, beside: Engine
) -> None:
    for size in range(20, 23):
        growing(saver, size)
    with called(backend, ready_url) as other:
        for name in ("t3", "t7"):
            value = values_of(other, config(name))["a"]
            put(other, name, {"a": [*value, "from elsewhere" * 90]})
    turns = growing(saver, 23)
    if beside.dialect.name == "postgresql":
        assert turns <= WAYS // 2 + 2, "the two by themselves, all others in their batches"
    assert chains(beside) == {f"t{number}": 2 if number in (3, 7) else 1 for number in range(WAYS)}


def test_copies_of_a_thread_that_go_on_alike(
    saver: Called, backend: Backend, ready_url: URL, beside: Engine
) -> None:
    """Their chains end in the same digest: that one was added to does not mean that another was."""
    for size in range(20, 23):
        put(saver, "t0", {"a": grown(0, size)})
    names = [f"t{number}" for number in range(WAYS)]
    for name in names[1:]:
        saver.copy_thread("t0", name)
        values_of(saver, config(name))
    with called(backend, ready_url) as other:
        for name in names[::3]:
            value = values_of(other, config(name))["a"]
            put(other, name, {"a": [*value, "from elsewhere" * 90]})
    with crowded(saver):
        saver.at_once(*(putting(name, a=grown(0, 23)) for name in names))
    for name in names:
        assert values_of(saver, config(name)) == {"a": grown(0, 23)}
    moved = {name for name, number in chains(beside).items() if number == 2}
    assert moved == set(names[::3])


@pytest.mark.parametrize("engine_kwargs", [{}, {"pool_size": 1, "max_overflow": 0}], ids=str)
def test_sixteen_conversations_at_once(
    backend: Backend, ready_url: URL, engine_kwargs: dict[str, Any]
) -> None:
    """Each caller finds what he has stored, in the order in which he stored it."""

    def steps(number: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        at = config(f"t{number}")
        for step in range(5):
            values, versions = {"a": [number, step], "n": step}, {"a": version(), "n": version()}
            at = yield "put", (at, checkpoint(values, versions), {"step": step}, versions)
            yield "put_writes", (at, [("a", [step]), ("n", None)], f"task {step}")
            found = yield "get_tuple", (config(f"t{number}"),)
            assert found.checkpoint["channel_values"] == values
            assert found.metadata["step"] == step
            assert found.pending_writes == [
                (f"task {step}", "a", [step]),
                (f"task {step}", "n", None),
            ]

    def thread(saver: Any, number: int) -> None:
        talk, answer = steps(number), None
        try:
            while True:
                name, arguments = talk.send(answer)
                answer = getattr(saver, name)(*arguments)
        except StopIteration:
            return

    async def task(saver: Any, number: int) -> None:
        talk, answer = steps(number), None
        try:
            while True:
                name, arguments = talk.send(answer)
                answer = await getattr(saver, name)(*arguments)
        except StopIteration:
            return

    with called(backend, ready_url, engine_kwargs) as saver:
        talk: Any = task if backend.is_async else thread
        saver.at_once(*(lambda one, n=n: talk(one, n) for n in range(WAYS)))
        assert saver.checked_out() == 0
        assert len(list(saver.list(None))) == WAYS * 5


def test_listeners_see_every_statement(saver: Called) -> None:
    seen: list[str] = []
    event.listen(saver.engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    with crowded(saver):
        saver.at_once(*putting_many())
    assert any(statement.startswith(BATCH_BEGINS) for statement in seen)
    stored = sum("INSERT INTO checkpoints" in statement for statement in seen)
    if saver.engine.dialect.name == "sqlite":
        assert stored == 1 + WAYS  # one after the other
    else:
        assert stored <= 1 + WAYS // 2  # those of a batch at once
    are_stored(saver, range(WAYS))


def test_what_is_large_is_stored_all_the_same(saver: Called) -> None:
    large = [putting(f"large {number}", a="x" * 700_000) for number in range(4)]
    with crowded(saver):
        saver.at_once(*large, *putting_many())
    are_stored(saver, range(WAYS))
    for number in range(4):
        assert values_of(saver, config(f"large {number}")) == {"a": "x" * 700_000}


CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


@pytest.mark.parametrize("name", ["checkout", "engine_connect", "begin"])
def test_connections_that_are_prepared_for_their_caller(saver: Called, name: str) -> None:
    """A listener may read from the context whose call it is, and set that on the connection."""
    seen: list[str] = []
    target = saver.engine.pool if name == "checkout" else saver.engine
    event.listen(target, name, lambda *_: seen.append(CALLER.get()))

    def called_by(number: int) -> Callable[[Any], Any]:
        call = putting(f"t{number}", a=[number])

        def threaded(saver: Any) -> Any:
            CALLER.set(f"caller {number}")
            return call(saver)

        async def tasked(saver: Any) -> Any:
            CALLER.set(f"caller {number}")
            return await call(saver)

        return tasked if saver.loop else threaded

    with crowded(saver) as taken:
        saver.at_once(*map(called_by, range(WAYS)))
    assert len(taken) == WAYS
    are_stored(saver, range(WAYS))
    if name != "begin":  # where a single statement suffices, nothing begins
        assert {f"caller {number}" for number in range(WAYS)} <= set(seen)


# --- nobody is worse off ---


def test_one_that_is_refused_fails_by_itself(backend: Backend, backend_url: URL) -> None:
    def outcome(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def threaded(saver: Any) -> Any:
            try:
                return call(saver)
            except DatabaseError as error:
                return error

        async def tasked(saver: Any) -> Any:
            try:
                return await call(saver)
            except DatabaseError as error:
                return error

        return tasked if backend.is_async else threaded

    with called(backend, backend_url) as saver:
        forbid_bad_threads(backend_url)
        calls = putting_many()
        calls.insert(8, putting("bad", a=["SECRET"]))
        with crowded(saver) as taken:
            outcomes = saver.at_once(*map(outcome, calls))
        failed = [found for found in outcomes if isinstance(found, DatabaseError)]
        assert outcomes.index(failed[0]) == 8
        assert len(failed) == 1
        assert failed[0].operation == "put"
        assert "SECRET" not in str(failed[0])
        assert len(taken) > WAYS // 2  # its batch went one by one
        are_stored(saver, range(WAYS))
        assert saver.get_tuple(config("bad")) is None


def forbid_bad_threads(url: URL) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        if url.get_backend_name() == "postgresql":
            connection.execute(text("ALTER TABLE checkpoints ADD CHECK (thread_id <> 'bad')"))
        else:
            connection.exec_driver_sql(
                "CREATE TRIGGER no_bad BEFORE INSERT ON checkpoints WHEN NEW.thread_id = 'bad' "
                "BEGIN SELECT RAISE(ABORT, 'no bad threads'); END"
            )


@named(ASYNC_BACKENDS)
def test_one_that_is_cancelled_leaves_the_line(saver: Called) -> None:
    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(call(_A(saver.saver))) for call in putting_many()]
        await asyncio.sleep(0)
        tasks[-1].cancel()  # it stands in line: nothing has been sent yet
        return await asyncio.gather(*tasks, return_exceptions=True)

    with crowded(saver):
        assert saver.loop is not None
        outcomes = saver.loop.run_until_complete(main())
    assert isinstance(outcomes[-1], asyncio.CancelledError)
    assert not any(isinstance(found, BaseException) for found in outcomes[:-1])
    are_stored(saver, range(WAYS - 1))
    assert saver.get_tuple(config(f"t{WAYS - 1}")) is None


@named(ASYNC_BACKENDS)
@pytest.mark.usefixtures("way")
def test_a_batch_goes_on_without_those_who_are_cancelled(saver: Called) -> None:
    """All but one of its callers are cancelled while it is executed, whoever leads it."""
    began = asyncio.Event()

    def before(*args: Any) -> None:
        if args[2].startswith(BATCH_BEGINS):
            assert saver.loop is not None
            saver.loop.call_soon_threadsafe(began.set)

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(call(_A(saver.saver))) for call in putting_many()]
        await began.wait()
        for task in tasks[:-1]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    event.listen(saver.engine, "before_cursor_execute", before)
    with crowded(saver):
        assert saver.loop is not None
        outcomes = saver.loop.run_until_complete(main())
    assert any(isinstance(found, asyncio.CancelledError) for found in outcomes[:-1])
    assert not isinstance(outcomes[-1], BaseException)
    for number, found in enumerate(outcomes):
        if not isinstance(found, BaseException):
            assert values_of(saver, config(f"t{number}")) == {"a": [number]}


class _A:
    """A saver's a-methods under the names of the synchronous ones."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, f"a{name}")


@named(POSTGRES)
@pytest.mark.usefixtures("way")
def test_a_batch_whose_connection_is_lost(saver: Called, beside: Engine) -> None:
    ended: list[Any] = []

    def before(*args: Any) -> None:
        if args[2].startswith(BATCH_BEGINS) and not ended:
            ended.append(terminate_others(beside))

    event.listen(saver.engine, "before_cursor_execute", before)
    with crowded(saver):
        saver.at_once(*putting_many())
    assert ended
    are_stored(saver, range(WAYS))


@named(POSTGRES)
@pytest.mark.usefixtures("way")
def test_a_connection_that_a_batch_finds_lost(
    saver: Called, beside: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens to statements: they are sent in the short way."""
    ended: list[Any] = []
    store, first = runners.Runner._execute_together, threading.Lock()

    def execute(*args: Any) -> Any:
        with first:
            if not ended:
                ended.append(terminate_others(beside))
        return store(*args)

    monkeypatch.setattr(runners.Runner, "_execute_together", execute)
    with crowded(saver):
        saver.at_once(*putting_many())
    assert all(ended[0])
    are_stored(saver, range(WAYS))


def terminate_others(engine: Engine) -> Any:
    """End all other connections; what the server itself has there may be gone by then."""
    with engine.connect() as connection:
        return connection.scalars(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
        ).all()


@named(SYNC)
def test_a_leader_who_is_interrupted(saver: Called) -> None:
    interrupted: list[bool] = []

    def before(*args: Any) -> None:
        if args[2].startswith(BATCH_BEGINS) and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    def outcome(call: Callable[[Any], Any]) -> Any:
        try:
            return call(saver.saver)
        except KeyboardInterrupt as error:
            return error

    event.listen(saver.engine, "before_cursor_execute", before)
    with crowded(saver), ThreadPoolExecutor(WAYS) as threads:
        outcomes = list(threads.map(outcome, putting_many(), timeout=30))
    assert interrupted
    assert sum(isinstance(found, KeyboardInterrupt) for found in outcomes) == 1
    for number, found in enumerate(outcomes):
        if not isinstance(found, KeyboardInterrupt):
            assert values_of(saver, config(f"t{number}")) == {"a": [number]}
    put(saver, "after", {"a": [1]})


@named(POSTGRES)
@pytest.mark.usefixtures("way")
def test_nobody_waits_for_a_transaction_of_the_callers(saver: Called, beside: Engine) -> None:
    """It holds a row that one of the calls wants. All others are stored before it ends."""
    wanted = checkpoint({"a": [0]}, {"a": version()})
    stored = config("t0"), wanted, {"source": "input"}, wanted["channel_versions"]
    calls = [lambda one: one.put(*stored), *putting_many()[1:]]
    sync = SQLAlchemySaver(beside)
    with Session(beside) as session:
        sync.using(session).put(*stored)

        def end() -> int:
            deadline = time.monotonic() + 20
            while (found := sync.count()) < WAYS - 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            session.commit()
            return found

        with ThreadPoolExecutor(1) as threads:
            others = threads.submit(end)
            saver.at_once(*calls)
            assert others.result() == WAYS - 1
    are_stored(saver, range(WAYS))


@named([BACKENDS[0], BACKENDS[3], BACKENDS[5]])
def test_two_savers_on_the_same_keys(saver: Called, backend: Backend, ready_url: URL) -> None:
    """In batches of opposite orders, over and over: a deadlock is run again, one by one."""
    versions = [version() for _ in range(WAYS)]
    same = [checkpoint({"a": [n]}, {"a": versions[n]}, id=f"{n:032d}") for n in range(WAYS)]

    def many(saver: Called, order: list[int]) -> None:
        for _ in range(10):
            saver.at_once(
                *(
                    lambda one, n=n: one.put(
                        config(f"t{n}"), same[n], {"source": "input"}, {"a": versions[n]}
                    )
                    for n in order
                )
            )

    with called(backend, ready_url) as other, ThreadPoolExecutor(2) as threads:
        numbers = list(range(WAYS))
        running = [threads.submit(many, saver, numbers), threads.submit(many, other, numbers[::-1])]
        for each in running:
            each.result(60)
    are_stored(saver, range(WAYS))
    assert saver.count() == WAYS


def test_one_loop_after_the_other(database_url: URL) -> None:
    async def main(saver: SQLAlchemySaver, round: int) -> None:
        calls = [putting(f"t{round} {number}", a=[number])(_A(saver)) for number in range(WAYS)]
        await asyncio.gather(*calls)

    tasks: list[asyncio.Task[Any]] = []

    async def leave_early(saver: SQLAlchemySaver) -> None:
        await saver.aget_tuple(config("t"))
        tasks.extend(asyncio.ensure_future(call(_A(saver))) for call in putting_many())
        await asyncio.sleep(0)

    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async"}
    for drivername in (database_url.drivername, drivers[database_url.get_backend_name()]):
        with SQLAlchemySaver.from_url(database_url) as sync:
            sync.setup()
        saver = SQLAlchemySaver.from_url(database_url.set(drivername=drivername))
        for round in range(3):
            asyncio.run(main(saver, round))
            asyncio.run(leave_early(saver))  # which cancels those who stand in line
            assert all(task.done() for task in tasks)
        asyncio.run(main(saver, 3))
        with SQLAlchemySaver.from_url(database_url) as sync:
            found = {item.config["configurable"]["thread_id"] for item in sync.list(None)}
        assert {f"t{round} {n}" for round in range(4) for n in range(WAYS)} <= found
        saver.close()


FORKING = """
import os, signal, sys, threading, time
from sqlalchemy import create_engine, event
sys.path.insert(0, sys.argv[2])
from builders import put
from ckpt_orm import SQLAlchemySaver

engine = create_engine(sys.argv[1])
saver = SQLAlchemySaver(engine)
saver.setup()
put(saver, "before", {"a": [1]})
began = threading.Event()
event.listen(engine.pool, "checkin", lambda *_: (began.set(), time.sleep(0.2)))
threads = [threading.Thread(target=put, args=(saver, f"t{n}", {"a": [n]})) for n in range(16)]
for thread in threads:
    thread.start()
began.wait()
child = os.fork()
if child == 0:
    signal.alarm(15)
    engine.dispose(close=False)
    put(saver, "child", {"a": [1]})
    os._exit(0)
for thread in threads:
    thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_others_store(database_url: URL) -> None:
    url = database_url.render_as_string(hide_password=False)
    command = [sys.executable, "-W", "ignore", "-c", FORKING, url, str(__file__.rpartition("/")[0])]
    subprocess.run(command, check=True, timeout=60)
    with SQLAlchemySaver.from_url(database_url) as saver:
        assert saver.count() == 2 + WAYS


def test_a_call_alone_takes_no_transaction(saver: Called) -> None:
    seen: list[str] = []
    put(saver, "before", {"a": [1]})
    event.listen(saver.engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    stored = put(saver, "t", {"a": [1]})
    saver.put_writes(stored, [("a", 1)], "task")
    assert not any(statement.startswith(BATCH_BEGINS) for statement in seen)
