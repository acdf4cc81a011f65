"""`list`: its order, its limits, what it costs, and that nothing is held while it hands out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from backends import ASYNC_BACKENDS, BACKENDS, Backend, Called, called, named
from builders import config, id_of, put, version
from langgraph.checkpoint.postgres import PostgresSaver
from servers import postgres_database
from sqlalchemy import URL, create_engine, event, text
from sqlalchemy.pool import NullPool

from ckpt_orm import InvalidConfig

ONE_CONNECTION = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}


@pytest.fixture
def alone(backend: Backend, ready_url: URL) -> Iterator[Called]:
    """A saver whose pool has a single connection."""
    with called(backend, ready_url, ONE_CONNECTION) as found:
        yield found


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 5 checkpoints, whose edges need no hundreds of rows."""
    monkeypatch.setattr("ckpt_orm.saver.PAGE", 5)


def fill(saver: Called, count: int, thread: str = "t", ns: str = "") -> list[str]:
    """Checkpoints, each with a blob of its own and one that all share; the newest id first."""
    shared, ids = version(), []
    for number in range(count):
        values = {"shared": ["s"], "own": [number]}
        new = ["own"] if ids else ["shared", "own"]
        versions = {"shared": shared, "own": version()}
        ids.append(id_of(put(saver, thread, values, ns=ns, new=new, versions=versions)))
    return ids[::-1]


def ids_of(items: Any) -> list[str]:
    return [id_of(item.config) for item in items]


@contextmanager
def statements(saver: Called) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    seen: list[str] = []

    def executed(_1: Any, _2: Any, statement: str, *_3: Any) -> None:
        seen.append(statement)

    event.listen(saver.engine, "before_cursor_execute", executed)
    try:
        yield seen
    finally:
        event.remove(saver.engine, "before_cursor_execute", executed)


@pytest.mark.usefixtures("short_pages")
def test_limits(saver: Called) -> None:
    """Also those at the edges of a page."""
    ids = fill(saver, 12)
    for limit in (None, 0, 1, 4, 5, 6, 9, 10, 11, 12, 13, 1000):
        assert ids_of(saver.list(config("t"), limit=limit)) == ids[:limit], limit
    for limit in (-1, -100):
        with pytest.raises(InvalidConfig, match="limit is -1"):
            list(saver.list(config("t"), limit=limit))
    with statements(saver) as seen:
        assert list(saver.list(config("t"), limit=0)) == []
    assert seen == []


def test_before(saver: Called) -> None:
    ids = fill(saver, 8)
    other = fill(saver, 3, ns="sub")
    at = config("t", id=ids[3])
    assert ids_of(saver.list(config("t"), before=at)) == ids[4:]
    assert ids_of(saver.list(config("t"), before=at, limit=2)) == ids[4:6]
    assert ids_of(saver.list(config("t"), before=at, limit=0)) == []
    assert ids_of(saver.list(config("t"), before=config("t", "sub", other[-1]))) == ids
    assert ids_of(saver.list(config("t", "sub"), before=config("t", id=ids[0]))) == []
    only_the_id = {"configurable": {"checkpoint_id": ids[3]}}
    assert ids_of(saver.list(config("t"), before=only_the_id)) == ids[4:]
    nothing: dict[str, Any]
    for nothing in ({"checkpoint_id": None}, {}, {"checkpoint_id": ""}):
        assert ids_of(saver.list(config("t"), before={"configurable": nothing})) == ids


def test_which_namespaces_and_threads(saver: Called) -> None:
    root, sub, other = fill(saver, 2), fill(saver, 2, ns="sub"), fill(saver, 2, "other")
    assert ids_of(saver.list(config("t", ns=None))) == sub + root
    assert ids_of(saver.list(config("t", ns=""))) == root
    assert ids_of(saver.list(config("t", ns="sub"))) == sub
    assert ids_of(saver.list(None)) == other + sub + root
    assert ids_of(saver.list(None, limit=3)) == other + sub[:1]
    assert ids_of(saver.list(config("t", id=root[1]))) == [root[1]]
    assert ids_of(saver.list(config("t", "sub", id=root[1]))) == []
    assert ids_of(saver.list(config("missing"))) == []


@pytest.mark.usefixtures("short_pages")
def test_one_id_in_many_threads_and_namespaces(saver: Called) -> None:
    """More than a page of them: the key of a page's end is more than an id."""
    places = sorted((f"t{n % 4}", f"ns{n // 4}") for n in range(23))
    for thread, ns in places:
        put(saver, thread, {"own": [thread, ns]}, ns=ns, id="same", metadata={"k": 1})
    listed = list(saver.list(None, filter={"k": 1}))
    keys = [item.config["configurable"] for item in listed]
    assert [(key["thread_id"], key["checkpoint_ns"]) for key in keys] == places
    assert [tuple(item.checkpoint["channel_values"]["own"]) for item in listed] == places


def test_a_page_costs_a_few_statements(saver: Called) -> None:
    """Here with pages of the size they have."""
    ids = fill(saver, 110)
    for limit, pages in ((50, 1), (110, 3), (None, 3)):
        with statements(saver) as seen:
            found = list(saver.list(config("t"), limit=limit))
        assert ids_of(found) == ids[:limit]
        assert [item.checkpoint["channel_values"]["shared"] for item in found] == [["s"]] * len(
            found
        )
        assert len([s for s in seen if not s.startswith(("BEGIN", "COMMIT"))]) <= 4 * pages


def test_a_value_that_checkpoints_share_is_one_object_for_each(saver: Called) -> None:
    fill(saver, 3)
    first, *others = saver.list(config("t"))
    first.checkpoint["channel_values"]["shared"].append("changed")
    assert [item.checkpoint["channel_values"]["shared"] for item in others] == [["s"]] * 2


@pytest.mark.usefixtures("short_pages")
def test_one_connection_is_enough_inside_the_loop(alone: Called) -> None:
    ids = fill(alone, 12)
    seen = []
    for item in alone.list(config("t")):
        assert alone.checked_out() == 0
        assert alone.get_tuple(item.config) == item
        put(alone, "other", {"copy": [item.checkpoint["id"]]}, metadata={})
        alone.put_writes(item.config, [("d", 1)], "inside")
        seen.append(id_of(item.config))
    assert seen == ids
    assert len(list(alone.list(config("other")))) == 12


@pytest.mark.usefixtures("short_pages")
def test_deleting_meanwhile(alone: Called) -> None:
    fill(alone, 8)
    seen = 0
    for _ in alone.list(config("t")):
        seen += 1
        alone.delete_thread("t")
    assert seen == 5
    assert list(alone.list(config("t"))) == []


@pytest.mark.usefixtures("short_pages")
def test_storing_meanwhile_repeats_and_skips_nothing(saver: Called) -> None:
    ids = fill(saver, 12)
    seen = []
    for item in saver.list(config("t")):
        put(saver, "t", {"more": [1]})
        seen.append(id_of(item.config))
    assert seen == ids


@pytest.mark.usefixtures("short_pages")
def test_a_generator_is_left_after_one_item(alone: Called) -> None:
    ids = fill(alone, 8)
    for item in alone.list(config("t")):
        assert id_of(item.config) == ids[0]
        break
    assert alone.checked_out() == 0
    put(alone, "t", {"after": [1]})
    gc.collect()
    assert alone.checked_out() == 0


@pytest.mark.usefixtures("short_pages")
@named(ASYNC_BACKENDS)
def test_an_async_generator_is_left_to_the_collector(alone: Called) -> None:
    """As replays do. The loop closes it, in a task of its own, at some time."""
    ids = fill(alone, 8)

    async def first() -> Any:
        async for item in alone.saver.alist(config("t")):
            return item

    async def main() -> None:
        found = [await first() for _ in range(3)]
        assert ids_of(found) == ids[:1] * 3
        assert alone.checked_out() == 0
        left = alone.saver.alist(config("t"))
        await anext(left)
        del left
        gc.collect()
        await alone.saver.aput_writes(found[0].config, [("c", 1)], "task2")
        await asyncio.sleep(0)
        assert alone.checked_out() == 0

    assert alone.loop is not None
    alone.loop.run_until_complete(main())


def test_ids_are_in_binary_order_whatever_the_collation(postgres: URL) -> None:
    """The official saver's tables take the database's collation, where "a" comes before "B"."""
    psycopg = next(backend for backend in BACKENDS if backend.name == "psycopg")
    ids = ["A-1", "B", "_", "a", "aB", "a_", "b", "é"]
    with postgres_database(postgres, options=_locale(postgres)) as url:
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with PostgresSaver.from_conn_string(plain) as official:
            official.setup()
        with called(psycopg, url) as saver:
            for id in ids[::2] + ids[1::2]:
                put(saver, "t", {"a": [id]}, id=id)
            assert ids_of(saver.list(None)) == ids[::-1]
            assert ids_of(saver.list(None, limit=3)) == ids[:-4:-1]
            assert ids_of(saver.list(None, before=config("t", id="a"))) == ids[2::-1]
            assert id_of(saver.get_tuple(config("t")).config) == "é"
            saver.prune(["t"])
            assert ids_of(saver.list(None)) == ["é"]


def _locale(postgres: URL) -> str:
    """The options of a database that does not sort by code point."""
    with_icu = text("SELECT count(*) FROM pg_collation WHERE collname = 'en-US-x-icu'")
    with create_engine(postgres, poolclass=NullPool).connect() as connection:
        if not connection.scalar(with_icu):
            pytest.skip("this server was built without ICU, and has no other collation than C")
    return "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
