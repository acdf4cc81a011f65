"""The floor: the same bytes by a plain driver, in the fewest statements, without a saver.

Rows are those of the official saver of the database: on Postgres a checkpoint and a blob, on SQLite
the whole checkpoint in one row. They are serialized before the clock starts and not deserialized
after it stops: no saver can be faster that stores these values whole.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks.conversation import TASK_PATH, Conversation, timed

SERDE = JsonPlusSerializer()

#: (checkpoint_id, parent_checkpoint_id, channel, version, payload, checkpoint, metadata)
Saved = Sequence[Any]


class Floor(ABC):
    """One connection, and three tables as the official saver has them."""

    connection: Any

    @abstractmethod
    def beside(self) -> Floor:
        """One for another caller of the same time, on the same tables."""

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def get_next_version(self, current: str | None, channel: None) -> str:
        return f"{int((current or '0').split('.')[0]) + 1:032}.{0:016}"

    @abstractmethod
    def encoded(self, thread: str, checkpoint: dict[str, Any], metadata: dict[str, Any]) -> Saved:
        """The cells of a put."""

    @abstractmethod
    def put(self, cells: Saved) -> None:
        """One checkpoint, and the values that changed, in one transaction."""

    @abstractmethod
    def put_writes(self, rows: list[tuple[Any, ...]]) -> None:
        """Writes of one task, in one transaction."""

    @abstractmethod
    def get(self, thread: str) -> Any:
        """The bytes of the latest checkpoint, of its values and of its writes."""


class PostgresFloor(Floor):
    """psycopg in autocommit, every statement prepared."""

    def __init__(self, dsn: str) -> None:
        import psycopg  # which SQLite alone does not need

        self._connect = partial(psycopg.connect, dsn, autocommit=True, prepare_threshold=0)
        self.connection = self._connect()
        self._others: list[Any] = []
        self.connection.execute(
            "CREATE TABLE checkpoints (thread_id text, checkpoint_ns text, checkpoint_id text, "
            "parent_checkpoint_id text, checkpoint jsonb, metadata jsonb, "
            "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
        )
        self.connection.execute(
            "CREATE TABLE checkpoint_blobs (thread_id text, checkpoint_ns text, channel text, "
            "version text, type text, blob bytea, "
            "PRIMARY KEY (thread_id, checkpoint_ns, channel, version))"
        )
        self.connection.execute(
            "CREATE TABLE checkpoint_writes (thread_id text, checkpoint_ns text, "
            "checkpoint_id text, task_id text, idx int, channel text, type text, blob bytea, "
            "task_path text, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))"
        )

    def beside(self) -> Floor:
        other = copy(self)
        other.connection = self._connect()
        self._others.append(other.connection)
        return other

    def __exit__(self, *error: object) -> None:
        for connection in (self.connection, *self._others):
            connection.close()

    def encoded(self, thread: str, checkpoint: dict[str, Any], metadata: dict[str, Any]) -> Saved:
        values = dict(checkpoint["channel_values"])
        kind, payload = SERDE.dumps_typed(values.pop("messages"))
        values.pop("flags")
        document = json.dumps(checkpoint | {"channel_values": values})
        version = checkpoint["channel_versions"]["messages"]
        cells = (thread, checkpoint["id"], version, kind, payload)
        return (*cells, document, json.dumps(metadata))

    def put(self, cells: Saved) -> None:
        thread, checkpoint_id, version, kind, payload, document, metadata = cells
        self.connection.execute(
            "WITH blob AS (INSERT INTO checkpoint_blobs VALUES (%s, '', 'messages', %s, %s, %b)) "
            "INSERT INTO checkpoints VALUES (%s, '', %s, NULL, %s, %s)",
            (thread, version, kind, payload, thread, checkpoint_id, document, metadata),
        )

    def put_writes(self, rows: list[tuple[Any, ...]]) -> None:
        values = ", ".join(["(%s, '', %s, %s, %s, %s, %s, %b, %s)"] * len(rows))
        cells = [cell for row in rows for cell in row]
        self.connection.execute(f"INSERT INTO checkpoint_writes VALUES {values}", cells)

    def get(self, thread: str) -> Any:
        return self.connection.execute(
            "SELECT c.checkpoint, c.metadata, (SELECT b.blob FROM checkpoint_blobs b "
            "WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns "
            "AND b.channel = 'messages' "
            "AND b.version = c.checkpoint -> 'channel_versions' ->> 'messages'), "
            "(SELECT array_agg(w.blob ORDER BY w.idx) FROM checkpoint_writes w "
            "WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns "
            "AND w.checkpoint_id = c.checkpoint_id) "
            "FROM checkpoints c WHERE c.thread_id = %s AND c.checkpoint_ns = '' "
            "ORDER BY c.checkpoint_id DESC LIMIT 1",
            (thread,),
            binary=True,
        ).fetchone()


class SqliteFloor(Floor):
    """sqlite3 in WAL mode; callers of the same time take turns on one connection."""

    def __init__(self, path: str) -> None:
        self._turn = threading.Lock()
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.executescript(
            "PRAGMA journal_mode=WAL;"
            "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, "
            "parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB, "
            "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));"
            "CREATE TABLE writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, "
            "task_id TEXT, idx INTEGER, channel TEXT, type TEXT, value BLOB, task_path TEXT, "
            "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));"
        )

    def beside(self) -> Floor:
        return self

    def encoded(self, thread: str, checkpoint: dict[str, Any], metadata: dict[str, Any]) -> Saved:
        kind, payload = SERDE.dumps_typed(checkpoint)
        return (thread, checkpoint["id"], kind, payload, json.dumps(metadata).encode())

    def put(self, cells: Saved) -> None:
        with self._turn:
            self.connection.execute(
                "INSERT INTO checkpoints VALUES (?, '', ?, NULL, ?, ?, ?)", cells
            )

    def put_writes(self, rows: list[tuple[Any, ...]]) -> None:
        values = ", ".join(["(?, '', ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
        cells = [cell for row in rows for cell in row]
        with self._turn:
            self.connection.execute(f"INSERT INTO writes VALUES {values}", cells)

    def get(self, thread: str) -> Any:
        latest = self.connection.execute(
            "SELECT checkpoint_id, checkpoint, metadata FROM checkpoints WHERE thread_id = ? "
            "AND checkpoint_ns = '' ORDER BY checkpoint_id DESC LIMIT 1",
            (thread,),
        ).fetchone()
        writes = self.connection.execute(
            "SELECT value FROM writes WHERE thread_id = ? AND checkpoint_ns = '' "
            "AND checkpoint_id = ? ORDER BY task_id, idx",
            (thread, latest[0]),
        ).fetchall()
        return latest, writes


class BareConversation(Conversation):
    """A conversation on the floor: what is saved is serialized before the clock starts."""

    def save(
        self, checkpoint: dict[str, Any], metadata: dict[str, Any], new: dict[str, str]
    ) -> float:
        return timed(self.saver.put, self.cells(checkpoint, metadata))

    def cells(self, checkpoint: dict[str, Any], metadata: dict[str, Any]) -> Saved:
        """The next checkpoint, as it is stored."""
        self.config = {"configurable": {"checkpoint_id": checkpoint["id"]}}
        return self.saver.encoded(self.thread_id, checkpoint, metadata)

    def put_writes(self) -> float:
        return timed(self.saver.put_writes, self.rows())

    def rows(self) -> list[tuple[Any, ...]]:
        """Three writes of a task, as they are stored."""
        writes, task = self.task_writes()
        checkpoint_id = self.config["configurable"]["checkpoint_id"]
        return [
            (
                self.thread_id,
                checkpoint_id,
                task,
                index,
                channel,
                *SERDE.dumps_typed(value),
                TASK_PATH,
            )
            for index, (channel, value) in enumerate(writes)
        ]

    def get_tuple(self) -> float:
        return timed(self.saver.get, self.thread_id)
