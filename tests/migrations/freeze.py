"""Freeze a database of the newest revision, on each dialect, for the tests of every later release.

    python tests/migrations/freeze.py [REVISION]

Each holds a thread as the official PostgresSaver writes it, which works at every revision, and, at
the newest, one of our own. What is written is never changed again: a frozen file is what a release
left behind, not what a later one would.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from servers import postgres_database, postgres_server
from sqlalchemy import URL, Engine, create_engine, make_url, text

from ckpt_orm import SQLAlchemySaver, migrations
from ckpt_orm.migrations import HEAD
from ckpt_orm.migrations.place import TABLES

FROZEN = Path(__file__).parent / "frozen"
STEPS = 3


#: The first revision in whose databases there is a value that grows.
GROWS = "ckpt_orm_0004"


def values(step: int, *, grows: bool = False) -> dict[str, Any]:
    """What the thread's channels hold after a step: inlined, not, and as a log."""
    found = {"step": step, "name": "Zoë", "messages": [f"message {n} ✓" for n in range(step + 1)]}
    return found | ({"log": [f"{n:0700}" for n in range(100 + step)]} if grows else {})


def identity(step: int) -> str:
    """A checkpoint's id: of the shape that LangGraph makes, and the same each time."""
    return f"1f0dd4ea-0000-6000-bfff-00000000000{step}"


def write_thread(saver: Any, thread: str, *, grows: bool = False) -> None:
    """Three checkpoints, the last with a pending write."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for step in range(STEPS):
        checkpoint = empty_checkpoint()
        checkpoint["id"] = identity(step)
        checkpoint["channel_values"] = values(step, grows=grows)
        versions: Any = dict.fromkeys(checkpoint["channel_values"], f"{step:032}.0")
        checkpoint["channel_versions"] = versions
        config = saver.put(config, checkpoint, {"source": "loop", "step": step}, versions)
    saver.put_writes(config, [("messages", "pending")], "task")


def assert_thread(saver: Any, thread: str, *, grows: bool = False) -> None:
    """The thread is as it was written."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    found = list(saver.list(config))
    assert [item.checkpoint["id"] for item in found] == [identity(s) for s in (2, 1, 0)]
    expected = [values(step, grows=grows) for step in (2, 1, 0)]
    assert [item.checkpoint["channel_values"] for item in found] == expected
    assert [item.metadata["step"] for item in found] == [2, 1, 0]
    newest = saver.get_tuple(config)
    assert newest.pending_writes == [("task", "messages", "pending")]
    assert newest.parent_config["configurable"]["checkpoint_id"] == identity(1)


@contextmanager
def disposed(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def freeze(revision: str, server: URL) -> None:
    """Write both files."""
    from test_upgrade_offline import connection_string, dump_with_rows

    path = FROZEN / f"{revision}.sqlite3"
    path.unlink(missing_ok=True)
    with postgres_database(server) as url, disposed(url) as engine:
        migrations.setup_engine(engine, to=revision)
        with PostgresSaver.from_conn_string(connection_string(url)) as saver:
            write_thread(saver, "official")
        with disposed(make_url(f"sqlite:///{path}")) as other:
            migrations.setup_engine(other, to=revision)
            copy(engine, path)
            if revision == HEAD:
                write_thread(SQLAlchemySaver(other, growth="append"), "ours", grows=True)
        if revision == HEAD:
            write_thread(SQLAlchemySaver(engine, growth="append"), "ours", grows=True)
        (FROZEN / f"{revision}.sql").write_text(dump_with_rows(url))


def copy(engine: Engine, path: Path) -> None:
    """Copy the rows into SQLite as they are, documents as text."""
    with closing(sqlite3.connect(path)) as target, engine.connect() as source:
        for table in TABLES:
            names = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
            documents = {"checkpoint", "metadata", "created_at"}
            columns = ", ".join(f"CAST({n} AS TEXT)" if n in documents else n for n in names)
            marks = ", ".join("?" * len(names))
            for row in source.execute(text(f"SELECT {columns} FROM {table}")):
                target.execute(f"INSERT INTO {table} VALUES ({marks})", tuple(row))
        target.commit()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with postgres_server() as running:
        freeze(sys.argv[1] if len(sys.argv) > 1 else HEAD, running)
