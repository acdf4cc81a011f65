"""Checks: each fault is found and called by its name, sound data has none, a repair is safe."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from backends import BACKENDS, Called, named
from builders import config, id_of, put, values_of, version
from hypothesis import given
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from sqlalchemy import URL, create_engine, delete, func, insert, select, text, update
from test_sweep import (
    HISTORY,
    RELAXED,
    SOME,
    chain,
    graph_of,
    grow,
    history_of,
    rows,
    run,
    statements_watched,
    states,
)
from typing_extensions import TypedDict

from ckpt_orm import (
    Checkpoint,
    CheckpointBlob,
    CheckpointWrite,
    InvalidConfig,
    Retention,
    SQLAlchemySaver,
)
from ckpt_orm.verifying import HARMLESS

NO_GRACE = timedelta(days=-1)


def execute(url: URL, *statements: Any) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(statement)
    engine.dispose()


def delta_chain(saver: Called, thread: str, length: int = 4) -> list[Any]:
    """A snapshot, and checkpoints that are rebuilt from it."""
    about = {"source": "loop", "step": 0, "counters_since_delta_snapshot": {"log": [1, 1]}}
    found = [put(saver, thread, {"log": _DeltaSnapshot([0])}, metadata=about)]
    for number in range(length):
        saver.put_writes(found[-1], [("log", number)], "task")
        found.append(put(saver, thread, {}, found[-1], about, new=["log"]))
    return found


@SOME
@RELAXED
@given(history=HISTORY)
def test_sound_data_has_no_faults(saver: Called, history: Any) -> None:
    thread = version()
    grow(saver, thread, history)
    report = saver.verify()
    assert report.faults == []
    saver.sweep(Retention(keep_last=1, thread_filter=thread))
    report = saver.verify()
    assert report.ok
    assert report.faults == []


def _blob(**key: str) -> Any:
    where = [getattr(CheckpointBlob, name) == value for name, value in key.items()]
    return select(func.max(CheckpointBlob.version)).where(*where).scalar_subquery()


FAULTS: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "an orphaned blob": (
        lambda found: [delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(found[-1]))],
        "orphaned blob",
    ),
    "orphaned writes": (
        lambda found: [delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(found[1]))],
        "orphaned blob, orphaned writes",
    ),
    "a missing blob": (
        lambda found: [delete(CheckpointBlob).where(CheckpointBlob.version == _blob())],
        "missing blob",
    ),
    "another payload": (
        lambda found: [
            update(CheckpointBlob).where(CheckpointBlob.version == _blob()).values(blob=b"\x00")
        ],
        "broken digest",
    ),
    "a payload of another serde": (
        lambda found: [
            update(CheckpointBlob)
            .where(CheckpointBlob.version == _blob())
            .values(blob=b"\xc1", digest=None)
        ],
        "undecodable",
    ),
    "a write of another serde": (
        lambda found: [
            update(CheckpointWrite)
            .where(CheckpointWrite.checkpoint_id == id_of(found[1]))
            .values(type="morse")
        ],
        "undecodable",
    ),
    "metadata of another serde": (
        lambda found: [
            update(Checkpoint)
            .where(Checkpoint.checkpoint_id == id_of(found[1]))
            .values(metadata_={"x": {"__ckpt_orm__": ["morse", ""]}})
        ],
        "undecodable",
    ),
    "a document that is none": (
        lambda found: [
            update(Checkpoint)
            .where(Checkpoint.checkpoint_id == id_of(found[1]))
            .values(checkpoint=[1])
        ],
        "undecodable",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_name(saver: Called, ready_url: URL, fault: str) -> None:
    breaks, expected = FAULTS[fault]
    chain(saver, "sound", 3)
    execute(ready_url, *breaks(chain(saver, "t", 3)))
    report = saver.verify()
    assert not report.ok
    assert ", ".join(sorted(found.kind for found in report.faults)) == expected
    assert all(found.key[0] == "t" for found in report.faults)
    assert report.counts.total() == len(report.faults)
    quick = saver.verify(payloads=False)
    assert quick.payloads == 0
    assert {f.kind for f in quick.faults} <= {f.kind for f in report.faults}


def test_no_fault_tells_a_stored_value(saver: Called, ready_url: URL) -> None:
    put(saver, "t", {"word": ["SECRET"]})
    execute(ready_url, update(CheckpointBlob).values(blob=b"\xc1SECRET", digest=None))
    assert saver.verify().counts == {"undecodable": 1}
    assert "SECRET" not in repr(saver.verify())


def test_a_chain_whose_ancestor_is_gone_is_broken(saver: Called, ready_url: URL) -> None:
    found = delta_chain(saver, "t")
    assert saver.verify().ok
    gone = delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(found[1]))
    execute(ready_url, gone)
    chains = [f for f in saver.verify().faults if f.kind == "broken chain"]
    assert sorted(f.key[2] for f in chains) == sorted(id_of(c) for c in found[2:])


def test_a_snapshot_that_is_gone_is_missing(saver: Called, ready_url: URL) -> None:
    delta_chain(saver, "t")
    execute(ready_url, delete(CheckpointBlob).where(CheckpointBlob.type != "empty"))
    assert "missing blob" in saver.verify().counts


def test_an_ancestor_that_is_not_needed_is_not_missed(saver: Called, ready_url: URL) -> None:
    found = chain(saver, "t", 3)
    tables: list[Any] = [Checkpoint, CheckpointWrite]
    execute(ready_url, *(delete(t).where(t.checkpoint_id == id_of(found[0])) for t in tables))
    assert {f.kind for f in saver.verify().faults} == {"orphaned blob"}


def test_values_that_the_official_saver_did_not_store_are_not_missed(
    saver: Called, ready_url: URL
) -> None:
    """It stores no row for a version without a value, and no digest."""
    put(saver, "t", {"messages": ["a"]}, new=["messages", "branch:to:node"])
    execute(
        ready_url,
        delete(CheckpointBlob).where(CheckpointBlob.type == "empty"),
        update(CheckpointBlob).values(digest=None),
    )
    assert saver.verify().ok
    # What is stored after the adoption is known to have had one.
    put(saver, "t", {"messages": ["a", "b"], "n": [1]}, config("t"))
    assert saver.verify().ok
    put(saver, "t", {"messages": ["c"], "n": [2]}, saver.get_tuple(config("t")).config)
    execute(ready_url, delete(CheckpointBlob).where(CheckpointBlob.version == _blob(channel="n")))
    assert saver.verify().counts == {"missing blob": 1}


# --- repairs ---


def orphans(saver: Called, url: URL) -> Any:
    """Two orphaned blobs in a thread, and three writes of no checkpoint, beside sound rows."""
    found = chain(saver, "t", 3)
    execute(
        url,
        *(
            insert(CheckpointBlob).values(
                thread_id="t", channel="big", version=f"{n}", type="msgpack", blob=b"\xc0"
            )
            for n in range(2)
        ),
    )
    writes = [("big", 1), ("big", 2), ("big", 3)]
    saver.put_writes(config("t", "", "00000000-0000-6000-8000-000000000000"), writes, "task")
    return found


def test_a_repair_removes_orphans_and_nothing_else(saver: Called, ready_url: URL) -> None:
    orphans(saver, ready_url)
    before, held = states(saver, "t"), rows(ready_url)
    report = saver.verify(repair=True, grace=NO_GRACE)
    assert report.ok
    assert (report.repaired, report.early, report.removed) == (2, 3, 3)
    assert report.counts == {"orphaned blob": 2}
    assert report.left == {}
    assert all(fault.repaired for fault in report.faults)
    assert states(saver, "t") == before
    left = rows(ready_url)
    assert [held[name] - left[name] for name in held] == [0, 2, 3]
    after = saver.verify()
    assert (after.faults, after.early) == ([], 0)


def test_a_repair_removes_the_writes_of_a_checkpoint_that_is_gone(
    saver: Called, ready_url: URL
) -> None:
    """Which was there, since a later one was stored after it."""
    found = chain(saver, "t", 3)
    execute(ready_url, delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(found[1])))
    report = saver.verify()
    assert report.left == report.counts == {"orphaned blob": 1, "orphaned writes": 1}
    (fault,) = (fault for fault in report.faults if fault.kind == "orphaned writes")
    assert fault.key == ("t", "", id_of(found[1]))
    assert report.early == 0
    report = saver.verify(repair=True, grace=NO_GRACE)
    assert (report.repaired, report.removed, report.ok) == (2, 0, True)
    assert saver.verify().faults == []


class Unheld:
    """What no serde can hold."""

    def __reduce__(self) -> Any:
        raise TypeError


class State(TypedDict):
    n: int
    x: Any


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
def test_what_a_failed_run_leaves_is_no_fault(saver: Called, durability: str) -> None:
    """Its writes may be stored, and their checkpoint not."""
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"x": Unheld()})
    builder.add_node("second", lambda state: {"n": 2})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    graph = builder.compile(checkpointer=saver.saver)
    with pytest.raises(InvalidConfig, match="the serde cannot hold"):
        saver.run(graph, {"n": 0}, config("t"), durability=durability)
    saver.put_writes(config("t", "", "00000000-0000-6000-8000-000000000000"), [("n", 1)], "task")
    report = saver.verify()
    assert report.ok
    assert report.faults == []
    assert report.early >= 1
    repaired = saver.verify(repair=True, grace=NO_GRACE)
    assert (repaired.early, repaired.removed) == (report.early, report.early)
    assert saver.verify().early == 0


def test_a_repair_waits_until_a_thread_is_quiet(saver: Called, ready_url: URL) -> None:
    orphans(saver, ready_url)
    held = rows(ready_url)
    report = saver.verify(repair=True)
    assert (report.ok, report.repaired, report.removed) == (False, 0, 0)
    assert rows(ready_url) == held


@named([backend for backend in BACKENDS if backend.database == "postgres"])
def test_what_is_put_again_during_a_repair_keeps_its_values(saver: Called, ready_url: URL) -> None:
    line = chain(saver, "t", 3)
    again = saver.get_tuple(line[1])
    execute(ready_url, delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(line[1])))
    put_again: list[Any] = []
    with SQLAlchemySaver.from_url(ready_url) as other:

        def before(statement: str) -> None:
            if not put_again:
                versions = again.checkpoint["channel_versions"]
                put_again.append(other.put(line[0], again.checkpoint, again.metadata, versions))

        with statements_watched(before, "DELETE FROM checkpoint_blobs"):
            saver.verify(repair=True, grace=NO_GRACE)
    assert put_again == [line[1]]
    assert saver.get_tuple(line[1]) == again
    assert saver.verify().faults == []


def test_a_repair_may_wait_for_ever(saver: Called, ready_url: URL) -> None:
    orphans(saver, ready_url)
    assert saver.verify(repair=True, grace=timedelta.max).repaired == 0


def test_a_run_whose_writes_come_first_is_left_alone(saver: Called) -> None:
    fresh = put(saver, "other", {})  # an id of now, as a run would have
    saver.put_writes(config("t", "", id_of(fresh)), [("n", 1)], "task")
    report = saver.verify(repair=True)
    assert (report.ok, report.early, report.removed) == (True, 1, 0)
    put(saver, "t", {"n": 1}, id=id_of(fresh))
    assert saver.verify().ok
    assert saver.get_tuple(config("t")).pending_writes == [("task", "n", 1)]


def test_where_a_checkpoint_cannot_be_asked_no_blob_is_an_orphan(
    saver: Called, ready_url: URL
) -> None:
    found = chain(saver, "t", 3)
    broken = update(Checkpoint).where(Checkpoint.checkpoint_id == id_of(found[1]))
    execute(ready_url, broken.values(checkpoint=[1]))
    held = rows(ready_url)
    assert saver.verify(repair=True, grace=NO_GRACE).counts == {"undecodable": 1}
    assert rows(ready_url) == held


def test_what_a_repair_may_touch_makes_nothing_unreadable() -> None:
    assert {"orphaned blob", "orphaned writes"} == HARMLESS


@named([backend for backend in BACKENDS if backend.database == "sqlite"])
def test_text_that_is_no_json_is_told(saver: Called, ready_url: URL) -> None:
    found = chain(saver, "t", 3)
    broken = text("UPDATE checkpoints SET checkpoint = '{\"v\": 4' WHERE checkpoint_id = :id")
    execute(ready_url, broken.bindparams(id=id_of(found[1])))
    assert saver.verify().counts == {"undecodable": 1}


# --- compact ---


@SOME
def test_a_compacted_checkpoint_needs_no_ancestors(saver: Called) -> None:
    graph = graph_of(saver.saver, snapshot_frequency=1000)
    for thread in ("whole", "compact"):
        here: Any = {"configurable": {"thread_id": thread}}
        for turn in range(3):
            saver.run(graph, {"log": [f"turn {turn}"], "files": {}, "n": 0}, here)
    before = history_of(saver, graph, "compact")
    saver.prune(["compact"])
    assert history_of(saver, graph, "compact") == before, "all are needed"

    assert sorted(saver.compact(graph, config("compact"))) == ["files", "log"]
    assert saver.compact(graph, config("compact")) == []
    assert history_of(saver, graph, "compact") == before
    saver.prune(["compact"])
    left = history_of(saver, graph, "compact")
    assert list(left.items()) == list(before.items())[:1]
    assert saver.verify().ok

    # The interrupt that was pending is answered, and the thread goes on as the other one does.
    ends = []
    for thread in ("whole", "compact"):
        saver.run(graph, Command(resume="yes"), {"configurable": {"thread_id": thread}})
        ends.append(next(iter(history_of(saver, graph, thread).values()))[0])
    assert ends[0] == ends[1]
    assert "yes" in ends[0]["log"]


@SOME
def test_compacting_every_checkpoint_changes_no_state(saver: Called) -> None:
    graph = graph_of(saver.saver, snapshot_frequency=1000)
    here: Any = {"configurable": {"thread_id": "t"}}
    saver.run(graph, {"log": ["hello"], "files": {}, "n": 0}, here)
    before = history_of(saver, graph, "t")
    for checkpoint_id in before:
        saver.compact(graph, config("t", "", checkpoint_id))
        assert history_of(saver, graph, "t") == before


def test_there_may_be_nothing_to_compact(saver: Called) -> None:
    graph = graph_of(saver.saver)
    assert saver.compact(graph, config("nobody")) == []
    put(saver, "t", {"n": 1})
    assert saver.compact(graph, config("t")) == []
    assert values_of(saver, config("t")) == {"n": 1}


# --- the command ---


@SOME
def test_the_command_tells_faults_and_repairs_the_harmless(saver: Called, ready_url: URL) -> None:
    chain(saver, "sound", 2)
    well = run("verify", url=ready_url)
    assert well.exit_code == 0, well.output
    assert well.stdout == "1 thread, 2 checkpoints, 4 values: no fault\n"

    orphans(saver, ready_url)
    ill = run("verify", url=ready_url)
    assert ill.exit_code == 1
    assert "orphaned blob: checkpoint_blobs ('t', '', 'big', '0'): no checkpoint" in ill.stdout
    early, last = ill.stdout.splitlines()[-2:]
    assert early.startswith("3 writes of checkpoints that were not stored: no fault, a run")
    assert last == "2 threads, 5 checkpoints, 15 values: orphaned blob (2)"
    assert run("verify", "--repair", url=ready_url).exit_code == 1, "the thread is not quiet yet"

    age = update(Checkpoint).values(created_at=datetime.now(timezone.utc) - timedelta(hours=2))
    execute(ready_url, age)
    report = json.loads(run("verify", "--json", "--no-payloads", url=ready_url).stdout)
    assert (report["ok"], report["payloads"]) == (False, 0)
    assert report["counts"] == report["left"] == {"orphaned blob": 2}
    assert (report["early"], report["removed"]) == (3, 0)
    assert run("verify", "--repair", "--grace", "3h", url=ready_url).exit_code == 1
    repaired = run("verify", "--repair", "--grace", "90m", url=ready_url)
    assert repaired.exit_code == 0, repaired.output
    assert repaired.stdout.count("repaired: ") == 2
    *_, early, last = repaired.stdout.splitlines()
    assert (
        early
        == "deleted 3 writes of checkpoints that were not stored, as a run that failed leaves them"
    )
    assert last == "2 threads, 5 checkpoints, 10 values: no fault, 2 repaired"
    assert run("verify", url=ready_url).stdout == "2 threads, 5 checkpoints, 10 values: no fault\n"

    execute(ready_url, delete(CheckpointBlob).where(CheckpointBlob.version == _blob(thread_id="t")))
    mixed = orphaned_too(ready_url)
    assert mixed.exit_code == 1
    assert mixed.stdout.splitlines()[-1].endswith(": missing blob (1), 2 repaired")


def orphaned_too(url: URL) -> Any:
    """What a repair tells of a thread that has orphaned blobs besides."""
    for number in range(2):
        row = {"version": f"{number}", "type": "msgpack", "blob": b"\xc0"}
        execute(url, insert(CheckpointBlob).values(thread_id="t", channel="big", **row))
    return run("verify", "--repair", "--grace", "90m", url=url)


def test_the_command_says_when_there_is_no_database(sqlite_url: URL) -> None:
    assert run("verify", url=None).exit_code == 2
    assert run("verify", url="postgresql://nobody@127.0.0.1:1/none").exit_code == 2
    assert run("verify", "--grace", "1", url=sqlite_url).exit_code == 2
    assert run("verify", url=sqlite_url).exit_code == 2
    Path(str(sqlite_url.database)).touch()
    assert run("verify", url=sqlite_url).exit_code == 1
