"""A saver scoped to a tenant: the contract as ever, beside other tenants that it cannot reach.

The contract's tests are run once more: a function that is imported is collected again, with this
file's `saver`. Its tables hold the rows of other tenants too, in threads of the same ids, and after
each test these must be what they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, id_of, put, values_of
from graphs import deltas
from sqlalchemy import URL, Engine, Text, create_engine, event, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session
from tenancy import BY_ORG, MODELS, Org, dump, orgs, scoped, tables
from test_drivers import DRIVERS

from ckpt_orm import (
    InvalidConfig,
    Retention,
    SQLAlchemySaver,
    WrongTenant,
    declare,
    tenant_column,
)

__all__ = [name for name in globals() if name.startswith("test_")]

FOUR = [b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")]
TWO = [backend for backend in FOUR if not backend.is_async]
OTHERS = ("acm", "acme2", "other", "%")
ONE, TWO_ORGS = UUID(int=1), UUID(int=2)


@pytest.fixture(params=FOUR, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


@pytest.fixture
def tenant_url(backend_url: URL) -> URL:
    """A database with the tables of tenants."""
    tables(backend_url)
    return backend_url


@pytest.fixture
def plain(tenant_url: URL) -> Iterator[Engine]:
    """A synchronous engine of the test's own."""
    engine = create_engine(tenant_url)
    yield engine
    engine.dispose()


def inhabit(saver: Any, thread: str) -> None:
    """A thread with a past, a subgraph, blobs, a log and writes."""
    saver.get_tuple(config(thread))  # from which it learns how values are stored
    values = {"a": ["theirs"], "n": 1, "log": ["theirs" * 12_000]}
    first = put(saver, thread, values, metadata={"run_id": "r1", "source": "x"})
    second = put(saver, thread, {"a": ["theirs"], "n": 2}, first, {"run_id": "r1"}, new=["n"])
    put(saver, thread, {"b": ["theirs"]}, ns="sub:1")
    saver.put_writes(second, [("a", "theirs"), ("__error__", "e")], "task")
    saver.put_writes(config(thread, id="none"), [("a", "theirs")], "orphan")


@pytest.fixture
def theirs(plain: Engine) -> dict[str, list[Any]]:
    """What the other tenants have."""
    for tenant in OTHERS:
        for thread in ("t", "t1", "1", "acme"):
            inhabit(scoped(plain, tenant), thread)
    found = {tenant: dump(plain, tenant) for tenant in OTHERS}
    assert all(len(rows) == 4 and all(rows) for rows in found.values())
    return found


@pytest.fixture
def all_of_us(
    backend: Backend, tenant_url: URL, theirs: dict[str, list[Any]], plain: Engine
) -> Iterator[Called]:
    """A saver that is not scoped, on tables where the others must be untouched in the end."""
    with called(backend, tenant_url, models=MODELS) as found:
        yield found
    assert {tenant: dump(plain, tenant) for tenant in OTHERS} == theirs


@pytest.fixture
def saver(all_of_us: Called) -> Called:
    return again(all_of_us, all_of_us.saver.scoped(tenant_id="acme"))


def again(like: Called, saver: Any) -> Called:
    return Called(saver, like.loop, like.given)


# --- nothing of the others is in reach ---


def test_nothing_of_the_others_is_seen(saver: Called) -> None:
    for thread in ("t", "t1", "1", "acme", "other"):
        assert saver.get_tuple(config(thread)) is None
        assert list(saver.list(config(thread, None))) == []
        assert not saver.exists(config(thread, None))
        history = saver.get_delta_channel_history(config=config(thread), channels=["a"])
        assert history == {"a": {"writes": []}}
    assert list(saver.list(None)) == list(saver.threads()) == []
    assert list(saver.list(None, before=config("t", id="z"))) == []
    assert list(saver.list(None, filter={"run_id": "r1"})) == []
    assert list(saver.threads(filter={"run_id": "r1"}, after="a")) == []
    assert saver.count() == saver.count(filter={"source": "x"}) == 0
    assert saver.verify().threads == 0


def test_nothing_of_the_others_is_touched(saver: Called) -> None:
    """What is compared when `all_of_us` ends; each of these would change their rows."""
    for thread in ("t", "t1", "%", "acme"):
        saver.copy_thread(thread, "copy")
        saver.copy_thread(thread, "copy", latest_only=True)
        saver.prune([thread])
        saver.prune([thread], strategy="delete")
        saver.delete_thread(thread)
    saver.delete_for_runs(["r1"])
    assert saver.sweep(Retention(keep_last=1, max_age=timedelta(0))).checkpoints == 0
    assert saver.sweep(Retention(idle_after=timedelta(0))).threads == 0
    assert saver.verify(repair=True, grace=timedelta(0)).ok
    assert saver.compact(deltas(saver), config("t")) == []
    assert not saver.exists()


def test_threads_of_one_id_are_apart(saver: Called, plain: Engine) -> None:
    before = {tenant: dump(plain, tenant) for tenant in OTHERS}
    mine = put(saver, "t", {"a": ["mine"]})
    same = put(saver, "t", {"a": ["mine"]}, id=scoped_head(plain))
    saver.put_writes(same, [("a", "mine")], "task")
    assert values_of(saver, mine) == values_of(saver, same) == {"a": ["mine"]}
    assert [w[2] for w in saver.get_tuple(same).pending_writes] == ["mine"]
    assert saver.count(config("t")) == 2
    assert {tenant: dump(plain, tenant) for tenant in OTHERS} == before


def scoped_head(plain: Engine) -> str:
    """The id of another tenant's newest checkpoint of the thread t."""
    found = scoped(plain, "other").get_tuple(config("t"))
    assert found is not None
    return id_of(found.config)


def test_tenants_at_once_are_not_mixed_up(all_of_us: Called) -> None:
    names = [f"tenant{n}" for n in range(6)]
    savers = {name: all_of_us.saver.scoped(tenant_id=name) for name in names}
    for name in names:
        put(again(all_of_us, savers[name]), "t", {"who": [name]})

    def look(name: str) -> Callable[[Any], Any]:
        of = again(all_of_us, savers[name])
        method = of.saver.get_tuple if of.loop is None else of.saver.aget_tuple
        return lambda _: method(config("t"))

    for _ in range(5):
        found = all_of_us.at_once(*(look(name) for name in names))
        assert [f.checkpoint["channel_values"]["who"] for f in found] == [[n] for n in names]


def test_what_tenants_store_at_once_is_each_ones_own(all_of_us: Called) -> None:
    """Of the same ids, and in one transaction where calls share one."""
    names = [f"tenant{n}" for n in range(12)]
    savers = [again(all_of_us, all_of_us.saver.scoped(tenant_id=name)) for name in names]

    def store(of: Called, name: str, id: str) -> Callable[[Any], Any]:
        method = of.saver.put if of.loop is None else of.saver.aput
        made = checkpoint({"who": [name]}, {"who": "1"}, id)
        return lambda _: method(config("t"), made, {"of": name}, {"who": "1"})

    pairs = list(zip(savers, names, strict=True))
    all_of_us.at_once(*(store(of, name, id) for id in "123" for of, name in pairs))
    for of, name in pairs:
        found = list(of.list(None))
        assert [id_of(f.config) for f in found] == ["3", "2", "1"]
        assert {f.metadata["of"] for f in found} == {name}
        assert [f.checkpoint["channel_values"] for f in found] == [{"who": [name]}] * 3


# --- who is asked for whom ---

CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda s: s.get(config("t")),
    "get_tuple": lambda s: s.get_tuple(config("t")),
    "list": lambda s: list(s.list(None)),
    "threads": lambda s: list(s.threads()),
    "count": lambda s: s.count(),
    "exists": lambda s: s.exists(),
    "get_delta_channel_history": lambda s: s.get_delta_channel_history(
        config=config("t"), channels=["a"]
    ),
    "put": lambda s: s.put(config("t"), checkpoint({}), {}, {}),
    "put_writes": lambda s: s.put_writes(config("t", id="1"), [("a", 1)], "task"),
    "delete_thread": lambda s: s.delete_thread("t"),
    "delete_for_runs": lambda s: s.delete_for_runs(["r1"]),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "prune": lambda s: s.prune(["t"]),
    "sweep": lambda s: s.sweep(Retention(keep_last=1)),
    "verify": lambda s: s.verify(),
    "pack": lambda s: s.pack(),
    "unpack": lambda s: s.unpack(),
    "compact": lambda s: s.compact(deltas(s), config("t")),
}

#: What reaches no rows.
OTHER_NAMES = {
    "aclose", "close", "config_specs", "from_url", "get_next_version", "models", "scoped", "serde",
    "setup", "asetup", "using", "with_allowlist",
}  # fmt: skip


def test_that_every_method_is_among_them() -> None:
    public = {name for name in dir(SQLAlchemySaver) if not name.startswith("_")}
    assert public - OTHER_NAMES == {*CALLS, *(f"a{name}" for name in CALLS)}


def test_a_saver_that_is_nobodys_refuses(all_of_us: Called) -> None:
    for call in CALLS.values():
        with pytest.raises(WrongTenant, match=r"use saver\.scoped\(tenant_id=…\)"):
            call(all_of_us)


def stray(name: str, key: str = "configurable") -> Any:
    """A config that names a tenant."""
    found: Any = config("t", id="1")
    found.setdefault(key, {})["tenant_id"] = name
    return found


def test_the_tenants_entry_in_a_config_has_the_name_of_its_column() -> None:
    class Other(DeclarativeBase):
        pass

    class Tenanted:
        org_id: Mapped[str] = tenant_column(Text)

    models = declare(Other, every=Tenanted)
    saver = SQLAlchemySaver.from_url("sqlite://", models=models).scoped(org_id="acme")
    stranger: Any = {"configurable": {"thread_id": "t", "org_id": "other"}}
    with pytest.raises(WrongTenant, match="'org_id' is another"):
        saver.get_tuple(stranger)


@pytest.mark.parametrize("key", ["configurable", "metadata"])
def test_a_config_of_another_tenant_is_refused(saver: Called, key: str) -> None:
    there = stray("other", key)
    for call in (
        lambda: saver.get_tuple(there),
        lambda: saver.get(there),
        lambda: list(saver.list(there)),
        lambda: list(saver.list(None, before=there)),
        lambda: saver.count(there),
        lambda: saver.exists(there),
        lambda: saver.get_delta_channel_history(config=there, channels=["a"]),
        lambda: saver.put(there, checkpoint({}), {}, {}),
        lambda: saver.put_writes(there, [("a", 1)], "task"),
        lambda: saver.compact(deltas(saver), there),
    ):
        with pytest.raises(WrongTenant, match="is another than the saver's") as refused:
            call()
        assert "other" not in str(refused.value).replace("another", "")
    assert not saver.exists()


def test_a_config_of_the_same_tenant_is_fine(saver: Called) -> None:
    stored = saver.put(stray("acme"), checkpoint({"n": 1}, {"n": "1"}), {}, {"n": "1"})
    assert values_of(saver, stored) == {"n": 1}
    assert [f.config for f in saver.list(None, filter={"tenant_id": "acme"})] == [stored]


def test_what_scoped_takes(saver: Called, all_of_us: Called, sqlite_url: URL) -> None:
    for wrong in ({}, {"tenant": "acme"}, {"tenant_id": None}, {"tenant_id": "a", "b": "c"}):
        with pytest.raises(WrongTenant, match=r"saver\.scoped\(tenant_id=…\)"):
            all_of_us.saver.scoped(**wrong)
    with pytest.raises(InvalidConfig, match="cannot hold"):
        all_of_us.saver.scoped(tenant_id="a\x00b")
    with pytest.raises(WrongTenant, match="another tenant's already"):
        saver.saver.scoped(tenant_id="other")
    assert saver.saver.scoped(tenant_id="acme").models is MODELS
    with (
        SQLAlchemySaver.from_url(sqlite_url) as ours,
        pytest.raises(WrongTenant, match="no column of a tenant"),
    ):
        ours.scoped(tenant_id="acme")


def test_a_copy_costs_no_look(all_of_us: Called, plain: Engine) -> None:
    put(again(all_of_us, all_of_us.saver.scoped(tenant_id="acme")), "t", {"n": 1})
    asked: list[str] = []
    event.listen(all_of_us.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    other = again(all_of_us, all_of_us.saver.scoped(tenant_id="acme"))
    assert other.exists(config("t"))
    assert len(asked) == 1


@named(TWO)
def test_with_using_and_with_allowlist_in_any_order(saver: Called, all_of_us: Called) -> None:
    plain = all_of_us.saver
    with Session(all_of_us.engine) as session:
        orders = [
            plain.scoped(tenant_id="acme").using(session),
            plain.using(session).scoped(tenant_id="acme"),
            plain.scoped(tenant_id="acme").using(session).with_allowlist(set()),
            plain.with_allowlist(set()).using(session).scoped(tenant_id="acme").using(session),
        ]
        for number, one in enumerate(orders):
            put(one, f"mine{number}", {"n": number})
        assert orders[0].count() == len(orders)
        with pytest.raises(WrongTenant, match="nobody's"):
            plain.using(session).count()
        session.rollback()
    assert saver.count() == 0
    assert "scoped to one tenant_id" in repr(saver.saver)
    assert "acme" not in repr(saver.saver).replace(str(saver.engine.url), "")


# --- tenants of another type ---


@named([*FOUR, *DRIVERS])
def test_tenants_that_are_no_text(backend: Backend, tenant_url: URL, plain: Engine) -> None:
    orgs(plain, ONE, TWO_ORGS)
    with called(backend, tenant_url, models=BY_ORG) as found:
        one = again(found, found.saver.scoped(org_id=ONE))
        two = again(found, found.saver.scoped(org_id=str(TWO_ORGS)))
        for saver, name in ((one, "one"), (two, "two")):
            stored = put(saver, "t", {"who": [name]})
            saver.put_writes(stored, [("a", name)], "task")
        for saver, name in ((one, "one"), (two, "two")):
            assert values_of(saver, config("t")) == {"who": [name]}
            assert saver.count() == len(list(saver.threads())) == len(list(saver.list(None))) == 1
        one.copy_thread("t", "u")
        one.delete_thread("t")
        assert not one.exists(config("t"))
        assert one.exists(config("u"))
        stray: Any = config("t")
        stray["configurable"]["org"] = str(ONE)
        with pytest.raises(WrongTenant, match="'org' is another"):
            two.get_tuple(stray)
        assert [len(rows) for rows in dump(plain, TWO_ORGS, BY_ORG)] == [1, 1, 1, 0]
    with Session(plain) as session:
        model: Any = BY_ORG.checkpoint
        assert {row.org_id for row in session.scalars(select(model))} == {ONE, TWO_ORGS}
        assert len(session.scalars(select(Org)).all()) == 2


# --- by index ---

EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}


@named(TWO)
def test_rows_are_found_by_the_index_that_the_tenant_leads(
    backend: Backend, tenant_url: URL, plain: Engine
) -> None:
    with called(backend, tenant_url, models=MODELS) as found:
        fill(plain)
        saver = again(found, found.saver.scoped(tenant_id="tenant7"))
        asked: list[tuple[str, Any]] = []
        event.listen(saver.engine, "before_cursor_execute", lambda *args: asked.append(args[2:4]))
        saver.get_tuple(config("thread7"))
        stored = put(saver, "thread7", {"a": [1], "log": ["x" * 70_000]})
        put(saver, "thread7", {"log": ["x" * 70_001]}, stored)
        saver.put_writes(stored, [("a", 1)], "task")
        assert saver.get_tuple(config("thread7")) is not None
        assert len(list(saver.list(config("thread7"), limit=3))) == 3
        assert len(list(saver.threads(limit=5))) == 5
        saver.get_delta_channel_history(config=config("thread7"), channels=["a"])
        saver.prune(["thread7"])
        saver.copy_thread("thread7", "copy")
        saver.delete_thread("thread7")
        looked = [(s, p) for s, p in asked if "agent_" in s and not isinstance(p, list)]
        assert len(looked) >= 10
        with saver.engine.connect() as connection:
            for statement, params in looked:
                rows = connection.exec_driver_sql(
                    EXPLAIN[plain.dialect.name] + statement, params
                ).all()
                plan = "\n".join(str(row) for row in rows)
                assert "Seq Scan on agent_" not in plan, statement
                assert not re.search(r"SCAN (agent_|one\b)", plan), f"{statement}\n{plan}"


def fill(engine: Engine) -> None:
    """Rows of many tenants, in threads of the same ids."""
    own: list[dict[str, Any]] = [
        {"checkpoint_id": "{}", "checkpoint": {"v": 4}, "metadata": {}},
        {"channel": "a", "version": "{}", "type": "null", "blob": b""},
        {"checkpoint_id": "{}", "task_id": "x", "idx": 0, "channel": "a"},
    ]
    own[2] |= {"type": "null", "blob": b""}
    own += [{"channel": "a", "chain": b"chain", "start": "{}", "data": b"", "digest": b""}]
    ids: dict[str, Any] = {"start": int}
    with engine.begin() as connection:
        for table, row in zip(MODELS.tables, own, strict=True):
            rows = [
                {
                    **{k: ids.get(k, str)(i) if v == "{}" else v for k, v in row.items()},
                    **{"tenant_id": f"tenant{t}", "thread_id": f"thread{n}", "checkpoint_ns": ""},
                }
                for t in range(40)
                for n in range(20)
                for i in range(10)
            ]
            connection.execute(insert(cast(Any, table)), rows)
        connection.execute(text("ANALYZE"))
