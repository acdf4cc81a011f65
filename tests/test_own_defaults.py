"""Columns of an application's own whose value is missing: NULL or the default, on each database."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import sys
from typing import Any
from uuid import UUID

import pytest
from backends import BACKENDS, Backend, called, named
from builders import checkpoint, config, put
from sqlalchemy import JSON, URL, Enum, Integer, Text, Uuid, create_engine, func, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped
from tenancy import MODELS, tables

from ckpt_orm import declare, from_config


class Color(enum.Enum):
    red = "r"
    blue = "b"


class Base(DeclarativeBase):
    pass


class Owned:
    absent: Mapped[dict[str, Any] | None] = from_config(
        "absent", JSON().with_variant(JSONB(), "postgresql")
    )
    document: Mapped[dict[str, Any] | None] = from_config(
        "document", JSON, server_default=text("'{\"a\": 1}'")
    )
    number: Mapped[int | None] = from_config("number", Integer, server_default="5")
    id: Mapped[UUID | None] = from_config("id", Uuid, server_default=str(UUID(int=7)))
    color: Mapped[Color | None] = from_config("color", Enum(Color), default=Color.blue)
    lowered: Mapped[str | None] = from_config("lowered", Text, default=func.lower("ABC"))
    chain: Mapped[str | None] = from_config("chain", Text)


OWN = declare(Base, prefix="own_", extra=Owned)
GIVEN = {
    "document": {"b": 2},
    "number": 8,
    "id": UUID(int=9),
    "color": Color.red,
    "lowered": "x",
    "chain": "my own chain, which is text",
}
DEFAULTS = {
    "document": {"a": 1},
    "number": 5,
    "id": UUID(int=7),
    "color": Color.blue,
    "lowered": "abc",
    "chain": None,
}


def stored(url: URL, thread: str) -> dict[str, Any]:
    """The own columns of a thread's only checkpoint, and whether `absent` is NULL."""
    table = OWN.tables[0]
    engine = create_engine(url)
    with engine.connect() as connection:
        at = table.c.thread_id == thread
        is_null = connection.scalar(select(table.c.absent.is_(text("NULL"))).where(at))
        row = connection.execute(select(*(table.c[name] for name in DEFAULTS)).where(at)).one()
    engine.dispose()
    assert is_null
    return dict(row._mapping)


@named([backend for backend in BACKENDS if backend.name in ("sqlite", "psycopg", "asyncpg")])
def test_what_is_missing(backend: Backend, backend_url: URL) -> None:
    plain = backend_url.set(
        drivername="sqlite" if backend.database == "sqlite" else "postgresql+psycopg"
    )
    engine = create_engine(plain)
    Base.metadata.create_all(engine)
    engine.dispose()
    with called(backend, backend_url, models=OWN) as saver:
        put(saver, "without", {"a": [1]})
        assert stored(plain, "without") == DEFAULTS
        with_all: Any = config("with")
        with_all["configurable"] |= GIVEN
        versions: Any = {"a": "1"}
        first = saver.put(with_all, checkpoint({"a": [1]}, versions), {}, versions)
        assert stored(plain, "with") == GIVEN
        found = saver.get_tuple(first)
        saver.put(config("with"), found.checkpoint, {}, {})  # again, and without
        assert stored(plain, "with") == GIVEN
        saver.copy_thread("with", "copy")
        assert stored(plain, "copy") == GIVEN


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task is given a context since 3.11")
@named([b for b in BACKENDS if b.name in ("aiosqlite", "psycopg-async", "asyncpg")])
def test_tenants_whose_tasks_share_a_context(backend: Backend, backend_url: URL) -> None:
    """Where one waits for its database, the other goes on in the same context."""
    tables(backend_url.set(drivername=PLAIN[backend.database]))
    with called(backend, backend_url, models=MODELS) as saver:
        names = ("acme", "other")
        scoped = {name: saver.saver.scoped(tenant_id=name) for name in names}
        shared = contextvars.copy_context()

        async def work(name: str) -> None:
            for number in range(20):
                await scoped[name].acopy_thread("t", f"copy-{name}-{number}")
                found = await scoped[name].aget_tuple(config("t"))
                assert found.checkpoint["channel_values"]["who"] == [name]

        async def both() -> None:
            for name in names:
                await seed(name)
            tasks = [
                asyncio.get_running_loop().create_task(work(name), context=shared)  # type: ignore[call-arg, unused-ignore]
                for name in names
            ]
            await asyncio.gather(*tasks)

        async def seed(name: str) -> None:
            made = checkpoint({"who": [name]}, {"who": "1"})
            await scoped[name].aput(config("t"), made, {}, {"who": "1"})

        saver.loop.run_until_complete(both())  # type: ignore[union-attr]
        for name in names:
            mine = saver.loop.run_until_complete(threads_of(scoped[name]))  # type: ignore[union-attr]
            assert mine == {"t", *(f"copy-{name}-{number}" for number in range(20))}


async def threads_of(saver: Any) -> set[str]:
    return {found.thread_id async for found in saver.athreads()}


PLAIN = {"sqlite": "sqlite", "postgres": "postgresql+psycopg"}
