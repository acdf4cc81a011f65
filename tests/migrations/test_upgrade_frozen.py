"""The database each revision left behind is upgraded, read, and written to again."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from freeze import FROZEN, GROWS, assert_thread, identity, write_thread
from migration_helpers import MakeEngine
from sqlalchemy import URL, Engine
from test_upgrade_offline import psql

from ckpt_orm import SQLAlchemySaver, migrations
from ckpt_orm.errors import SchemaNotReady
from ckpt_orm.migrations import HEAD, REVISIONS
from ckpt_orm.migrations.compare import differences
from ckpt_orm.migrations.place import Place

CONFIG: Any = {"configurable": {"thread_id": "official", "checkpoint_ns": ""}}


def thaw(url: URL, revision: str) -> None:
    if url.get_backend_name() == "sqlite":
        shutil.copy(FROZEN / f"{revision}.sqlite3", str(url.database))
    else:
        psql(url, (FROZEN / f"{revision}.sql").read_text())


@pytest.fixture(params=REVISIONS)
def frozen(request: pytest.FixtureRequest, database_url: URL, make_engine: MakeEngine) -> Engine:
    """An engine on a database as a release left it."""
    thaw(database_url, request.param)
    engine = make_engine(database_url)
    with engine.connect() as connection:
        assert migrations.current(connection) == request.param
    return engine


def test_a_frozen_database_is_upgraded_and_used(frozen: Engine) -> None:
    with frozen.connect() as connection:
        was = str(migrations.current(connection))
    saver = SQLAlchemySaver(frozen)
    saver.setup()
    with frozen.connect() as connection:
        assert differences(connection, Place()) == []
    assert_thread(saver, "official")
    if saver.exists({"configurable": {"thread_id": "ours"}}):
        assert_thread(saver, "ours", grows=was >= GROWS)

    newest = saver.get_tuple(CONFIG)
    assert newest is not None
    checkpoint = {**newest.checkpoint, "id": identity(9)}
    saver.put(newest.config, checkpoint, {"source": "loop", "step": 3}, {})  # type: ignore[arg-type]
    continued = saver.get_tuple(CONFIG)
    assert continued is not None
    assert continued.parent_config == newest.config
    assert continued.checkpoint["channel_values"] == newest.checkpoint["channel_values"]

    write_thread(saver, "new")
    assert_thread(saver, "new")
    saver.delete_thread("official")
    assert saver.get_tuple(CONFIG) is None


def test_a_saver_says_what_it_needs(frozen: Engine) -> None:
    with frozen.connect() as connection:
        current = migrations.current(connection)
    saver = SQLAlchemySaver(frozen)
    if current != HEAD:
        with pytest.raises(SchemaNotReady, match="ckpt-orm upgrade"):
            saver.get_tuple(CONFIG)
    else:
        assert_thread(saver, "ours", grows=True)
