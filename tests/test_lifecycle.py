"""Deleting and copying: what goes goes whole, what stays stays as it was, byte by byte."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backends import Called
from builders import config, id_of, put, version
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from sqlalchemy import URL, create_engine, select, update

from ckpt_orm import (
    Checkpoint,
    CheckpointBlob,
    CheckpointSegment,
    CheckpointWrite,
    InvalidConfig,
    SQLAlchemySaver,
)

#: Ids of which one begins another, matches it as a pattern, or equals it but for case.
LOOKALIKES = ["t1", "t10", "t%", "t_", "T1"]
NAMESPACES = ["", "sub", "call:1"]

Rows = dict[str, set[tuple[Any, ...]]]


@pytest.fixture
def rows(saver: Called, ready_url: URL) -> Iterator[Callable[..., Rows]]:
    """All rows of a thread (of all threads without one) by table, as they are stored."""
    engine = create_engine(ready_url)

    def read(thread: str | None = None) -> Rows:
        found: Rows = {}
        with engine.connect() as conn:
            for model in (Checkpoint, CheckpointBlob, CheckpointWrite, CheckpointSegment):
                columns = [c for c in model.__table__.columns if c.name != "created_at"]
                query = select(*columns)
                if thread is not None:
                    query = query.where(columns[0] == thread)
                found[model.__tablename__] = {
                    tuple(repr(cell) for cell in row) for row in conn.execute(query).all()
                }
        return found

    yield read
    engine.dispose()


@pytest.fixture
def no_orphans(saver: Called, ready_url: URL) -> Iterator[None]:
    """At the end, every blob and write belongs to a checkpoint that is there."""
    yield
    engine = create_engine(ready_url)
    with engine.connect() as conn:
        places = select(Checkpoint.thread_id, Checkpoint.checkpoint_ns, Checkpoint.checkpoint_id)
        checkpoints = {tuple(row) for row in conn.execute(places).all()}
        documents = conn.execute(
            select(Checkpoint.thread_id, Checkpoint.checkpoint_ns, Checkpoint.checkpoint)
        ).all()
        versions = {
            (thread, ns, channel, named)
            for thread, ns, document in documents
            for channel, named in document["channel_versions"].items()
        }
        blobs = conn.execute(select(*CheckpointBlob.__table__.primary_key)).all()
        writes = conn.execute(select(*list(CheckpointWrite.__table__.primary_key)[:3])).all()
    engine.dispose()
    assert {tuple(row) for row in blobs} <= versions
    assert {tuple(row) for row in writes} <= checkpoints


def fill(saver: Called, thread: Any, run: str = "r1") -> None:
    """Three checkpoints in each of three namespaces, which share a blob, with pending writes."""
    for ns in NAMESPACES:
        stored = None
        for step in range(3):
            values: dict[str, Any] = {"shared": ["s", thread], "own": [step], "small": step}
            values["long"] = ["x" * 700] * 10 + list(range(step))
            stored = put(
                saver,
                thread,
                values,
                stored,
                {"source": "loop", "step": step, "run_id": run, "parents": {}},
                ns,
                new=values if step == 0 else ["own", "small", "long"],
            )
            saver.put_writes(stored, [("own", [step + 1]), ("small", None)], "task", "path")


def tuples(saver: Called, thread: Any) -> list[Any]:
    """All checkpoints of a thread, without the thread's own id."""

    def without(config: Any) -> Any:
        return config and {**config["configurable"], "thread_id": None}

    return [
        (without(f.config), without(f.parent_config), f.checkpoint, f.metadata, f.pending_writes)
        for f in saver.list(config(thread, None))
    ]


# --- delete_thread ---


def test_delete_thread_takes_all_of_a_thread_and_nothing_else(
    saver: Called, rows: Callable[..., Rows]
) -> None:
    for thread in LOOKALIKES:
        fill(saver, thread)
    before = {thread: rows(thread) for thread in LOOKALIKES}
    for doomed in ["t%", "t_", "t1", "t1"]:
        saver.delete_thread(doomed)
        before.pop(doomed, None)
        assert not any(rows(doomed).values())
        assert list(saver.list(config(doomed, None))) == []
        assert {thread: rows(thread) for thread in before} == before


def test_an_id_that_is_no_string_names_the_same_thread(
    saver: Called, rows: Callable[..., Rows]
) -> None:
    fill(saver, 1)
    saver.copy_thread(1, 2)
    assert tuples(saver, "2") == tuples(saver, "1") != []
    saver.prune([1])
    assert len(rows("1")["checkpoints"]) == len(NAMESPACES)
    saver.delete_thread(2)
    saver.prune([1], strategy="delete")
    assert not any(rows().values())


def test_writes_that_come_after_delete_thread_are_kept(
    saver: Called, rows: Callable[..., Rows]
) -> None:
    stored = put(saver, "t", {"a": [1]})
    saver.delete_thread("t")
    saver.put_writes(stored, [("a", [2])], "task")
    assert len(rows("t")["checkpoint_writes"]) == 1
    assert saver.get_tuple(stored) is None
    saver.delete_thread("t")
    assert not any(rows().values())


# --- copy_thread ---


def test_copy_thread_copies_all_and_the_two_go_their_own_ways(
    saver: Called, rows: Callable[..., Rows], no_orphans: None
) -> None:
    for thread in LOOKALIKES:
        fill(saver, thread)
    before = rows()
    saver.copy_thread("t1", "copy")
    saver.copy_thread("t1", "copy")
    assert tuples(saver, "copy") == tuples(saver, "t1")

    head = saver.get_tuple(config("copy"))
    after = put(saver, "copy", {"own": ["copy"]}, head.config)
    saver.put_writes(after, [("own", 1)], "task")
    saver.prune(["copy"])
    saver.delete_thread("copy")
    assert rows() == before


def test_copying_onto_a_thread_adds_what_it_does_not_have(saver: Called, no_orphans: None) -> None:
    fill(saver, "source")
    saver.copy_thread("source", "target")
    head = saver.get_tuple(config("target"))
    newest = put(saver, "target", {"own": ["target's"]}, head.config)
    saver.put_writes(head.config, [("more", 1)], "another task")
    later = saver.get_tuple(config("source"))
    put(saver, "source", {"own": ["source's"]}, later.config, id="0-older")

    saver.copy_thread("source", "target")
    assert saver.get_tuple(newest).checkpoint["channel_values"]["own"] == ["target's"]
    assert saver.get_tuple(config("target")).config == newest
    older = saver.get_tuple(config("target", id="0-older"))
    assert older.checkpoint["channel_values"]["own"] == ["source's"]
    assert len(saver.get_tuple(head.config).pending_writes) == 3
    saver.copy_thread("unknown", "target")
    saver.copy_thread("target", "target")
    assert saver.get_tuple(config("unknown")) is None


def test_a_copy_is_rebuilt_from_its_own_ancestors(saver: Called) -> None:
    head = _delta_thread(saver, "t")
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    found = saver.get_delta_channel_history(config=config("copy"), channels=["log"])["log"]
    assert found["seed"] == _DeltaSnapshot(["seed"])
    assert [value for _, _, value in found["writes"]] == [1, 2, 3]
    assert id_of(saver.get_tuple(config("copy")).config) == id_of(head)


def _delta_thread(saver: Called, thread: str) -> Any:
    """A forgotten step, a snapshot, and three steps that are rebuilt from it."""
    stored = put(saver, thread, {"log": _DeltaSnapshot(["old"])}, metadata={"run_id": "r1"})
    for step in range(4):
        values = {"log": _DeltaSnapshot(["seed"])} if step == 0 else {}
        about = {"run_id": "r1", "counters_since_delta_snapshot": {"log": [step, step]}}
        metadata = about if step else {"run_id": "r1"}
        stored = put(saver, thread, values, stored, metadata, new=["log"])
        if step < 3:
            saver.put_writes(stored, [("log", step + 1)], "task")
    return stored


# --- delete_for_runs ---


def test_delete_for_runs_keeps_what_others_need(
    saver: Called, rows: Callable[..., Rows], no_orphans: None
) -> None:
    for thread, run in [("a", "r1"), ("b", "r1"), ("c", "r2")]:
        fill(saver, thread, run)
    head = saver.get_tuple(config("a"))
    after = put(
        saver, "a", head.checkpoint["channel_values"], head.config, {"run_id": "r2"}, new=["own"]
    )
    expected = saver.get_tuple(after)._replace(parent_config=None)
    others = rows("c")
    saver.delete_for_runs(["r1", "unknown"])
    assert saver.get_tuple(after) == expected, "it is a root now, and has all its values"
    assert [found.config for found in saver.list(config("a", None))] == [after]
    assert not any(rows("b").values())
    assert rows("c") == others


def test_delete_for_runs_keeps_what_a_channel_is_rebuilt_from(
    saver: Called, rows: Callable[..., Rows], no_orphans: None
) -> None:
    head = _delta_thread(saver, "t")
    about = {"run_id": "r2", "counters_since_delta_snapshot": {"log": [4, 4]}}
    after = put(saver, "t", {}, head, about, new=["log"])
    before = saver.get_delta_channel_history(config=after, channels=["log"])
    saver.delete_for_runs(["r1"])
    assert saver.get_delta_channel_history(config=after, channels=["log"]) == before
    assert len(rows("t")["checkpoints"]) == 5, "all but the one before the snapshot"


def test_forty_thousand_runs_in_one_call(saver: Called, rows: Callable[..., Rows]) -> None:
    for number in (0, 1, 39_999):
        put(saver, f"t{number}", {"a": [1]}, metadata={"run_id": f"r{number}"})
    put(saver, "kept", {"a": [1]}, metadata={"run_id": "other"})
    put(saver, "kept", {"a": [1]}, metadata={"source": "loop"})
    kept = rows("kept")
    saver.delete_for_runs([])
    assert len(rows()["checkpoints"]) == 5
    saver.delete_for_runs([f"r{number}" for number in range(40_000)])
    assert rows() == kept


# --- prune ---


def test_prune_keeps_the_latest_of_each_namespace(
    saver: Called, rows: Callable[..., Rows], no_orphans: None
) -> None:
    for thread in LOOKALIKES:
        fill(saver, thread)
    others = {thread: rows(thread) for thread in LOOKALIKES[1:]}
    before = {ns: saver.get_tuple(config("t1", ns)) for ns in NAMESPACES}
    for _ in range(2):
        saver.prune(["t1", "unknown"])
        found = list(saver.list(config("t1", None)))
        assert len(found) == len(NAMESPACES)
        for ns in NAMESPACES:
            assert saver.get_tuple(config("t1", ns)) == before[ns]._replace(parent_config=None)
    assert {thread: rows(thread) for thread in LOOKALIKES[1:]} == others


def test_prune_by_deleting(saver: Called, rows: Callable[..., Rows]) -> None:
    for thread in LOOKALIKES:
        fill(saver, thread)
    kept = rows("T1")
    saver.prune(["t1", "t10", "t%", "t_"], strategy="delete")
    assert rows() == kept


@pytest.mark.parametrize("odd", [config("t"), ["t"], ("t",), {"t"}, b"t"], ids=repr)
def test_what_is_no_id_deletes_nothing_and_says_so(
    saver: Called, rows: Callable[..., Rows], odd: Any
) -> None:
    put(saver, "t", {"a": [1]})
    before = rows()
    for call in (
        lambda: saver.delete_thread(odd),
        lambda: saver.copy_thread(odd, "u"),
        lambda: saver.copy_thread("t", odd),
        lambda: saver.prune([odd]),
        lambda: saver.delete_for_runs([odd]),
        lambda: saver.get_tuple({"configurable": {"thread_id": odd}}),
    ):
        with pytest.raises(InvalidConfig, match=f"of type {type(odd).__name__}: pass the id"):
            call()
    with pytest.raises(TypeError, match="not a single one"):
        saver.prune(config("t"))
    assert rows() == before


@pytest.mark.parametrize("thread_id", [7, uuid.UUID(int=7)], ids=repr)
def test_an_id_may_be_a_number_or_a_uuid(saver: Called, thread_id: Any) -> None:
    put(saver, thread_id, {"a": [1]})
    saver.delete_thread(thread_id)
    assert saver.get_tuple(config(str(thread_id))) is None


def test_a_single_string_is_no_list_of_ids(saver: Called, rows: Callable[..., Rows]) -> None:
    fill(saver, "t", "r")
    before = rows()
    for method in (saver.prune, saver.delete_for_runs):
        with pytest.raises(TypeError, match="not a single one"):
            method("tr")
    assert rows() == before


def test_an_unknown_strategy_is_refused_before_anything_happens(
    saver: Called, rows: Callable[..., Rows]
) -> None:
    fill(saver, "t")
    before = rows()
    with pytest.raises(ValueError, match="keep_everything"):
        saver.prune(["t"], strategy="keep_everything")
    assert rows() == before


def test_a_call_goes_with_the_root_checkpoint_it_started_from(
    saver: Called, no_orphans: None
) -> None:
    first = put(saver, "t", {"a": [1]})
    head = put(saver, "t", {"a": [2]}, first)
    calls = {
        "over:1": id_of(first),
        "live:1": id_of(head),
        "unsaved:1": "not stored yet",
        "lasting": id_of(first),
        "over:1|inner:2": id_of(first),
    }
    for ns, root in calls.items():
        inner = put(saver, "t", {"b": [1]}, metadata={"parents": {"": root}}, ns=ns)
        saver.put_writes(inner, [("b", [2])], "task")
    saver.prune(["t"])
    namespaces = {
        found.config["configurable"]["checkpoint_ns"] for found in saver.list(config("t", None))
    }
    assert namespaces == {"", "live:1", "unsaved:1", "lasting"}


def test_an_old_head_keeps_the_parent_that_holds_its_sends(saver: Called) -> None:
    first = put(saver, "t", {"a": [1]}, v=3)
    second = put(saver, "t", {"a": [2]}, first, v=3)
    saver.put_writes(second, [(TASKS, "send me")], "task")
    head = put(saver, "t", {"a": [3]}, second, v=3)
    before = saver.get_tuple(head)
    assert before.checkpoint["channel_values"][TASKS] == ["send me"]
    saver.prune(["t"])
    assert saver.get_tuple(head) == before
    assert saver.get_tuple(first) is None


def test_prune_ends_on_a_cycle_of_parents(saver: Called, ready_url: URL) -> None:
    head = _delta_thread(saver, "t")
    oldest = list(saver.list(config("t")))[-2]  # the snapshot's
    engine = create_engine(ready_url)
    with engine.begin() as conn:
        at = update(Checkpoint).where(Checkpoint.checkpoint_id == id_of(oldest.config))
        conn.execute(at.values(parent_checkpoint_id=id_of(head)))
    engine.dispose()
    before = saver.get_delta_channel_history(config=head, channels=["log", "none"])
    saver.prune(["t"])
    assert saver.get_delta_channel_history(config=head, channels=["log", "none"]) == before


def test_puts_beside_prunes_are_neither_lost_nor_half_deleted(
    saver: Called, ready_url: URL, no_orphans: None
) -> None:
    del saver  # the same tables, used from threads
    with SQLAlchemySaver.from_url(ready_url.set(drivername=ready_url.get_backend_name())) as shared:
        lost: list[Any] = []
        over = threading.Event()

        def run(thread: str) -> None:
            stored = put(shared, thread, {"shared": [thread], "own": [0]})
            for step in range(1, 12):
                values = {"shared": [thread], "own": [step]}
                stored = put(
                    shared,
                    thread,
                    values,
                    stored,
                    new=["own"],
                    versions={
                        "shared": shared.get_tuple(stored).checkpoint["channel_versions"]["shared"],
                        "own": version(),
                    },
                )
                shared.put_writes(stored, [("own", step)], "task")
                found = shared.get_tuple(stored)
                if found is None or found.checkpoint["channel_values"] != values:
                    lost.append((thread, step, found))
                elif found.pending_writes != [("task", "own", step)]:
                    lost.append((thread, step, found.pending_writes))

        def prune() -> None:
            while not over.is_set():
                shared.prune(["x", "y"])

        runs = [threading.Thread(target=run, args=(thread,)) for thread in ("x", "y")]
        prunes = [threading.Thread(target=prune) for _ in range(2)]
        for thread in (*runs, *prunes):
            thread.start()
        for thread in runs:
            thread.join()
        over.set()
        for thread in prunes:
            thread.join()
        assert lost == []
        shared.prune(["x", "y"])
        for name in ("x", "y"):
            (left,) = shared.list(config(name))
            assert left.checkpoint["channel_values"] == {"shared": [name], "own": [11]}


def test_the_latest_alone_is_copied_with_what_it_needs(
    saver: Called, rows: Callable[..., Rows], no_orphans: None
) -> None:
    """As prune would keep it; what the target has stays as it is."""
    parent = put(saver, "source", {"a": [1], "b": [1]})
    head = put(saver, "source", {"a": [1, 2], "b": [1]}, parent)
    saver.put_writes(head, [("a", 3)], "task")
    put(saver, "source", {"c": 1}, ns="sub")
    saver.copy_thread("source", "few", latest_only=True)
    found = list(saver.list({"configurable": {"thread_id": "few"}}))
    assert {t.config["configurable"]["checkpoint_ns"] for t in found} == {"", "sub"}
    copied = saver.get_tuple(config("few"))
    original = saver.get_tuple(config("source"))
    assert copied.checkpoint == original.checkpoint
    assert copied.pending_writes == original.pending_writes
    assert copied.parent_config is None
    saver.copy_thread("source", "whole")
    before = rows("whole")
    saver.copy_thread("source", "whole", latest_only=True)
    assert rows("whole") == before


def test_a_copy_of_the_latest_keeps_what_it_is_rebuilt_from(saver: Called) -> None:
    counters = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    versions = [f"{number:032d}.0" for number in range(1, 5)]
    older = put(saver, "source", {"log": [0]}, versions={"log": versions[0]})
    seed = put(saver, "source", {"log": _DeltaSnapshot([1])}, older, versions={"log": versions[1]})
    saver.put_writes(seed, [("log", 2)], "task")
    middle = put(saver, "source", {}, seed, counters, versions={"log": versions[2]})
    saver.put_writes(middle, [("log", 3)], "task")
    put(saver, "source", {}, middle, counters, versions={"log": versions[3]})
    saver.copy_thread("source", "target", latest_only=True)
    assert len(list(saver.list(config("target")))) == 3
    histories = [
        saver.get_delta_channel_history(config=config(thread), channels=["log"])
        for thread in ("source", "target")
    ]
    assert histories[0] == histories[1]
    assert [value for _, _, value in histories[0]["log"]["writes"]] == [2, 3]
