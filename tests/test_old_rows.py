"""Rows that earlier releases of LangGraph's own saver wrote, inserted as they lie there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from backends import Called
from builders import config
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send
from sqlalchemy import URL, Connection, create_engine, text

SERDE = JsonPlusSerializer()
TASKS = "__pregel_tasks"


class Rows:
    """Inserts rows with plain SQL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def checkpoint(
        self,
        thread: str,
        id: str,
        document: dict[str, Any],
        parent: str | None = None,
        metadata: dict[str, Any] | None = None,
        ns: str = "",
    ) -> None:
        self._insert(
            "checkpoints",
            thread_id=thread,
            checkpoint_ns=ns,
            checkpoint_id=id,
            parent_checkpoint_id=parent,
            type=None,
            checkpoint={"id": id, "ts": "2024-01-01T00:00:00+00:00", **document},
            metadata=metadata or {},
        )

    def blob(self, thread: str, channel: str, version: str, *value: Any) -> None:
        tag, payload = SERDE.dumps_typed(*value) if value else ("empty", None)
        self._insert(
            "checkpoint_blobs",
            thread_id=thread,
            checkpoint_ns="",
            channel=channel,
            version=version,
            type=tag,
            blob=payload,
        )

    def write(self, thread: str, id: str, task: str, idx: int, channel: str, value: Any) -> None:
        tag, payload = SERDE.dumps_typed(value)
        self._insert(
            "checkpoint_writes",
            thread_id=thread,
            checkpoint_ns="",
            checkpoint_id=id,
            task_id=task,
            idx=idx,
            channel=channel,
            type=tag,
            blob=payload,
        )

    def _insert(self, table: str, **columns: Any) -> None:
        is_json = [name for name, value in columns.items() if isinstance(value, dict)]
        json_type = "JSONB" if self._connection.dialect.name == "postgresql" else "TEXT"
        values = [
            f"CAST(:{name} AS {json_type})" if name in is_json else f":{name}" for name in columns
        ]
        self._connection.execute(
            text(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)})"),
            {**columns, **{name: json.dumps(columns[name]) for name in is_json}},
        )


@pytest.fixture
def rows(ready_url: URL) -> Iterator[Rows]:
    engine = create_engine(ready_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield Rows(connection)
    engine.dispose()


def version(number: int) -> str:
    return f"{number:032d}.{0.5:016}"


@pytest.mark.parametrize("v", [1, 2, 3])
def test_a_document_without_values(saver: Called, rows: Rows, v: int) -> None:
    """All values are blobs, also the small ones, keyed by the text of an integer version."""
    document = {
        "v": v,
        "channel_versions": {"a": 2, "b": 10, "gone": 3, "lost": 4},
        "versions_seen": {"node": {"a": 1}},
        "pending_sends": [],
    }
    metadata = {"step": 1, "source": "loop", "writes": {"node": {"a": [1]}}}
    rows.checkpoint("t", "1", document, metadata=metadata)
    rows.blob("t", "a", "1", "older")
    rows.blob("t", "a", "2", "x")
    rows.blob("t", "b", "10", [1, 2])
    rows.blob("t", "gone", "3")
    found = saver.get_tuple(config("t"))
    assert found.checkpoint == {
        **document,
        "id": "1",
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": {"a": "x", "b": [1, 2]},
    }
    assert found.metadata == metadata
    assert found.parent_config is None
    assert list(saver.list(config("t"))) == [found]
    assert list(saver.list(None, filter={"writes": {"node": {}}})) == [found]


def test_sends_kept_with_the_parent(saver: Called, rows: Rows) -> None:
    """Of each row's own thread and parent, in the order of their tasks, under the last version."""
    for number, thread in enumerate(("t1", "t2", "t10")):
        sends = [Send(f"{thread} node", position) for position in range(12)]
        rows.checkpoint(thread, "1", {"v": 3, "channel_versions": {"a": 1}, "versions_seen": {}})
        rows.checkpoint(
            thread,
            "2",
            {"v": 3, "channel_versions": {"a": 1, "b": 7 + number}, "versions_seen": {}},
            parent="1",
        )
        for position in (11, *range(11)):
            rows.write(thread, "1", "task", position, TASKS, sends[position])
        rows.write(thread, "1", "other", 0, "a", "not a send")
        rows.write(thread, "2", "task", 0, TASKS, Send("of the next superstep", 0))
        found = saver.get_tuple(config(thread))
        assert found.checkpoint["channel_values"] == {TASKS: sends}
        assert found.checkpoint["channel_versions"] == {"a": 1, "b": 7 + number, TASKS: 7 + number}
        assert [value for _, _, value in found.pending_writes] == [Send("of the next superstep", 0)]
    one_by_one = [
        saver.get_tuple(config(thread, id=id)) for id in "21" for thread in ("t1", "t10", "t2")
    ]
    assert list(saver.list(None)) == one_by_one
    assert TASKS not in one_by_one[3].checkpoint["channel_values"]


@pytest.mark.parametrize("v", [None, "3", [1], {"a": 1}], ids=repr)
def test_a_format_that_is_no_number_is_no_old_one(saver: Called, rows: Rows, v: Any) -> None:
    """Whoever prunes or copies a thread is not kept from it by such a checkpoint."""
    document = {"v": v, "channel_versions": {"a": 1}, "versions_seen": {}}
    rows.checkpoint("t", "1", {**document, "v": 3}, metadata={"run_id": "r"})
    rows.checkpoint("t", "2", document, parent="1")
    rows.write("t", "1", "task", 0, TASKS, Send("node", 1))
    found = saver.get_tuple(config("t"))
    assert found.checkpoint["v"] == v
    assert found.checkpoint["channel_values"] == {}
    assert found.checkpoint["channel_versions"] == {"a": 1}
    assert next(iter(saver.list(config("t")))) == found
    saver.copy_thread("t", "u", latest_only=True)
    saver.delete_for_runs(["r"])
    saver.prune(["t"])
    assert [one.config["configurable"]["checkpoint_id"] for one in saver.list(config("t"))] == ["2"]
    assert saver.get_tuple(config("u")).checkpoint == found.checkpoint


def test_sends_of_the_current_format_stay_where_they_are(saver: Called, rows: Rows) -> None:
    rows.checkpoint("t", "1", {"v": 4, "channel_versions": {}, "versions_seen": {}})
    rows.checkpoint("t", "2", {"v": 4, "channel_versions": {}, "versions_seen": {}}, parent="1")
    rows.write("t", "1", "task", 0, TASKS, Send("node", 1))
    assert saver.get_tuple(config("t")).checkpoint["channel_values"] == {}
    first = saver.get_tuple(config("t", id="1"))
    assert first.pending_writes == [("task", TASKS, Send("node", 1))]


@pytest.mark.parametrize(
    ("versions", "greatest"),
    [
        ({"a": 2, "b": 10}, 10),
        ({"a": version(9), "b": version(10)}, version(10)),
        ({"a": 9, "b": version(10)}, version(10)),
        ({"a": 11, "b": version(10), "c": 2.5}, 11),
        ({"a": 1.5, "b": 1}, 1.5),
    ],
)
def test_the_version_of_sends_is_the_greatest_of_any_type(
    saver: Called, rows: Rows, versions: dict[str, Any], greatest: Any
) -> None:
    rows.checkpoint("t", "1", {"v": 1, "channel_versions": {}, "versions_seen": {}})
    document = {"v": 1, "channel_versions": versions, "versions_seen": {}}
    rows.checkpoint("t", "2", document, parent="1")
    rows.write("t", "1", "task", 0, TASKS, Send("node", 1))
    found = saver.get_tuple(config("t"))
    assert found.checkpoint["channel_versions"] == {**versions, TASKS: greatest}
    assert saver.get_next_version(greatest, None) > saver.get_next_version(None, None)


def test_sends_without_any_version(saver: Called, rows: Rows) -> None:
    rows.checkpoint("t", "1", {"v": 1, "channel_versions": {}, "versions_seen": {}})
    rows.checkpoint("t", "2", {"v": 1, "channel_versions": {}, "versions_seen": {}}, parent="1")
    rows.write("t", "1", "task", 0, TASKS, Send("node", 1))
    found = saver.get_tuple(config("t")).checkpoint
    assert found["channel_values"] == {TASKS: [Send("node", 1)]}
    assert list(found["channel_versions"]) == [TASKS]


def test_small_values_in_the_document(saver: Called, rows: Rows) -> None:
    """Format v4 as the official saver writes it: a blob of the same channel wins."""
    values = {"a": "x", "n": 5, "none": None, "delta": True}
    document = {
        "v": 4,
        "channel_versions": {name: version(1) for name in ("a", "n", "none", "delta", "b")},
        "versions_seen": {},
        "updated_channels": ["a"],
    }
    rows.checkpoint("t", "1", {**document, "channel_values": values})
    rows.blob("t", "b", version(1), ["big"])
    rows.blob("t", "delta", version(1), ["snapshot"])
    found = saver.get_tuple(config("t")).checkpoint
    assert found["channel_values"] == {**values, "b": ["big"], "delta": ["snapshot"]}
    assert found["updated_channels"] == ["a"]


def test_an_old_thread_is_continued(saver: Called, rows: Rows) -> None:
    """What is put on top refers to the old blobs by their versions, and finds them."""
    rows.checkpoint("t", "1", {"v": 1, "channel_versions": {"a": 1, "f": 1.5}, "versions_seen": {}})
    rows.blob("t", "a", "1", ["old"])
    rows.blob("t", "f", "1.5", ["float"])
    old = saver.get_tuple(config("t"))
    new = version(2)
    document = {
        **old.checkpoint,
        "v": 4,
        "id": "2",
        "channel_values": {"a": ["old"], "f": ["float"], "b": ["new"]},
        "channel_versions": {"a": 1, "f": 1.5, "b": new},
    }
    stored = saver.put(old.config, document, {}, {"b": new})
    found = saver.get_tuple(stored)
    assert found.checkpoint == document
    assert found.parent_config == old.config
