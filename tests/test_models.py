"""The tables in an application's own hands: ORM queries, and engines with JSON functions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from backends import Backend, Called, called
from builders import config, exact, id_of, metadata_of, put, values_of
from sqlalchemy import URL, Engine, create_engine, delete, func, inspect, select
from sqlalchemy.orm import Session
from xxhash import xxh3_128_digest

from ckpt_orm import (
    Base,
    Checkpoint,
    CheckpointBlob,
    CheckpointWrite,
    SQLAlchemySaver,
    declare,
)


@pytest.fixture
def engine(database_url: URL) -> Iterator[Engine]:
    found = create_engine(database_url)
    yield found
    assert found.pool.checkedout() == 0  # type: ignore[attr-defined]
    found.dispose()


@pytest.fixture
def saver(engine: Engine) -> SQLAlchemySaver:
    found = SQLAlchemySaver(engine)
    found.setup()
    return found


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as found:
        yield found


def test_checkpoints_by_their_metadata(saver: SQLAlchemySaver, session: Session) -> None:
    for step in range(6):
        put(saver, "t", {"n": step}, metadata={"step": step, "source": "loop", "user": f"u{step}"})
    late = select(Checkpoint).where(Checkpoint.metadata_["step"].as_integer() > 3)
    found = session.scalars(late.order_by(Checkpoint.checkpoint_id)).all()
    assert [row.metadata_["step"] for row in found] == [4, 5]
    assert [row.checkpoint["channel_values"] for row in found] == [{"n": 4}, {"n": 5}]
    by_user = select(func.count()).where(Checkpoint.metadata_["user"].as_string() == "u2")
    assert session.scalar(by_user) == 1


def test_a_checkpoint_with_its_parent_and_its_blobs(
    saver: SQLAlchemySaver, session: Session
) -> None:
    first = put(saver, "t", {"a": ["x"]})
    second = put(saver, "t", {"a": ["x"], "b": "small"}, first, ns="sub", new=["b"])
    row = session.get_one(Checkpoint, ("t", "", id_of(second)))
    assert row.parent_checkpoint_id == id_of(first)
    assert row.type is None
    blobs = session.scalars(select(CheckpointBlob).where(CheckpointBlob.thread_id == "t")).all()
    assert [(blob.channel, blob.version) for blob in blobs] == [
        ("a", row.checkpoint["channel_versions"]["a"])
    ]
    assert saver.serde.loads_typed((blobs[0].type, blobs[0].blob)) == ["x"]


def test_writes_of_a_task(saver: SQLAlchemySaver, session: Session) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [("a", 1), ("__error__", "e")], "task", "path")
    rows = session.scalars(select(CheckpointWrite).order_by(CheckpointWrite.idx)).all()
    assert [(row.task_id, row.idx, row.channel, row.task_path) for row in rows] == [
        ("task", -1, "__error__", "path"),
        ("task", 0, "a", "path"),
    ]


def test_created_at_is_when_a_row_was_first_stored(
    saver: SQLAlchemySaver, session: Session
) -> None:
    stored = put(saver, "t", {"a": 1})
    (created,) = session.scalars(select(Checkpoint.created_at))
    assert created is not None
    assert abs(datetime.now(timezone.utc) - _in_utc(created)) < timedelta(minutes=5)
    session.rollback()
    put(saver, "t", {"a": 2}, id=id_of(stored))
    assert session.scalars(select(Checkpoint.created_at)).all() == [created]
    of_this_century = Checkpoint.created_at > datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert session.scalar(select(func.count()).where(of_this_century)) == 1


def _in_utc(time: datetime) -> datetime:
    """SQLite keeps the text of a time in UTC, without saying so."""
    return time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)


def test_the_digest_is_that_of_the_payload(saver: SQLAlchemySaver, session: Session) -> None:
    values = {"list": ["x"] * 100, "bytes": b"\x00" * 1_000, "empty": b"", "text": "a\x00b"}
    put(saver, "t", values, new=[*values, "gone"])
    blobs = session.scalars(select(CheckpointBlob)).all()
    assert sorted(blob.channel for blob in blobs) == sorted([*values, "gone"])
    for blob in blobs:
        if blob.channel == "gone":
            assert (blob.type, blob.blob, blob.digest) == ("empty", None, None)
        else:
            assert blob.blob is not None
            assert blob.digest == xxh3_128_digest(blob.blob), blob.channel


def test_rows_may_be_deleted_through_the_models(saver: SQLAlchemySaver, session: Session) -> None:
    old, new = put(saver, "t", {"a": 1}), put(saver, "t", {"a": 2})
    session.execute(delete(Checkpoint).where(Checkpoint.checkpoint_id == id_of(old)))
    session.commit()
    assert [item.config for item in saver.list(None)] == [new]


def test_models_of_another_prefix(engine: Engine, session: Session) -> None:
    """Beside the default ones, in the same database."""
    one, two = SQLAlchemySaver(engine), SQLAlchemySaver(engine, table_prefix="bot_")
    one.setup()
    two.setup()
    put(one, "t", {"a": 1})
    put(two, "t", {"a": 2})
    models = declare(prefix="bot_")
    assert two.models is models
    assert two.models.checkpoint.__tablename__ == "bot_checkpoints"
    (row,) = session.scalars(select(models.checkpoint))
    assert row.checkpoint["channel_values"] == {"a": 2}
    (row,) = session.scalars(select(Checkpoint))
    assert row.checkpoint["channel_values"] == {"a": 1}


def test_every_column_is_documented() -> None:
    documented = [
        column
        for mapper in Base.registry.mappers
        for column in inspect(mapper.class_).local_table.columns
        if column.name not in ("thread_id", "checkpoint_ns")
    ]
    assert len(documented) == 25
    assert [str(column) for column in documented if not column.doc] == []


def test_json_functions_of_an_applications_engine_change_nothing(
    backend: Backend, ready_url: URL
) -> None:
    """Junk is what they return: neither what is stored nor what is read has gone through them."""

    def junk(*_: Any) -> Any:
        return '{"junk": true}'

    values = {"a": {"k": [1, None]}, "n": 1, "f": 1.5, "s": "x"}
    metadata = {"step": 1, "deep": {"list": [1, {"x": None}]}, "id": "r1"}

    def use(saver: Called) -> list[Any]:
        stored = put(saver, "t", values, metadata=metadata)
        saver.put_writes(stored, [("c", {"k": 1})], "task")
        child = put(saver, "t", values, stored, metadata=metadata, new=[])
        history = saver.get_delta_channel_history(config=child, channels=["a"])["a"]
        listed = list(saver.list(None, filter={"deep": {"list": [{"x": None}]}}))
        assert [item.config for item in listed] == [child, stored]
        assert exact(values_of(saver, child)) == exact(values)
        assert exact(metadata_of(saver, child)) == exact(metadata)
        assert history["seed"] == values["a"]
        saver.prune(["t"])
        assert [item.config for item in saver.list(config("t"))] == [child]
        saver.delete_for_runs(["none"])
        return [item.checkpoint["channel_values"] for item in saver.list(config("t"))]

    broken = {"json_serializer": junk, "json_deserializer": junk}
    with called(backend, ready_url, broken) as saver:
        assert use(saver) == [values]
    with called(backend, ready_url) as saver:
        assert values_of(saver, config("t")) == values
