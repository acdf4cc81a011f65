"""What there is, told without reading state: threads by the page, counts, existence."""

from __future__ import annotations

import json
import operator
import re
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any
from uuid import UUID

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import config, id_of, put
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from servers import execute
from sqlalchemy import URL, Engine, event, text
from typing_extensions import TypedDict

from ckpt_orm import InvalidConfig, ThreadSummary
from ckpt_orm.policies import UUID_EPOCH, stored_at

#: One backend of each dialect and colour, where the statement and not the driver is in question.
FOUR = named([b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")])
SYNC = named([b for b in BACKENDS if b.name in ("sqlite", "psycopg")])


def names(saver: Called, **options: Any) -> list[str]:
    return [found.thread_id for found in saver.threads(**options)]


def test_a_thread_is_told_by_the_root_graphs_newest_checkpoint(saver: Called) -> None:
    first = put(saver, "t", {"log": [1]}, metadata={"source": "input", "step": -1})
    root = put(saver, "t", {"log": [1, 2]}, first, metadata={"source": "loop", "step": 0})
    put(saver, "t", {"log": [3]}, metadata={"source": "loop", "step": 7}, ns="child:1")
    put(saver, "u", {"log": [3]}, metadata={"source": "update", "step": 2}, ns="only:1")
    (told, other) = saver.threads()
    assert told.updated_at is not None
    assert abs(datetime.now(timezone.utc) - told.updated_at) < timedelta(minutes=1)
    assert told == ThreadSummary(
        thread_id="t",
        namespaces=("", "child:1"),
        checkpoints=3,
        checkpoint_id=id_of(root),
        updated_at=told.updated_at,
        step=0,
        source="loop",
        interrupts=(),
    )
    assert (other.namespaces, other.step, other.source) == (("only:1",), 2, "update")


def test_a_time_is_exact_and_in_utc(backend: Backend, backend_url: URL) -> None:
    """Whatever zone the sessions are in; a copy on SQLite has the second of its row."""
    if backend.database == "postgres":
        zone = f"ALTER DATABASE {backend_url.database} SET timezone TO 'Asia/Kolkata'"
        execute(backend_url, zone)
    with called(backend, backend_url) as saver:
        before = datetime.now(timezone.utc)
        put(saver, "t", {"n": 1})
        between = datetime.now(timezone.utc)
        (told,) = saver.threads()
        assert before < told.updated_at < between
        assert type(told.updated_at) is datetime
        assert told.updated_at.tzinfo is timezone.utc

        time.sleep(1)
        saver.copy_thread("t", "copy")
        copied = next(iter(saver.threads())).updated_at
        second = timedelta(seconds=1 if backend.database == "sqlite" else 0)
        assert between - second < copied < datetime.now(timezone.utc)
        assert copied.tzinfo is timezone.utc
        assert (copied.microsecond == 0) == (backend.database == "sqlite")


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ("2026-01-02 03:04:05", "2026-01-02T03:04:05.250000+00:00"),
        ("2026-01-02 03:04:05.500000", "2026-01-02T03:04:05.500000+00:00"),
        ("2026-01-02 03:04:06", "2026-01-02T03:04:06+00:00"),
        ("2026-01-02 03:04:06.500000", "2026-01-02T03:04:06.500000+00:00"),
        ("2026-01-02 08:34:05.700000+05:30", "2026-01-02T03:04:05.700000+00:00"),
        (None, "2026-01-02T03:04:05.250000+00:00"),
    ],
)
def test_where_in_its_second_a_row_was_stored(created: str | None, expected: str) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=timezone.utc)
    ticks = int(at.timestamp() * 10**7) + UUID_EPOCH
    high, low = ticks >> 12, ticks & 0xFFF
    id = str(UUID(int=high << 80 | 6 << 76 | low << 64 | 2 << 62))
    found = stored_at(id, created and datetime.fromisoformat(created))
    assert found is not None
    assert found.isoformat() == expected


def test_pages_agree_with_the_list_of_everything(saver: Called) -> None:
    """In the order of code points, whatever a locale thinks, and over more than a page."""
    odd = ["t1", "t10", "T1", "t_", "t%", "ä", "z", "_", "\N{GRINNING FACE}", "-"]
    for thread in [*odd, *(f"thread-{number}" for number in range(55))]:
        put(saver, thread, {"n": 1}, metadata={"step": 0, "of": thread[0]})
    for number in range(3):
        put(saver, "t1", {"n": number}, ns=f"sub:{number}", metadata={"of": "sub"})
    counts = Counter(found.config["configurable"]["thread_id"] for found in saver.list(None))
    everything = sorted(counts)
    assert {told.thread_id: told.checkpoints for told in saver.threads()} == counts
    assert names(saver) == everything
    assert names(saver, limit=0) == []
    assert names(saver, limit=53) == everything[:53]
    assert names(saver, after="t1", limit=2) == [name for name in everything if name > "t1"][:2]
    assert names(saver, after="nowhere in the middle") == [
        name for name in everything if name > "nowhere in the middle"
    ]
    assert names(saver, filter={"of": "t"}) == [name for name in everything if name[0] == "t"]
    assert names(saver, filter={"of": "sub"}) == ["t1"]
    assert names(saver, filter={"of": "t"}, after="thread-50", limit=3) == [
        "thread-51",
        "thread-52",
        "thread-53",
    ]
    assert names(saver, filter={"of": "nobody"}) == []


def test_counts_are_those_of_the_list(saver: Called) -> None:
    first = put(saver, "t", {"n": 1}, metadata={"step": 0})
    second = put(saver, "t", {"n": 2}, first, metadata={"step": 1})
    put(saver, "t", {"n": 3}, ns="child", metadata={"step": 1})
    put(saver, "u", {"n": 4}, metadata={"step": 1})
    for of in (
        None,
        config("t", ns=None),
        config("t"),
        config("t", ns="child"),
        first,
        config("x"),
    ):
        for filter in (None, {"step": 1}, {"step": 5}):
            for before in (None, second):
                found = list(saver.list(of, filter=filter, before=before))
                assert saver.count(of, filter=filter, before=before) == len(found)
                assert saver.exists(of, filter=filter, before=before) is bool(found)
    assert saver.count() == 4
    assert saver.exists()


@FOUR
def test_what_cannot_be_asked(saver: Called) -> None:
    for wrong in ({"limit": -1}, {"after": "a\x00"}, {"filter": {"k": lambda: None}}):
        with pytest.raises(InvalidConfig):
            list(saver.threads(**wrong))
    with pytest.raises(InvalidConfig):
        saver.count({"configurable": {}})
    assert list(saver.threads()) == []
    assert not saver.exists()


class State(TypedDict):
    done: Annotated[list[str], operator.add]


@FOUR
def test_what_a_thread_waits_for(saver: Called) -> None:
    """What `get_state` says of the tasks that have not finished."""

    def ask(name: str) -> Any:
        return lambda state: {"done": [f"{name} {interrupt({'ask': name})}"]}

    inner = StateGraph(State).add_node("deep", ask("deep")).add_edge(START, "deep").compile()
    builder = StateGraph(State)
    for name, node in (("left", ask("left")), ("right", ask("right")), ("inner", inner)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=saver.saver)
    saver.run(graph, {"done": []}, config("t"))
    saver.run(
        StateGraph(State)
        .add_node("n", lambda s: s)
        .add_edge(START, "n")
        .compile(checkpointer=saver.saver),
        {"done": []},
        config("u"),
    )
    asked, quiet = saver.threads()
    assert quiet.interrupts == ()
    assert sorted(one.value["ask"] for one in asked.interrupts) == ["deep", "left", "right"]
    assert asked.namespaces[0] == ""
    assert asked.namespaces[1].startswith("inner:")
    (left,) = (one for one in asked.interrupts if one.value["ask"] == "left")
    saver.run(graph, Command(resume={left.id: "yes"}), config("t"))
    asked, _ = saver.threads()
    assert sorted(one.value["ask"] for one in asked.interrupts) == ["deep", "right"]
    answers = {one.id: "no" for one in asked.interrupts}
    done = saver.run(graph, Command(resume=answers), config("t"))
    assert sorted(done["done"]) == ["deep no", "left yes", "right no"]
    asked, _ = saver.threads()
    assert asked.interrupts == ()


class Unreadable(JsonPlusSerializer):
    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise AssertionError("state was read")


@FOUR
def test_no_state_is_read(saver: Called) -> None:
    """Neither by the saver nor by the database, whose documents hold the small values."""
    put(saver, "t", {"log": ["secret"], "small": 1})
    saver.saver.serde = Unreadable()
    executed: list[str] = []
    event.listen(saver.engine, "before_cursor_execute", lambda *args: executed.append(args[2]))
    assert [told.checkpoints for told in saver.threads(filter={"step": 0})] == [1]
    assert saver.count(config("t"), filter={"step": 0}) == 1
    asked = [statement for statement in executed if "ckpt_orm_alembic_version" not in statement]
    assert len(asked) == 2
    for statement in asked:
        assert "checkpoint_blobs" not in statement
        assert not re.search(r"\.checkpoint\b", statement)


@FOUR
def test_rows_of_which_no_time_is_known(saver: Called) -> None:
    """As an adopted database holds them: then a uuid6 tells when it was made."""
    put(saver, "t", {"n": 1}, id="1ef4f797-8335-6428-8001-8a1503f9b875")
    put(saver, "u", {"n": 1}, id="7")
    forget = text("UPDATE checkpoints SET created_at = NULL")

    async def forgotten() -> None:
        async with saver.given.begin() as connection:  # type: ignore[union-attr]
            await connection.execute(forget)

    if isinstance(saver.given, Engine):
        with saver.given.begin() as connection:
            connection.execute(forget)
    else:
        assert saver.loop is not None
        saver.loop.run_until_complete(forgotten())
    told, unknown = saver.threads()
    assert (told.updated_at.year, told.updated_at.tzinfo) == (2024, timezone.utc)
    assert unknown.updated_at is None


MANY = {
    "sqlite": (
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata) "
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 19999) "
        "SELECT 'thread' || (i / 40), '', 'id' || i, :document, '{\"step\": 1}' FROM n",
        "ANALYZE",
    ),
    "postgresql": (
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata) "
        "SELECT 'thread' || (i / 40), '', 'id' || i, CAST(:document AS JSONB), "
        "'{\"step\": 1}' FROM generate_series(0, 19999) i",
        "ANALYZE checkpoints",
    ),
}
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}


@SYNC
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"after": "thread300"},
        {"filter": {"step": 1}},
        {"filter": {"step": 1}, "after": "thread300"},
    ],
)
def test_a_page_is_found_by_index(
    backend: Backend, backend_url: URL, options: dict[str, Any]
) -> None:
    with called(backend, backend_url) as saver:
        dialect = saver.engine.dialect.name
        with saver.engine.begin() as connection:
            for statement in MANY[dialect]:
                connection.execute(text(statement), {"document": json.dumps("x" * 500)})
        asked: list[tuple[Any, Any]] = []
        event.listen(saver.engine, "before_cursor_execute", lambda *args: asked.append(args[2:4]))
        found = list(saver.threads(limit=20, **options))
        assert [told.checkpoints for told in found] == [40] * 20
        statement, params = asked[-1]
        with saver.engine.connect() as connection:
            if dialect == "sqlite":
                connection.connection.create_function("ckpt_orm_contains", 2, lambda *args: 1)
            rows = connection.exec_driver_sql(EXPLAIN[dialect] + statement, params).all()
        plan = "\n".join(str(row) for row in rows)
        assert "Seq Scan" not in plan
        assert not re.search(
            r"SCAN (checkpoints|checkpoint_writes|first|last|other)\b(?! USING)", plan
        )
        assert re.search("checkpoints_pkey|sqlite_autoindex_checkpoints_1", plan)
