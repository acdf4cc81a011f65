"""What LangGraph's engine expects of a saver beyond the docstrings, and what errors say."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backends import Backend, Called, called, engine_of
from builders import checkpoint, config, exact, id_of, metadata_of, put, values_of, version
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from sqlalchemy import URL, Engine, create_engine, text

from ckpt_orm import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidConfig,
    SchemaNotReady,
    SQLAlchemySaver,
)

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@pytest.fixture
def plain(ready_url: URL) -> Iterator[Engine]:
    """An engine beside the saver's, to look at the rows and to damage them."""
    engine = create_engine(ready_url)
    yield engine
    engine.dispose()


def rows_of(engine: Engine, table: str, **where: str) -> list[dict[str, Any]]:
    conditions = " AND ".join(f"{name} = :{name}" for name in where) or "1 = 1"
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT * FROM {table} WHERE {conditions}"), where)
        return sorted((dict(row) for row in found.mappings()), key=str)


def run(engine: Engine, statement: str, **params: Any) -> int:
    with engine.begin() as connection:
        found: int = connection.execute(text(statement), params).rowcount
        return found


def change(engine: Engine, statement: str, **params: Any) -> None:
    assert run(engine, statement, **params) > 0


# --- configs ---


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_checkpoint_id_is_none(saver: Called, nothing: Any) -> None:
    at = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": nothing}}
    assert saver.get_tuple(at) is None
    first = put(saver, "t", {"a": [1]}, parent=None)
    stored = saver.put(at, checkpoint({"a": [2]}, {"a": version()}), {}, {})
    assert saver.get_tuple(stored).parent_config is None
    assert saver.get_tuple(at).config == stored
    assert [item.config for item in saver.list(at)] == [stored, first]


def test_what_put_returns_has_three_plain_keys(saver: Called) -> None:
    """Whatever else was in the config: functions, the saver itself, maps of other namespaces."""
    given: Any = {
        "configurable": {
            "thread_id": 7,
            "checkpoint_map": {"": "x"},
            "__pregel_send": print,
            "__pregel_checkpointer": saver.saver,
            "user": "u1",
        },
        "metadata": {"run": "r1"},
        "recursion_limit": 5,
    }
    found = checkpoint({"a": 1}, {"a": version()})
    stored = saver.put(given, found, {"step": 1}, found["channel_versions"])
    keys = {"thread_id": "7", "checkpoint_ns": "", "checkpoint_id": found["id"]}
    assert exact(stored) == exact({"configurable": keys})
    assert saver.get_tuple(stored).config == stored
    assert metadata_of(saver, stored) == {"step": 1, "user": "u1", "run": "r1"}


def test_thread_ids_are_coerced_to_text_everywhere(saver: Called) -> None:
    first = put(saver, 7, {"a": 1})
    second = put(saver, 7, {"a": 2}, first)
    saver.put_writes(second, [("c", 1)], "task")
    for thread in (7, "7"):
        found = saver.get_tuple(config(thread))
        assert exact(found.config) == exact(config("7", id=id_of(second)))
        assert exact(found.parent_config) == exact(config("7", id=id_of(first)))
        assert len(list(saver.list(config(thread)))) == 2
        assert saver.get(config(thread)) == found.checkpoint
    saver.copy_thread(7, 8)
    assert len(list(saver.list(config("8")))) == 2
    saver.delete_thread(7)
    assert saver.get_tuple(config("7")) is None
    saver.prune([8])
    assert len(list(saver.list(config("8")))) == 1


BAD_IDS = ["a\x00b", "\ud800", "x" * 2_700, "é" * 1_400]


@pytest.mark.parametrize("bad", BAD_IDS, ids=["nul", "surrogate", "long", "long in bytes"])
def test_an_id_that_cannot_be_a_key_is_refused(saver: Called, bad: str) -> None:
    """On both dialects, before anything is stored, and as the ValueError it is."""
    fine = put(saver, "t", {})
    values, versions = {"a": [1]}, {"a": version()}
    calls: list[Callable[[], Any]] = [
        lambda: put(saver, bad, {}),
        lambda: put(saver, "t", {}, ns=bad),
        lambda: put(saver, "t", {}, id=bad),
        lambda: put(saver, "t", {bad: [1]}),
        lambda: put(saver, "t", {bad: 1}),
        lambda: put(saver, "t", {}, new=[bad]),
        lambda: put(saver, "t", values, versions={"a": bad}),
        lambda: saver.put(config("t", id=bad), checkpoint(values, versions), {}, versions),
        lambda: saver.get_tuple(config(bad)),
        lambda: saver.get_tuple(config("t", bad)),
        lambda: saver.get_tuple(config("t", id=bad)),
        lambda: list(saver.list(config(bad))),
        lambda: list(saver.list(None, before=config("t", id=bad))),
        lambda: saver.put_writes(fine, [("c", 1)], bad),
        lambda: saver.put_writes(fine, [(bad, 1)], "task"),
        lambda: saver.delete_thread(bad),
        lambda: saver.copy_thread("t", bad),
        lambda: saver.copy_thread(bad, "t"),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(InvalidConfig) as caught:
            call()
        assert isinstance(caught.value, ValueError), number
        assert bad not in str(caught.value), number
    assert [item.config for item in saver.list(None)] == [fine]


def test_a_long_id_within_the_limit(saver: Called) -> None:
    stored = put(saver, "x" * 600, {"c" * 600: [1]}, ns="n" * 600)
    saver.put_writes(stored, [("c" * 600, 1)], "task", "p" * 600)
    assert values_of(saver, stored) == {"c" * 600: [1]}


def test_a_missing_thread_id_is_told(saver: Called) -> None:
    for call in (
        lambda: saver.get_tuple({"configurable": {}}),
        lambda: saver.put({"configurable": {}}, checkpoint({}), {}, {}),
        lambda: saver.delete_thread(None),
    ):
        with pytest.raises(InvalidConfig, match="thread_id"):
            call()
    with pytest.raises(InvalidConfig, match="checkpoint_id"):
        saver.put_writes(config("t"), [("c", 1)], "task")


# --- values and versions ---


def test_an_unchanged_channel_keeps_the_value_of_its_version(saver: Called) -> None:
    """What is not in `new_versions` may be the next superstep's value by now."""
    first = put(saver, "t", {"big": [1], "small": 1})
    second = put(saver, "t", {"big": ["later"], "small": 1, "n": 2}, first, new=["n"])
    third = put(saver, "t", {"big": ["even later"], "small": 1, "n": 2}, second, new=[])
    for stored in (second, third):
        assert values_of(saver, stored) == {"big": [1], "small": 1, "n": 2}


def test_a_fork_with_nothing_new_has_all_values(saver: Called) -> None:
    first = put(saver, "t", {"a": [1], "b": "x", "c": None})
    fork = put(saver, "t", {"a": [1], "b": "x", "c": None}, first, new=[])
    saver.put_writes(fork, [("c", 1)], "task")
    assert values_of(saver, fork) == {"a": [1], "b": "x", "c": None}
    assert saver.get_tuple(fork).parent_config == first


def test_a_channel_without_a_value_is_empty(saver: Called) -> None:
    first = put(saver, "t", {"a": [1], "b": 1})
    second = put(saver, "t", {}, first, new=["a", "b", "never"])
    assert values_of(saver, second) == {}
    assert values_of(saver, first) == {"a": [1], "b": 1}
    third = put(saver, "t", {"a": None, "b": 2}, second, new=["a", "b"])
    assert values_of(saver, third) == {"a": None, "b": 2}


def test_values_without_a_version_are_kept(saver: Called) -> None:
    values = {"small": 1, "big": ["x"], "odd": float("nan"), "nul": "a\x00b"}
    stored = put(saver, "t", values, new=[], versions={})
    assert exact(values_of(saver, stored)) == exact(values)
    assert saver.get_tuple(stored).checkpoint["channel_versions"] == {}


def test_other_entries_of_a_checkpoint_are_kept(saver: Called) -> None:
    other = {
        "pending_sends": [["x", 1]],
        "updated_channels": ["a", "b"],
        "versions_seen": {"__input__": {}, "node": {"a": version(), "b": 3, "c": 1.5}},
        "of a later release": {"n": 1e16, "list": [{"k": None}]},
        "v": 5,
        "ts": "",
    }
    stored = put(saver, "t", {}, **other)
    found = saver.get_tuple(stored).checkpoint
    assert exact({name: found[name] for name in other}) == exact(other)


def test_metadata_of_an_exit_mode_stub_and_of_delta_channels(saver: Called) -> None:
    stub = put(saver, "t", {}, metadata={"step": -2})
    assert metadata_of(saver, stub) == {"step": -2}
    counted = {"step": 3, "counters_since_delta_snapshot": {"messages": [2, 5]}, "parents": {}}
    assert metadata_of(saver, put(saver, "t", {}, metadata=counted)) == counted


def test_a_snapshot_is_found_at_later_checkpoints_of_its_version(saver: Called) -> None:
    """Also where its channel was not written since; an empty version hides it."""
    first = put(saver, "t", {"delta": _DeltaSnapshot([1, 2])})
    second = put(saver, "t", {"n": 1}, first, new=["n"])
    third = put(saver, "t", {"n": 1}, second, new=["delta"])
    snapshot = values_of(saver, first)["delta"]
    assert type(snapshot) is _DeltaSnapshot
    assert snapshot == _DeltaSnapshot([1, 2])
    assert exact(values_of(saver, second)) == exact({"delta": snapshot, "n": 1})
    assert values_of(saver, third) == {"n": 1}


def test_two_forks_take_different_versions(saver: Called) -> None:
    first = put(saver, "t", {"a": ["base"]})
    current = saver.get_tuple(first).checkpoint["channel_versions"]["a"]
    taken = [saver.get_next_version(current, None) for _ in range(2)]
    forks = [
        put(saver, "t", {"a": [n]}, first, new=["a"], versions={"a": taken[n]}) for n in (0, 1)
    ]
    assert [values_of(saver, fork)["a"] for fork in forks] == [[0], [1]]


@pytest.mark.parametrize(
    ("current", "number"),
    [(None, 1), (0, 1), (1, 2), (9.0, 10), (10**9, 10**9 + 1), ("9", 10), (f"{99:032d}.123", 100)],
)
def test_versions_grow_as_text(current: Any, number: int) -> None:
    saver = SQLAlchemySaver.from_url("sqlite://")
    versions = [saver.get_next_version(current, None)]
    for _ in range(12):
        versions.append(saver.get_next_version(versions[-1], None))
    assert [int(found.split(".")[0]) for found in versions] == list(range(number, number + 13))
    assert versions == sorted(versions)
    assert all(type(found) is str for found in versions)
    with pytest.raises(InvalidConfig, match="not a version"):
        saver.get_next_version("x.1", None)


def test_versions_that_are_numbers(saver: Called) -> None:
    """As other savers count them; a value is found under the same number again."""
    for number in (1, 2.5, 2**62, 12345678.5, 3.0):
        stored = put(saver, f"t{number}", {"a": [number]}, versions={"a": number})
        assert values_of(saver, stored) == {"a": [number]}
        found = saver.get_tuple(stored).checkpoint["channel_versions"]
        assert exact(found) == exact({"a": number})
    # One that is given as an equal number is the same version, which is kept under its own text.
    for number, new in ((1, 1.0), (2.0, 2), (2**62, float(2**62)), (1, True)):
        found = checkpoint({"a": [number], "gone": 1}, {"a": number, "gone": number})
        stored = saver.put(config("equal"), found, {}, {"a": new, "gone": new})
        assert values_of(saver, stored)["a"] == [number]
    for bad in (2**63, 1e16, float("nan"), True):
        with pytest.raises(InvalidConfig, match="channel version"):
            put(saver, "t", {"a": [1]}, versions={"a": bad})


def test_an_encrypting_serde_switched_on_for_a_thread_with_readable_values(
    backend: Backend, ready_url: URL
) -> None:
    """Old checkpoints stay readable; put from then on, the unchanged values are blobs too."""
    values = {"small": "SECRET", "big": ["x"], "none": None}
    with called(backend, ready_url) as saver:
        first = put(saver, "t", values)
    encrypting = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with called(backend, ready_url, serde=encrypting) as saver:
        assert values_of(saver, first) == values
        second = put(saver, "t", {**values, "new": "SECRET"}, first, new=["new"])
        assert values_of(saver, second) == {**values, "new": "SECRET"}
        assert "SECRET" not in str(document_of(ready_url, second))
        third = put(saver, "t", {**values, "new": "SECRET"}, second, new=[])
        assert values_of(saver, third) == {**values, "new": "SECRET"}


def document_of(url: URL, at: Any) -> Any:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.scalar(
            text("SELECT checkpoint FROM checkpoints WHERE checkpoint_id = :id"), {"id": id_of(at)}
        )
    engine.dispose()
    return found


# --- damage ---


def test_a_changed_payload_is_found_and_named(saver: Called, plain: Engine) -> None:
    stored = put(saver, "t", {"a": ["SECRET"], "b": [1]}, ns="sub")
    fine = put(saver, "other", {"a": [1]})
    found = saver.get_tuple(stored).checkpoint["channel_versions"]["a"]
    of_a = "UPDATE checkpoint_blobs SET blob = :blob WHERE channel = 'a' AND thread_id = 't'"
    change(plain, of_a, blob=b"\x91\xa6PUBLIC")
    for call in (lambda: saver.get_tuple(stored), lambda: list(saver.list(stored))):
        with pytest.raises(CorruptCheckpoint) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        for part in ("checkpoint_blobs", "'t'", "'sub'", "'a'", found, "digest"):
            assert part in str(caught.value)
        assert_nothing_told(caught.value, "SECRET", "PUBLIC")
    assert values_of(saver, fine) == {"a": [1]}
    child = put(saver, "t", {"n": 1}, parent=None, ns="sub", new=["n"], versions={"n": version()})
    assert values_of(saver, child) == {"n": 1}


@pytest.mark.parametrize("column", ["checkpoint", "metadata"])
def test_a_row_that_holds_no_mapping_is_named(saver: Called, plain: Engine, column: str) -> None:
    first = put(saver, "t", {"a": [1]})
    stored = put(saver, "t", {"a": [2]}, first)
    is_text = plain.dialect.name == "sqlite"
    text = "{SECRET" if is_text and column == "metadata" else "[]"
    value = ":text" if is_text else "CAST(:text AS JSONB)"
    of_it = f"UPDATE checkpoints SET {column} = {value} WHERE checkpoint_id = :id"
    change(plain, of_it, text=text, id=id_of(stored))
    calls = (
        lambda: saver.get_tuple(stored),
        lambda: list(saver.list(config("t"))),
        lambda: saver.prune(["t"]),
    )
    for call in calls:
        with pytest.raises(CorruptCheckpoint, match=f"^checkpoints .*'{id_of(stored)}'") as caught:
            call()
        assert_nothing_told(caught.value, "SECRET")
    assert values_of(saver, first) == {"a": [1]}


@pytest.mark.parametrize("column", ["checkpoint", "metadata"])
def test_a_row_that_holds_no_json_is_told(saver: Called, plain: Engine, column: str) -> None:
    """Also where SQLite is the one that stumbles over it, which does not say in which row."""
    if plain.dialect.name != "sqlite":
        return  # Postgres does not store it
    first = put(saver, "t", {"a": [1]})
    stored = put(saver, "t", {"a": [2]}, first)
    last = put(saver, "t", {"a": [3]}, stored)
    of_it = f"UPDATE checkpoints SET {column} = :text WHERE checkpoint_id = :id"
    change(plain, of_it, text='{"SECRET', id=id_of(stored))
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: saver.get_tuple(stored),
        "list": lambda: list(saver.list(config("t"))),
        "prune": lambda: saver.prune(["t"]),
        "copy": lambda: saver.copy_thread("t", "u", latest_only=True),
    }
    if column == "metadata":
        calls["filter"] = lambda: list(saver.list(config("t"), filter={"step": 9}))
    else:
        channels = ["a"]
        calls["walk"] = lambda: saver.get_delta_channel_history(config=last, channels=channels)
    for call in calls.values():
        with pytest.raises(
            CorruptCheckpoint, match=rf"'{id_of(stored)}'|`ckpt-orm verify`"
        ) as caught:
            call()
        assert_nothing_told(caught.value, "SECRET")
    assert values_of(saver, last) == {"a": [3]}
    assert [fault.key[2] for fault in saver.verify().faults] == [id_of(stored)]


def test_a_payload_without_a_digest_is_read(saver: Called, plain: Engine) -> None:
    stored = put(saver, "t", {"a": ["x"]})
    change(plain, "UPDATE checkpoint_blobs SET digest = NULL")
    assert values_of(saver, stored) == {"a": ["x"]}
    change(plain, "UPDATE checkpoint_blobs SET blob = :blob", blob=b"\xc1 SECRET")
    with pytest.raises(CorruptCheckpoint, match="checkpoint_blobs"):
        saver.get_tuple(stored)


def test_a_write_that_cannot_be_read_is_named(saver: Called, plain: Engine) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [("c", "SECRET")], "task1")
    change(plain, "UPDATE checkpoint_writes SET type = 'unheard-of'")
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint_writes.*'t'.*task1") as caught:
        saver.get_tuple(stored)
    assert_nothing_told(caught.value, "SECRET")


def assert_nothing_told(error: BaseException, *secrets: str) -> None:
    """Neither in the message nor in what is logged of it, causes included."""
    told = [*traceback.format_exception(error, limit=0), repr(error), str(error.args)]
    for secret in secrets:
        assert secret not in "".join(told)


def test_a_refused_statement_does_not_tell_what_was_to_be_stored(
    saver: Called, plain: Engine
) -> None:
    secrets = {"small": "SECRET1", "big": ["SECRET2"]}
    stored = put(saver, "t", {})
    run(plain, "ALTER TABLE checkpoint_blobs RENAME TO moved")
    try:
        with pytest.raises(CheckpointError) as caught:
            put(saver, "t", secrets, metadata={"user": "SECRET3"})
    finally:
        run(plain, "ALTER TABLE moved RENAME TO checkpoint_blobs")
    assert_nothing_told(caught.value, "SECRET")
    assert [item.config for item in saver.list(None)] == [stored]


# --- setting up ---


def test_before_it_is_set_up(backend: Backend, backend_url: URL) -> None:
    """Every method says what to do; a set-up by another connection is seen at the next call."""
    loop = asyncio.new_event_loop() if backend.is_async else None
    with engine_of(backend, backend_url, loop) as engine:
        saver = Called(SQLAlchemySaver(engine), loop, engine)
        at = config("t", id="1")
        calls: list[Callable[[], Any]] = [
            lambda: saver.get_tuple(at),
            lambda: saver.get(at),
            lambda: list(saver.list(None)),
            lambda: saver.put(config("t"), checkpoint({}), {}, {}),
            lambda: saver.put_writes(at, [("c", 1)], "task"),
            lambda: saver.delete_thread("t"),
            lambda: saver.delete_for_runs(["r"]),
            lambda: saver.copy_thread("t", "u"),
            lambda: saver.prune(["t"]),
            lambda: saver.get_delta_channel_history(config=at, channels=["c"]),
        ]
        for call in calls:
            with pytest.raises(SchemaNotReady, match="ckpt-orm upgrade"):
                call()
        with SQLAlchemySaver.from_url(backend_url) as other:
            other.setup()
        for call in calls:
            call()
        saver.setup()
        saver.setup()
    if loop is not None:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


# --- deleting ---

THREADS = ("t1", "t10", "t%", "t_", "T1", "t", "T%", "")


def fill(saver: Called, thread: str) -> None:
    """A root and two subgraph namespaces, each with a blob, an inlined value and writes."""
    for ns in ("", "sub:1", "sub:1|deep:2"):
        first = put(saver, thread, {"a": [thread, ns], "n": 1}, ns=ns)
        second = put(saver, thread, {"a": [thread, ns], "n": 2}, first, ns=ns, new=["n"])
        saver.put_writes(second, [("c", [thread]), ("__error__", "e")], "task")


def everything(engine: Engine, *threads: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    return {(table, t): rows_of(engine, table, thread_id=t) for table in TABLES for t in threads}


def test_deleting_a_thread_touches_no_other(saver: Called, plain: Engine) -> None:
    for thread in THREADS:
        fill(saver, thread)
    left = list(THREADS)
    for victim in ("t1", "t%", "t_", "T1"):
        left.remove(victim)
        before = everything(plain, *left)
        assert all(before.values())
        saver.delete_thread(victim)
        saver.delete_thread(victim)
        assert everything(plain, *left) == before
        assert not any(everything(plain, victim).values())
    saver.delete_thread("never there")
    assert everything(plain, *left) == before


def test_writes_after_a_thread_was_deleted_are_kept(saver: Called) -> None:
    """As those of a checkpoint that is still to come; they are no checkpoint by themselves."""
    stored = put(saver, "t", {"a": [1]})
    saver.delete_thread("t")
    saver.put_writes(stored, [("c", 1)], "task")
    assert saver.get_tuple(stored) is None
    assert list(saver.list(None)) == []
    saver.delete_thread("t")
    again = put(saver, "t", {"a": [1]}, id=id_of(stored))
    assert saver.get_tuple(again).pending_writes == []
