"""Tables on an application's own base: its columns are filled, its revisions make the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import pytest
from applications import (
    MODELS,
    AgentBlob,
    AgentCheckpoint,
    AgentSegment,
    AgentWrite,
    Base,
    Conversation,
    Plan,
    User,
    create,
)
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, id_of, put, values_of, version
from sqlalchemy import URL, Engine, create_engine, insert, inspect, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session
from test_drivers import DRIVERS
from test_embedding import fan

from ckpt_orm import (
    CheckpointMixin,
    InvalidConfig,
    Models,
    SchemaNotReady,
    SQLAlchemySaver,
    declare,
    from_config,
)

ORG = UUID("12345678-1234-5678-1234-567812345678")
SINCE = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
EVERY = [*BACKENDS, *DRIVERS]

#: Both dialects, in both colours.
FOUR = [b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")]
TWO = [backend for backend in FOUR if not backend.is_async]


@pytest.fixture
def application(backend_url: URL) -> Iterator[Engine]:
    """An application's database, and its engine."""
    create(backend_url, Base.metadata)
    engine = create_engine(backend_url)
    with engine.begin() as connection:
        connection.execute(insert(User), [{"id": 7}, {"id": 8}])
    yield engine
    engine.dispose()


@pytest.fixture
def own(backend: Backend, backend_url: URL, application: Engine) -> Iterator[Called]:
    """A saver on the application's models."""
    with called(backend, backend_url, models=MODELS) as found:
        yield found


def run(thread: str = "t", **configurable: Any) -> Any:
    found = config(thread)
    found["configurable"] |= configurable
    return found


def stored(saver: Any, given: Any, values: Any = None, id: str | None = None) -> Any:
    """A checkpoint with a blob, put with a config as a run has it."""
    values = {"a": [1]} if values is None else values
    versions = {channel: version() for channel in values}
    made = checkpoint(values, versions, id)
    return saver.put(given, made, {"source": "loop", "step": 0}, versions)


def rows(engine: Engine, model: Any) -> list[Any]:
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(model)))


# --- columns are filled ---


@named(FOUR)
def test_logs_have_them_too(own: Called, application: Engine) -> None:
    """From the config where a run stores them; where `pack` makes them, as if there were none."""
    texts = [f"{n:0700}" for n in range(120)]
    at = stored(own, run(user_id=7, org=ORG), {"log": texts})
    at = stored(own, run(user_id=7, org=ORG, checkpoint_id=id_of(at)), {"log": [*texts, "x"]})
    assert {row.org for row in rows(application, AgentSegment)} == {ORG}
    assert own.unpack().values == 2
    assert rows(application, AgentSegment) == []
    assert own.pack().values == 2
    assert [row.org for row in rows(application, AgentSegment)] == [None, None]
    assert values_of(own, at)["log"] == [*texts, "x"]


@named(EVERY)
def test_values_of_every_type(own: Called, application: Engine) -> None:
    given = {"user_id": 7, "org": ORG, "plan": Plan.PAID, "since": SINCE, "trial": True}
    at = stored(own, run(**given, region="us", origin="app"))
    at["configurable"] |= given
    own.put_writes(at, [("a", 1)], "task")
    (row,) = rows(application, AgentCheckpoint)
    since = row.since.replace(tzinfo=timezone.utc) if row.since.tzinfo is None else row.since
    assert (row.user_id, row.org, row.plan, since, row.trial) == (7, ORG, Plan.PAID, SINCE, True)
    assert (row.region, row.origin, row.note, row.channel_kind) == ("us", "app", None, "chat")
    assert row.stored_at is not None
    assert [blob.org for blob in rows(application, AgentBlob)] == [ORG]
    assert [write.user_id for write in rows(application, AgentWrite)] == [7]
    assert values_of(own, config("t")) == {"a": [1]}


@named(TWO)
def test_text_becomes_what_the_column_takes(own: Called, application: Engine) -> None:
    given = {"user_id": "7", "org": str(ORG), "plan": "PAID", "since": SINCE.isoformat()}
    stored(own, run(**given, region=12))
    (row,) = rows(application, AgentCheckpoint)
    assert (row.user_id, row.org, row.plan, row.region) == (7, ORG, Plan.PAID, "12")


@named(TWO)
def test_the_metadata_of_a_config_is_the_second_place(own: Called, application: Engine) -> None:
    stored(own, {**run("a"), "metadata": {"user_id": 7}})
    stored(own, {**run("b", user_id=8), "metadata": {"user_id": 7}})
    assert {r.thread_id: r.user_id for r in rows(application, AgentCheckpoint)} == {"a": 7, "b": 8}


@named(TWO)
def test_what_is_not_given(own: Called, application: Engine) -> None:
    stored(own, run())
    (row,) = rows(application, AgentCheckpoint)
    assert (row.user_id, row.org, row.plan, row.since, row.trial) == (None,) * 5
    assert (row.region, row.origin) == ("eu", "web")


@named(TWO)
@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("user_id", "seven"),
        ("user_id", 7.5),
        ("user_id", True),
        ("org", "no-uuid"),
        ("plan", "none-of-them"),
        ("since", "yesterday"),
        ("trial", "yes"),
        ("region", "a\x00b"),
    ],
)
def test_what_a_column_cannot_hold(own: Called, application: Engine, key: str, wrong: Any) -> None:
    with pytest.raises(InvalidConfig, match=key) as refused:
        stored(own, run(**{key: wrong}))
    assert str(wrong) not in str(refused.value)
    assert rows(application, AgentCheckpoint) == rows(application, AgentBlob) == []


@named(FOUR)
def test_a_checkpoint_that_is_stored_again(own: Called, application: Engine) -> None:
    """Takes the new values, and keeps those it has where there is none."""
    at = id_of(stored(own, run(user_id=7, org=ORG, region="us")))
    stored(own, run(user_id=8), id=at)
    (row,) = rows(application, AgentCheckpoint)
    assert (row.user_id, row.org, row.region) == (8, ORG, "us")


@named(FOUR)
def test_a_copy_has_them_too(own: Called, application: Engine) -> None:
    at = stored(own, run(user_id=7, org=ORG, plan="PAID"))
    own.put_writes(run(user_id=7, checkpoint_id=id_of(at)), [("a", 1)], "task")
    own.copy_thread("t", "whole")
    own.copy_thread("t", "latest", latest_only=True)
    found = {r.thread_id: (r.user_id, r.org, r.plan) for r in rows(application, AgentCheckpoint)}
    assert found == dict.fromkeys(("t", "whole", "latest"), (7, ORG, Plan.PAID))
    assert {(r.thread_id, r.org) for r in rows(application, AgentBlob)} == {(t, ORG) for t in found}
    assert {(r.thread_id, r.user_id) for r in rows(application, AgentWrite)} == {
        (t, 7) for t in found
    }


@named(FOUR)
def test_a_graph_fills_them_in_every_step(own: Called, application: Engine) -> None:
    own.run(fan(own), {"done": []}, run(user_id=7, org=str(ORG)))
    found = rows(application, AgentCheckpoint)
    assert len(found) == 3
    assert {(row.user_id, row.org) for row in found} == {(7, ORG)}
    assert {row.org for row in rows(application, AgentBlob)} == {ORG}
    assert {row.user_id for row in rows(application, AgentWrite)} == {7}


@named(TWO)
def test_relationships(own: Called, application: Engine) -> None:
    with Session(application) as session, session.begin():
        session.add(Conversation(id="t", user_id=7))
    first = stored(own, run(user_id=7))
    second = stored(own, run(user_id=7))
    stored(own, run("other", user_id=8))
    with Session(application) as session:
        (conversation,) = session.get_one(User, 7).conversations
        assert [row.checkpoint_id for row in conversation.checkpoints] == [
            id_of(first),
            id_of(second),
        ]
        assert {row.user for row in conversation.checkpoints} == {conversation.user}


@named(TWO)
def test_inside_the_callers_transaction(application: Engine) -> None:
    saver = SQLAlchemySaver(application, models=MODELS)
    with Session(application) as session:
        session.add(Conversation(id="t", user_id=7))
        session.flush()
        stored(saver.using(session), run(user_id=7))
        assert len(session.get_one(Conversation, "t").checkpoints) == 1
        session.rollback()
    assert rows(application, AgentCheckpoint) == []


# --- declared by us ---


class OtherBase(DeclarativeBase):
    pass


class Owned:
    owner: Mapped[str] = from_config("owner", index=True)


DECLARED = declare(OtherBase, prefix="bot_", extra=Owned)


@named(FOUR)
def test_declared_on_a_base(backend: Backend, backend_url: URL) -> None:
    create(backend_url, OtherBase.metadata)
    model: Any = DECLARED.checkpoint
    assert model.__name__ == "BotCheckpoint"
    assert [index.name for index in model.__table__.indexes] == ["ix_bot_checkpoints_owner"]
    with called(backend, backend_url, models=DECLARED) as saver:
        stored(saver, run(owner="me"))
        assert saver.models is DECLARED
        engine = create_engine(backend_url)
        assert [row.owner for row in rows(engine, model)] == ["me"]
        with pytest.raises(InvalidConfig, match=r"configurable'\]\['owner'\] is missing"):
            stored(saver, run("without"))
        assert not saver.exists(config("without"))
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT count(*) FROM bot_checkpoint_blobs")) == 1
        engine.dispose()


def test_mistakes_in_the_declaration(sqlite_url: URL) -> None:
    engine = create_engine(sqlite_url)
    with pytest.raises(ValueError, match="your declarative base"):
        declare(extra=Owned)
    with pytest.raises(ValueError, match="leave out schema"):
        SQLAlchemySaver(engine, models=MODELS, schema="x")
    with pytest.raises(ValueError, match="leave out schema"):
        SQLAlchemySaver.from_url("sqlite://", models=MODELS, table_prefix="x")


def test_models_of_the_packaged_tables_are_those(sqlite_url: URL) -> None:
    saver = SQLAlchemySaver.from_url(sqlite_url, models=declare(prefix="bot_"))
    with pytest.raises(SchemaNotReady, match="ckpt-orm upgrade --prefix bot_"):
        saver.get_tuple(config("t"))
    saver.setup()
    put(saver, "t", {"n": 1})
    with SQLAlchemySaver.from_url(sqlite_url, table_prefix="bot_") as same:
        assert values_of(same, config("t")) == {"n": 1}
    saver.close()


def test_names_follow_the_bases_convention() -> None:
    assert AgentCheckpoint.__table__.primary_key.name == "pk_agent_states"
    found: Any = DECLARED.checkpoint
    assert found.__table__.primary_key.name == "bot_checkpoints_pkey"


# --- tables that are not there ---


def missing(saver: Called) -> str:
    for call in (saver.setup, lambda: saver.get_tuple(config("t"))):
        with pytest.raises(SchemaNotReady) as refused:
            call()
    assert "alembic revision --autogenerate" in str(refused.value)
    return str(refused.value)


@named(FOUR)
def test_without_tables_they_are_asked_of_the_application(
    backend: Backend, backend_url: URL
) -> None:
    create(backend_url, Base.metadata)
    engine = create_engine(backend_url)
    with called(backend, backend_url, models=MODELS) as saver:
        stored(saver, run())
        Base.metadata.tables["agent_writes"].drop(engine)
        assert "table 'agent_writes' is missing" in missing(again(saver))
        with pytest.raises(SchemaNotReady, match="agent_writes"):
            saver.get_tuple(config("t"))
        Base.metadata.create_all(engine)
        assert values_of(saver, config("t")) == {"a": [1]}
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE agent_states DROP COLUMN note"))
        assert "column 'agent_states.note' is missing" in missing(again(saver))
        assert set(inspect(engine).get_table_names()) == set(Base.metadata.tables)
    engine.dispose()


def again(saver: Called) -> Called:
    """Another saver on the same engine, which has not looked yet."""
    return Called(SQLAlchemySaver(saver.given, models=MODELS), saver.loop, saver.given)  # type: ignore[arg-type]


def test_a_primary_key_of_other_columns(database_url: URL) -> None:
    create(database_url, Base.metadata)
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE agent_writes RENAME TO old_writes"))
        connection.execute(text("CREATE TABLE agent_writes AS SELECT * FROM old_writes"))
    with pytest.raises(SchemaNotReady, match="primary key of table 'agent_writes' is not thread"):
        SQLAlchemySaver(engine, models=MODELS).get_tuple(config("t"))
    engine.dispose()


@named(TWO)
def test_nothing_is_looked_at_twice(application: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    inspector = inspect(application).__class__
    monkeypatch.setattr(
        inspector,
        "get_multi_columns",
        lambda self, *args, _of=inspector.get_multi_columns, **kw: (
            looks.append(self) or _of(self, *args, **kw)
        ),
    )
    saver = SQLAlchemySaver(application, models=MODELS)
    for _ in range(3):
        saver.get_tuple(config("t"))
    assert len(looks) == 1


def test_models_are_one_set() -> None:
    assert isinstance(MODELS, Models)
    assert issubclass(MODELS.checkpoint, CheckpointMixin)
    assert MODELS.metadata is Base.metadata
    assert not MODELS.are_packaged
    assert declare(prefix="x_").are_packaged
    assert declare().are_packaged
