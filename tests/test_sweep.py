"""Sweeps: what a policy keeps stays as readable as it was, and only the rest goes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from operator import add
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import pytest
from backends import BACKENDS, Backend, Called, named
from builders import config, exact, id_of, put, values_of, version
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from sqlalchemy import URL, Engine, create_engine, event, func, select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner
from typing_extensions import TypedDict

from ckpt_orm import (
    Checkpoint,
    CheckpointBlob,
    CheckpointWrite,
    InvalidConfig,
    Progress,
    Retention,
    SQLAlchemySaver,
    Swept,
)
from ckpt_orm.cli.commands import app
from ckpt_orm.policies import minted

DAY = timedelta(days=1)
DELTAS = ["log", "files"]
#: One of each dialect and colour, for what takes long.
SOME = named([b for b in BACKENDS if b.name in ("sqlite", "psycopg", "asyncpg")])


def chain(saver: Called, thread: str, length: int, ns: str = "", **metadata: Any) -> list[Any]:
    """A line of checkpoints, step by step, each with a write of its task."""
    found: list[Any] = []
    for step in range(length):
        about = {"source": "loop", "step": step, **metadata}
        parent = found[-1] if found else None
        found.append(put(saver, thread, {"n": step, "big": [step] * 9}, parent, about, ns))
        saver.put_writes(found[-1], [("big", step)], "task")
    return found


def key_of(saved: Any) -> dict[str, str]:
    found: dict[str, str] = saved.config["configurable"]
    return found


def steps_of(saver: Called, thread: str, ns: str | None = "") -> list[int]:
    return sorted(saved.metadata["step"] for saved in saver.list(config(thread, ns)))


def rows(url: URL) -> dict[str, int]:
    """How many rows each table has."""
    engine = create_engine(url)
    with engine.connect() as conn:
        found = {
            model.__tablename__: conn.scalar(select(func.count()).select_from(model)) or 0
            for model in (Checkpoint, CheckpointBlob, CheckpointWrite)
        }
    engine.dispose()
    return found


def set_age(url: URL, age: timedelta | None, *configs: Any) -> None:
    """Date rows back; None is the date of an adopted one."""
    engine = create_engine(url)
    with engine.begin() as conn:
        for found in configs:
            row = update(Checkpoint).where(
                Checkpoint.thread_id == found["configurable"]["thread_id"],
                Checkpoint.checkpoint_id == id_of(found),
            )
            at = None if age is None else datetime.now(timezone.utc) - age
            conn.execute(row.values(created_at=at))
    engine.dispose()


def state(saver: Any, found: Any) -> Any:
    """All that a checkpoint says, with what its delta channels are rebuilt from."""
    saved = saver.get_tuple(found)
    values, versions = saved.checkpoint["channel_values"], saved.checkpoint["channel_versions"]
    rebuilt = [channel for channel in DELTAS if channel in versions and channel not in values]
    history = BaseCheckpointSaver.get_delta_channel_history(saver, config=found, channels=rebuilt)
    about = exact([dict(saved.checkpoint), dict(saved.metadata)])
    return about, repr((saved.pending_writes, history))


def states(saver: Called, thread: str) -> dict[tuple[str, str], Any]:
    """The state of each checkpoint of a thread."""
    return {
        (saved.config["configurable"]["checkpoint_ns"], id_of(saved.config)): state(
            saver, saved.config
        )
        for saved in saver.list(config(thread, None))
    }


# --- what a policy keeps ---


def test_the_last_ones_of_each_namespace_stay(saver: Called, ready_url: URL) -> None:
    chain(saver, "t", 5)
    chain(saver, "t", 4, "sub")
    chain(saver, "other", 2)
    swept = saver.sweep(Retention(keep_last=3))
    assert (swept.threads, swept.checkpoints, swept.writes, swept.blobs) == (1, 3, 3, 3)
    assert steps_of(saver, "t") == [2, 3, 4]
    assert steps_of(saver, "t", "sub") == [1, 2, 3]
    assert steps_of(saver, "other") == [0, 1]
    assert rows(ready_url) == dict.fromkeys(rows(ready_url), 8)
    assert saver.sweep(Retention(keep_last=3)) == Swept()


def test_the_young_stay_and_the_latest_whatever_its_age(saver: Called, ready_url: URL) -> None:
    old, young = chain(saver, "old", 4), chain(saver, "young", 4)
    set_age(ready_url, 3 * DAY, *old, *young[:2])
    saver.sweep(Retention(max_age=2 * DAY))
    assert steps_of(saver, "old") == [3]
    assert steps_of(saver, "young") == [2, 3]


def test_options_that_keep_add_up(saver: Called, ready_url: URL) -> None:
    found = chain(saver, "t", 12)
    set_age(ready_url, 3 * DAY, *found[:8])
    saver.sweep(Retention(keep_last=2, max_age=2 * DAY, every=5))
    assert steps_of(saver, "t") == [0, 5, 8, 9, 10, 11]


def test_an_adopted_row_is_as_old_as_its_id_says_or_its_ts(saver: Called, ready_url: URL) -> None:
    now = datetime.now(timezone.utc)
    old, young = (now - 9 * DAY).isoformat(), now.isoformat()
    uuid6 = "1d000000-0000-6000-8000-000000000001"  # some day in 1940
    ids = {"a": (uuid6, young), "b": ("b", old), "c": ("c", young), "d": ("d", "?"), "e": ("e", "")}
    for thread, (id, ts) in ids.items():
        found = put(saver, thread, {}, id=id, ts=ts)
        set_age(ready_url, None, found, put(saver, thread, {}, found, id="z", ts=young))
    saver.sweep(Retention(max_age=DAY))
    left = [thread for thread in ids if len(list(saver.list(config(thread)))) == 2]
    assert left == ["c", "d", "e"], "what has no age that is known stays"


def test_the_time_in_an_id_is_read() -> None:
    from langgraph.checkpoint.base.id import uuid6

    at = minted(str(uuid6()))
    assert at is not None
    assert abs(datetime.now(timezone.utc) - at) < timedelta(minutes=1)
    assert minted("0f8fad5b-d9cb-469f-a165-70867728950e") is None
    assert minted("checkpoint 1") is None


def test_sources_and_metadata_keep(saver: Called) -> None:
    first = put(saver, "t", {}, metadata={"source": "input", "step": 0})
    second = put(saver, "t", {}, first, {"source": "loop", "step": 1, "score": float("nan")})
    third = put(saver, "t", {}, second, {"source": "loop", "step": 2})
    put(saver, "t", {}, third, {"source": "loop", "step": 3})
    # NaN is packed by the serde, and is what it was when the function sees it.
    saver.sweep(Retention(keep=lambda about: "score" in about and about["score"] != about["score"]))
    assert steps_of(saver, "t") == [1, 3]

    chain(saver, "u", 2, source="input")
    chain(saver, "u", 3, source="update")
    chain(saver, "u", 4)
    saver.sweep(Retention(keep_last=1, keep_sources={"input", "update"}, thread_filter="u"))
    assert steps_of(saver, "u") == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize("wanted", ["user-*", lambda thread: thread.startswith("user-")])
def test_only_some_threads_are_looked_at(saver: Called, wanted: Any) -> None:
    for thread in ("user-1", "user-2", "User-3", "bot"):
        chain(saver, thread, 3)
    assert saver.sweep(Retention(keep_last=1, thread_filter=wanted)).threads == 2
    counts = [len(steps_of(saver, t)) for t in ("user-1", "user-2", "User-3", "bot")]
    assert counts == [1, 1, 3, 3]


def test_an_idle_thread_ends_with_all_its_rows(saver: Called, ready_url: URL) -> None:
    idle = [*chain(saver, "idle", 3), *chain(saver, "idle", 2, "sub")]
    woken = chain(saver, "woken", 3)
    saver.put_writes(config("idle", "", "never-saved"), [("x", 1)], "task")
    set_age(ready_url, 9 * DAY, *idle, *woken[:2])
    for swept in (
        saver.sweep(Retention(idle_after=7 * DAY), dry_run=True),
        saver.sweep(Retention(idle_after=7 * DAY)),
    ):
        assert (swept.threads, swept.ended, swept.checkpoints, swept.writes) == (1, 1, 5, 6)
    assert steps_of(saver, "woken") == [0, 1, 2], "a policy without limits trims nothing"
    assert rows(ready_url) == dict.fromkeys(rows(ready_url), 3)


def test_a_long_idle_thread_goes_in_parts_the_latest_last(saver: Called, ready_url: URL) -> None:
    set_age(ready_url, 9 * DAY, *chain(saver, "t", 10))
    heads: list[int] = []
    with SQLAlchemySaver.from_url(ready_url) as other:

        def look(statement: str) -> None:
            heads.append(other.get_tuple(config("t")).metadata["step"])  # type: ignore[union-attr]

        with statements_watched(look, "DELETE"):
            swept = saver.sweep(Retention(idle_after=DAY), batch=4)
    assert len(heads) > 3
    assert set(heads) == {9}
    assert (swept.threads, swept.ended, swept.checkpoints) == (1, 1, 10)
    assert list(saver.list(None)) == []


def test_what_waits_for_an_answer_stays(saver: Called, ready_url: URL) -> None:
    asked = chain(saver, "t", 3)
    saver.put_writes(asked[1], [("__interrupt__", ["?"])], "asker")  # asked[2] went on from it
    fork = put(saver, "t", {"n": 9}, asked[0], {"source": "fork", "step": 7}, id="0")
    saver.put_writes(fork, [("__interrupt__", ["?"])], "asker")
    answered = put(saver, "t", {"n": 9}, asked[0], {"source": "fork", "step": 8}, id="1")
    saver.put_writes(answered, [("__interrupt__", ["?"])], "asker")
    saver.put_writes(answered, [("n", 1)], "asker")
    set_age(ready_url, 9 * DAY, *asked, fork, answered)

    assert saver.sweep(Retention(idle_after=DAY)) == Swept(), "the whole thread waits"
    saver.sweep(Retention(keep_last=1))
    assert steps_of(saver, "t") == [2, 7]
    saver.sweep(Retention(keep_last=1, keep_interrupted=False))
    assert steps_of(saver, "t") == [2]
    assert saver.sweep(Retention(idle_after=DAY, keep_interrupted=False)).ended == 1


def test_a_finished_call_goes_with_the_checkpoint_it_started_from(saver: Called) -> None:
    roots = chain(saver, "t", 4)
    for number, root in enumerate(roots):
        parents = {"": id_of(root)}
        chain(saver, "t", 2, f"call:{number}", parents=parents)
        chain(saver, "t", 2, f"call:{number}|inner:1", parents=parents)
        chain(saver, "t", 1, "lasting", parents=parents)
    chain(saver, "t", 2, "call:live", parents={"": "not saved yet"})
    saver.sweep(Retention(keep_last=2))
    left = {
        saved.config["configurable"]["checkpoint_ns"] for saved in saver.list(config("t", None))
    }
    inner = {f"call:{number}|inner:1" for number in (2, 3)}
    assert left == {"", "call:2", "call:3", "call:live", "lasting"} | inner


def test_the_head_of_an_old_format_keeps_the_parent_with_its_sends(saver: Called) -> None:
    first = put(saver, "t", {"n": 1}, v=2)
    saver.put_writes(first, [("__pregel_tasks", "send")], "task")
    second = put(saver, "t", {"n": 2}, first, v=2)
    before = values_of(saver, second)
    assert before["__pregel_tasks"] == ["send"]
    assert saver.sweep(Retention(keep_last=1)) == Swept()
    assert values_of(saver, second) == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "would delete nothing"),
        ({"keep_sources": {"input"}}, "would delete nothing"),
        ({"keep_last": 0}, "keep_last is 0: pass a number from 1"),
        ({"keep_last": True}, "keep_last is True"),
        ({"every": -1}, "every is -1"),
        ({"max_age": 30}, "max_age is 30: pass a timedelta"),
        ({"idle_after": -DAY}, "idle_after is"),
        ({"keep_last": 1, "keep_sources": "input"}, r"pass \{'input'\}"),
        ({"keep_last": 1, "keep_sources": {"input", "inptu"}}, "'inptu', which no checkpoint is"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        Retention(**options)


def test_a_batch_of_nothing_is_refused(saver: Called) -> None:
    with pytest.raises(InvalidConfig, match="batch is 0"):
        saver.sweep(Retention(keep_last=1), batch=0)


# --- how it is done ---


@contextmanager
def statements_watched(seen: Any, word: str) -> Iterator[None]:
    """`seen` is called before each statement that begins with a word, on any engine."""

    def executed(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(word):
            seen(statement)

    event.listen(Engine, "before_cursor_execute", executed)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", executed)


def forest(saver: Called, thread: str) -> None:
    """Lines, forks and a delta chain in three namespaces."""
    line = chain(saver, thread, 9)
    for parent in line[2:5]:
        put(saver, thread, {"n": 0}, parent, {"source": "fork", "step": 0}, new=[])
    about = {"source": "loop", "step": 0, "counters_since_delta_snapshot": {"log": [1, 1]}}
    below = put(saver, thread, {"log": _DeltaSnapshot([0])}, metadata=about, ns="delta")
    for number in range(6):
        saver.put_writes(below, [("log", number)], "task")
        below = put(saver, thread, {}, below, about, new=["log"])
    chain(saver, thread, 5, "sub")


@SOME
def test_a_dry_run_changes_nothing_and_predicts_exactly(saver: Called, ready_url: URL) -> None:
    for thread in "abc":
        forest(saver, thread)
    before, held = {t: states(saver, t) for t in "abc"}, rows(ready_url)
    policy = Retention(keep_last=2, every=4)
    predicted = saver.sweep(policy, dry_run=True)
    assert {t: states(saver, t) for t in "abc"} == before
    assert rows(ready_url) == held

    assert saver.sweep(policy, batch=3) == predicted
    left = rows(ready_url)
    went = [held[name] - left[name] for name in held]
    assert went == [predicted.checkpoints, predicted.blobs, predicted.writes]
    assert predicted.threads == 3
    assert predicted.bytes > predicted.blobs
    assert saver.sweep(policy, dry_run=True) == Swept()


def test_a_transaction_deletes_no_more_than_a_batch(saver: Called) -> None:
    for thread in "abcde":
        chain(saver, thread, 5)
    chain(saver, "long", 20)
    sizes: list[int] = []

    def progress(found: Progress) -> None:
        sizes.append(found.swept.checkpoints)

    deletes: list[str] = []
    with statements_watched(deletes.append, "SELECT CAST('checkpoints'"):
        saver.sweep(Retention(keep_last=1), batch=8, on_progress=progress)
    # Two short threads at a time, one alone, and the long one in three parts.
    assert len(deletes) == 5 + 3
    assert sizes[-1] == 5 * 4 + 19


def test_progress_ends_with_all(saver: Called) -> None:
    for number in range(3):
        chain(saver, f"t{number}", 4)
    seen: list[Progress] = []
    swept = saver.sweep(Retention(keep_last=1), on_progress=seen.append)
    assert [found.total for found in seen] == [12] * len(seen)
    assert seen[-1] == Progress(12, 12, swept)


class Stop(Exception):
    """The sweep is interrupted."""


@SOME
@pytest.mark.parametrize("at", [1, 4, 9, 14])
def test_an_interrupted_sweep_leaves_all_readable_and_the_next_goes_on(
    saver: Called, ready_url: URL, at: int
) -> None:
    for thread in "ab":
        forest(saver, thread)
    before = {thread: states(saver, thread) for thread in "ab"}
    policy = Retention(keep_last=1)
    predicted = saver.sweep(policy, dry_run=True)
    deletes = count(1)

    def stop(statement: str) -> None:
        if next(deletes) == at:
            raise Stop

    with statements_watched(stop, "DELETE"), pytest.raises(Stop):
        saver.sweep(policy, batch=2)
    first = sum(len(before[t]) - len(states(saver, t)) for t in "ab")
    for thread in "ab":
        assert states(saver, thread).items() <= before[thread].items()
    swept = saver.sweep(policy)
    assert first + swept.checkpoints == predicted.checkpoints
    for thread in "ab":
        assert states(saver, thread).items() <= before[thread].items()
    assert saver.checked_out() == 0


@SOME
def test_two_sweepers_at_once_do_the_work_of_one(saver: Called) -> None:
    for number in range(12):
        forest(saver, f"t{number:02d}")
    before = {f"t{n:02d}": states(saver, f"t{n:02d}") for n in range(0, 12, 5)}
    policy = Retention(keep_last=1)
    predicted = saver.sweep(policy, dry_run=True)

    def sweep(methods: Any) -> Any:
        return methods.sweep(policy, batch=5)

    found: list[Swept] = saver.at_once(sweep, sweep, sweep)
    total = sum(found, Swept())
    counted = ("checkpoints", "writes", "blobs", "bytes")
    assert [getattr(total, n) for n in counted] == [getattr(predicted, n) for n in counted]
    assert saver.sweep(policy, dry_run=True) == Swept()
    for thread, was in before.items():
        assert states(saver, thread).items() <= was.items()


@named([backend for backend in BACKENDS if backend.database == "postgres"])
def test_a_thread_that_another_sweep_is_at_is_passed_by(
    backend: Backend, saver: Called, ready_url: URL
) -> None:
    for thread in "ab":
        chain(saver, thread, 5)
    engine = create_engine(ready_url)
    with engine.begin() as conn:
        conn.execute(saver.saver._runner.statements.HOLD, {"thread_id": "a"})
        swept = saver.sweep(Retention(keep_last=1))
        assert (swept.threads, swept.skipped) == (1, 1)
        assert len(steps_of(saver, "a")) == 5
        # A run is not kept waiting.
        saver.put(config("a"), *_another(saver, "a"))
    engine.dispose()
    assert saver.sweep(Retention(keep_last=1)).skipped == 0
    assert steps_of(saver, "a") == [99]


def _another(saver: Called, thread: str) -> tuple[Any, Any, Any]:
    latest = saver.get_tuple(config(thread)).checkpoint
    new = {"n": version()}
    following = {**latest, "id": "f" * 8, "channel_versions": {**latest["channel_versions"], **new}}
    return following, {"source": "loop", "step": 99}, new


@SOME
def test_a_sweep_beside_live_runs_loses_nothing_of_theirs(saver: Called) -> None:
    for number in range(3):
        chain(saver, f"t{number}", 30)
    live: Any = _live if saver.loop is None else _alive
    runs = [lambda methods, n=n: live(methods, f"t{n}") for n in range(3)]

    def sweep(methods: Any) -> Any:
        return methods.sweep(Retention(keep_last=1), batch=3)

    saver.at_once(*runs, sweep, sweep)
    for number in range(3):
        thread = f"t{number}"
        assert values_of(saver, config(thread)) == {"kept": ["kept"], "n": 19, "big": [29] * 9}
        assert saver.get_tuple(config(thread)).pending_writes == [("task", "n", 19)]


def _following(found: Any, number: int) -> tuple[Any, ...]:
    """What a run puts after a checkpoint: one value changes, the others are stored already."""
    latest = found.checkpoint
    new = {"n": version()} | ({"kept": version()} if number == 0 else {})
    following = {
        **latest,
        "id": f"f{number:08d}",
        "channel_versions": {**latest["channel_versions"], **new},
        "channel_values": {**latest["channel_values"], "n": number, "kept": ["kept"]},
    }
    return found.config, following, {"source": "loop", "step": 100 + number}, new


def _live(saver: Any, thread: str) -> None:
    for number in range(20):
        found = saver.get_tuple(config(thread))
        stored = saver.put(*_following(found, number))
        saver.put_writes(stored, [("n", number)], "task")


async def _alive(saver: Any, thread: str) -> None:
    for number in range(20):
        found = await saver.get_tuple(config(thread))
        stored = await saver.put(*_following(found, number))
        await saver.put_writes(stored, [("n", number)], "task")


def test_what_was_saved_since_the_look_keeps_what_it_needs(saver: Called, ready_url: URL) -> None:
    line = chain(saver, "t", 6)
    forks: list[Any] = []
    with SQLAlchemySaver.from_url(ready_url) as other:

        def fork(statement: str) -> None:
            if not forks:
                values = {"n": -1, "big": [1] * 9}
                about = {"source": "fork", "step": 50}
                forks.append(put(other, "t", values, line[1], about, new=["n"]))

        # The last thing a look does: what goes is decided without the fork.
        with statements_watched(fork, "SELECT DISTINCT checkpoint_writes"):
            saver.sweep(Retention(keep_last=1))
    assert steps_of(saver, "t") == [5, 50]
    assert values_of(saver, forks[0]) == {"n": -1, "big": [1] * 9}
    assert saver.sweep(Retention(keep_last=1)).checkpoints == 1
    assert values_of(saver, forks[0]) == {"n": -1, "big": [1] * 9}


@contextmanager
def woken(url: URL, parent: Any, statement: str) -> Iterator[list[Any]]:
    """Another saver's put behind `parent`, right before the first statement that begins so."""
    woke: list[Any] = []
    with SQLAlchemySaver.from_url(url) as other:

        def wake(statement: str) -> None:
            if not woke:
                woke.append(put(other, "t", {"n": 6, "big": [5] * 9}, parent, new=["n"]))

        with statements_watched(wake, statement):
            yield woke


def test_a_thread_that_woke_since_the_look_does_not_end(saver: Called, ready_url: URL) -> None:
    line = chain(saver, "t", 6)
    set_age(ready_url, 9 * DAY, *line)
    with woken(ready_url, line[-1], "SELECT DISTINCT checkpoint_writes"):
        swept = saver.sweep(Retention(idle_after=DAY))
    assert swept == Swept(skipped=1)
    assert len(list(saver.list(config("t")))) == 7


@named([backend for backend in BACKENDS if backend.database == "postgres"])
def test_a_thread_that_wakes_while_it_is_deleted_does_not_end(
    backend: Backend, saver: Called, ready_url: URL
) -> None:
    line = chain(saver, "t", 6)
    set_age(ready_url, 9 * DAY, *line)
    # What is asked right before the rest of a thread goes.
    with woken(ready_url, line[-1], "SELECT checkpoint_segments.start") as woke:
        swept = saver.sweep(Retention(idle_after=DAY))
    assert swept == Swept(skipped=1)
    assert len(list(saver.list(config("t")))) == 7
    assert values_of(saver, woke[0]) == {"n": 6, "big": [5] * 9}


@pytest.mark.parametrize("policy", [Retention(idle_after=DAY), Retention(keep_last=1)])
@named([backend for backend in BACKENDS if backend.database == "postgres"])
def test_a_thread_that_somebody_adds_to_is_passed_by(
    backend: Backend, saver: Called, ready_url: URL, policy: Retention
) -> None:
    """Nor does the sweep wait for the transaction, nor does anybody else for the sweep."""
    value = [f"{number:099}" for number in range(1000)]
    lines = [[put(saver, thread, {"n": 1, "big": value})] for thread in "ab"]
    for line in lines:
        line.append(
            put(
                saver,
                line[0]["configurable"]["thread_id"],
                {"n": 2, "big": value},
                line[0],
                new=["n"],
            )
        )
        set_age(ready_url, 9 * DAY, *line)
    last = lines[1][-1]
    engine = create_engine(ready_url)
    with Session(engine) as session:
        guest = SQLAlchemySaver(engine).using(session)
        woke = put(guest, "b", {"n": 2, "big": [*value, "more"]}, last, new=["big"])
        ends = Timer(10, session.rollback)
        ends.start()
        swept = saver.sweep(policy)
        assert ends.is_alive()
        ends.cancel()
        session.commit()
    engine.dispose()
    assert (swept.threads, swept.skipped) == (1, 1)
    assert values_of(saver, woke) == {"n": 2, "big": [*value, "more"]}
    assert len(list(saver.list(config("b")))) == 3


# --- random histories ---

CHANNELS = [*DELTAS, "plain", "flag"]
NAMESPACES = ["", "sub", "call:1", "call:2|inner:3"]
VALUES = st.sampled_from([["x"], {"a": 1}, None, 0, "text"])
ACTIONS = st.one_of(st.just("nothing"), st.just("written"), VALUES.map(lambda v: ("value", v)))
TASK_WRITES = st.lists(
    st.tuples(st.sampled_from([*DELTAS, "__interrupt__"]), VALUES, st.sampled_from(["t1", "t2"])),
    max_size=2,
)
#: A namespace, how far back the parent is (0 for a root), what each channel does, and writes.
HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["", "", *NAMESPACES]),
        st.integers(0, 3),
        st.tuples(*[ACTIONS] * len(CHANNELS)),
        TASK_WRITES,
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
)
POLICIES = st.builds(
    dict,
    keep_last=st.integers(1, 3),
    every=st.sampled_from([None, None, 2, 3]),
    keep_sources=st.sampled_from([frozenset(), frozenset({"fork"})]),
    keep_interrupted=st.booleans(),
)
RELAXED = settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def grow(saver: Called, thread: str, history: Sequence[Any]) -> None:
    """A thread with delta channels, forks and subgraph calls."""
    grown: dict[str, list[tuple[Any, dict[str, Any], dict[str, str]]]] = {
        ns: [] for ns in NAMESPACES
    }
    for step, (ns, back, actions, writes, root) in enumerate(history):
        line = grown[ns]
        parent, before, known = line[-back] if 0 < back <= len(line) else (None, {}, {})
        # A step puts all plain values again, but a snapshot only once.
        values = {k: v for k, v in before.items() if not isinstance(v, _DeltaSnapshot)}
        changed = [c for c, a in zip(CHANNELS, actions, strict=True) if a != "nothing"]
        for channel, action in zip(CHANNELS, actions, strict=True):
            if action == "written":
                values.pop(channel, None)
            elif action != "nothing":
                value = action[1]
                values[channel] = _DeltaSnapshot(value) if channel in DELTAS else value
        versions = known | {channel: version() for channel in changed}
        counted = [c for c in DELTAS if c in versions and c not in values]
        roots = [id_of(found) for found, _, _ in grown[""]] or ["unsaved"]
        about = {
            "source": "fork" if back > 1 else "loop",
            "step": step,
            "parents": {"": roots[-1 - root % len(roots)]},
            "counters_since_delta_snapshot": {channel: [1, 1] for channel in counted},
        }
        found = put(saver, thread, values, parent, about, ns, new=changed, versions=versions)
        for channel, value, task in writes:
            saver.put_writes(found, [(channel, value)], task)
        line.append((found, values, versions))


@SOME
@RELAXED
@given(history=HISTORY, options=POLICIES, batch=st.integers(1, 5))
def test_every_checkpoint_that_is_left_says_what_it_said(
    saver: Called, ready_url: URL, history: Any, options: dict[str, Any], batch: int
) -> None:
    thread = version()  # a thread for each example
    grow(saver, thread, history)
    before, held = states(saver, thread), rows(ready_url)
    policy = Retention(**options, thread_filter=thread)

    predicted = saver.sweep(policy, dry_run=True)
    assert saver.sweep(policy, batch=batch) == predicted
    left, rest = states(saver, thread), rows(ready_url)
    assert left.items() <= before.items()
    assert len(before) - len(left) == predicted.checkpoints
    assert [held[name] - rest[name] for name in held] == [
        predicted.checkpoints,
        predicted.blobs,
        predicted.writes,
    ]
    lasting = [sorted(place for place in before if place[0] == ns) for ns in ("", "sub")]
    for places in lasting:
        assert set(places[-options["keep_last"] :]) <= left.keys()
    assert saver.sweep(policy) == Swept(), "a second sweep finds nothing"


@SOME
@RELAXED
@given(history=HISTORY)
def test_the_shortest_policy_is_what_prune_does(saver: Called, history: Any) -> None:
    swept, pruned = version(), version()
    grow(saver, swept, history)
    saver.copy_thread(swept, pruned)
    saver.sweep(Retention(keep_last=1, keep_interrupted=False, thread_filter=swept))
    saver.prune([pruned])
    assert states(saver, swept) == states(saver, pruned)


# --- a graph ---


def _appended(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [item for items in (state, *writes) for item in items]


def _merged(state: dict[str, int], writes: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: number for found in (state, *writes) for name, number in found.items()}


def graph_of(saver: Any, snapshot_frequency: int = 2) -> Any:
    """A node, a subgraph that asks, and a node, with two delta channels throughout."""
    log = DeltaChannel(_appended, list, snapshot_frequency=snapshot_frequency + 1)
    files = DeltaChannel(_merged, dict, snapshot_frequency=snapshot_frequency)
    fields = {
        "log": Annotated[list, log],
        "files": Annotated[dict, files],
        "n": Annotated[int, add],
    }
    State: Any = TypedDict("State", fields)  # type: ignore[operator]

    def note(state: Any) -> Any:
        return {"log": [f"note {state['n']}"], "files": {f"f{state['n']}": state["n"]}, "n": 1}

    def ask(state: Any) -> Any:
        return {"log": [interrupt("go on?")]}

    inner = StateGraph(State).add_node("prepare", note).add_node("ask", ask)
    inner.add_edge(START, "prepare").add_edge("prepare", "ask").add_edge("ask", END)
    outer = StateGraph(State).add_node("note", note).add_node("inner", inner.compile())
    outer.add_edge(START, "note").add_edge("note", "inner").add_edge("inner", END)
    return outer.compile(checkpointer=saver)


def history_of(saver: Called, graph: Any, thread: str) -> dict[str, Any]:
    """All states of the root graph, by checkpoint."""
    where = {"configurable": {"thread_id": thread}}
    if saver.loop is None:
        found = list(graph.get_state_history(where))
    else:

        async def collected() -> Any:
            return [state async for state in graph.aget_state_history(where)]

        found = saver.loop.run_until_complete(collected())
    return {
        id_of(s.config): (s.values, s.next, [(t.id, t.interrupts) for t in s.tasks]) for s in found
    }


@SOME
def test_a_graph_goes_on_where_it_was_swept(saver: Called) -> None:
    graph, policy = graph_of(saver.saver), Retention(keep_last=2, thread_filter="swept")
    for thread in ("swept", "whole"):
        here = {"configurable": {"thread_id": thread}}
        for turn in range(4):
            saver.run(graph, {"log": [f"turn {turn}"], "files": {}, "n": 0}, here)
            before = history_of(saver, graph, "swept")
            saver.sweep(policy, batch=3)
            assert history_of(saver, graph, "swept").items() <= before.items()
            saver.run(graph, Command(resume=f"yes {turn}"), here)
    swept, whole = (history_of(saver, graph, thread) for thread in ("swept", "whole"))
    assert len(swept) < len(whole)
    ends = [next(iter(found.values()))[0] for found in (swept, whole)]
    assert ends[0] == ends[1]
    assert "yes 3" in ends[0]["log"]


# --- the command ---


def run(*arguments: str, url: URL | str | None) -> Any:
    written = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    environment = {"CKPT_ORM_DATABASE_URL": written, "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


@SOME
def test_the_command_sweeps(saver: Called, ready_url: URL) -> None:
    found = [*chain(saver, "user-1", 9), *chain(saver, "bot", 3)]
    set_age(ready_url, 9 * DAY, *found[:5])
    policy = ["--max-age", "2d", "--every", "4", "--keep-last", "2", "--thread", "user-*"]
    told = run("sweep", *policy, "--dry-run", url=ready_url)
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("would delete 3 checkpoints, 3 writes and 3 blobs of 1 thread,")
    assert steps_of(saver, "user-1") == list(range(9))

    done = json.loads(run("sweep", *policy, "--json", "--batch", "2", url=ready_url).stdout)
    assert (done["checkpoints"], done["threads"]) == (3, 1)
    assert steps_of(saver, "user-1") == [0, 4, 5, 6, 7, 8]
    assert "deleted 0 checkpoints" in run("sweep", *policy, url=ready_url).stdout

    ended = run("sweep", "--idle-after", "0s", "--thread", "bot", url=ready_url)
    assert ended.exit_code == 0
    assert run("sweep", "--keep-last", "1", "--keep-source", "loop", url=ready_url).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "pass --keep-last, --max-age, --every or --idle-after"),
        (["--keep-source", "loop"], 2, "this would delete nothing: pass --keep-last"),
        (["--keep-last", "0"], 2, "Invalid value for '--keep-last'"),
        (["--every", "-1"], 2, "Invalid value for '--every'"),
        (["--max-age", "soon"], 2, "--max-age 'soon' is no duration: write 90m"),
        (["--idle-after", "9" * 30 + "d"], 2, "write a shorter one"),
        (["--keep-last", "1", "--batch", "0"], 2, "Invalid value for '--batch'"),
        (
            ["--keep-last", "1", "--keep-source", "inptu"],
            2,
            "--keep-source takes one of fork, input",
        ),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    sqlite_url: URL, arguments: list[str], code: int, says: str
) -> None:
    Path(str(sqlite_url.database)).touch()
    failed = run("sweep", *arguments, url=sqlite_url)
    assert failed.exit_code == code
    assert says in failed.stderr
    assert not any(name in failed.stderr for name in ("keep_last", "idle_after", "keep_source"))


def test_the_command_needs_a_database_that_is_set_up(sqlite_url: URL) -> None:
    assert run("sweep", "--keep-last", "1", url=None).exit_code == 2
    Path(str(sqlite_url.database)).touch()
    failed = run("sweep", "--keep-last", "1", url=sqlite_url)
    assert failed.exit_code == 1
    assert "ckpt-orm upgrade" in failed.stderr
