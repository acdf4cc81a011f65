"""Writing: what `put`, `put_writes` and `delete_thread` do, in steps of (statement, parameters).

On Postgres each is one statement, so one round trip and one transaction without BEGIN and COMMIT.
On SQLite, which has no writing CTE and no network, there is a step per table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    FromClause,
    Integer,
    LargeBinary,
    Table,
    Text,
    case,
    delete,
    func,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from ckpt_orm.codec import PutRows, WriteRows
from ckpt_orm.statements.dialects import Column, constant, param
from ckpt_orm.statements.keeping import Keeping
from ckpt_orm.statements.reading import key_columns

Step = tuple[Executable, Any]


class Statements(Keeping):
    """All statements of one set of tables on one dialect; `statements_for` makes and keeps them."""

    def _insert(self, table: Table, source: FromClause | None = None, **columns: Column) -> Any:
        """INSERT … SELECT, since it reads the same from parameters and from a set of rows."""
        rows = select(*columns.values())
        if source is not None:
            rows = rows.select_from(source)
        # SQLite needs a WHERE here to tell ON CONFLICT from a join's ON.
        return self.dialect.insert(table).from_select(list(columns), rows.where(true()))

    @cached_property
    def CHECKPOINT(self) -> Any:
        """A checkpoint; one that is there already keeps its parent."""
        document = self.dialect.document
        insert = self._insert(
            self.checkpoints,
            thread_id=param("thread_id"),
            checkpoint_ns=param("checkpoint_ns"),
            checkpoint_id=param("checkpoint_id"),
            parent_checkpoint_id=param("parent_checkpoint_id"),
            checkpoint=document(param("checkpoint")),
            metadata=document(param("metadata")),
        )
        changed = {name: insert.excluded[name] for name in ("checkpoint", "metadata")}
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.checkpoints), set_=changed
        )

    def _blob_rows(self, source: FromClause | None, **columns: Column) -> Any:
        """Blobs; a version that is there already stays as it is."""
        insert = self._insert(
            self.blobs,
            source,
            thread_id=param("thread_id"),
            checkpoint_ns=param("checkpoint_ns"),
            **columns,
        )
        return insert.on_conflict_do_nothing(index_elements=key_columns(self.blobs))

    def _write_rows(self, source: FromClause | None, **columns: Column) -> Any:
        """Writes; of one that is there already, only a special channel's (idx < 0) is replaced."""
        insert = self._insert(
            self.writes,
            source,
            thread_id=param("thread_id"),
            checkpoint_ns=param("checkpoint_ns"),
            checkpoint_id=param("checkpoint_id"),
            task_id=param("task_id"),
            task_path=param("task_path"),
            **columns,
        )
        replaced = ("channel", "type", "blob", "task_path")
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.writes),
            set_={name: insert.excluded[name] for name in replaced},
            where=insert.excluded.idx < constant(0),
        )

    def put(self, rows: PutRows) -> Sequence[Step]:
        """The steps that store a checkpoint with its blobs."""
        raise NotImplementedError

    def put_writes(self, rows: WriteRows) -> Sequence[Step]:
        """The steps that store the writes of a task."""
        raise NotImplementedError

    def delete_thread(self, thread_id: str) -> Sequence[Step]:
        """The steps that remove all of a thread's rows."""
        raise NotImplementedError

    def _of_thread(self, table: Table) -> Any:
        return delete(table).where(table.c.thread_id == param("thread_id"))


class PostgresStatements(Statements):
    """On Postgres a call is one statement: its rows travel as arrays, their payloads as one value.

    An array of byte strings would be sent as escaped text by several drivers; a single byte string
    with the place of each part in it is binary in all of them.
    """

    @cached_property
    def PUT(self) -> Executable:
        """A checkpoint with its blobs."""
        rows = _unnested(
            channel=Text, version=Text, type=Text, start=Integer, size=Integer, digest=Text
        )
        blobs = self._blob_rows(
            rows,
            channel=rows.c.channel,
            version=rows.c.version,
            type=rows.c.type,
            blob=case((rows.c.size.is_not(None), _part(rows))),
            digest=func.decode(rows.c.digest, constant("hex")),
        )
        statement: Executable = self.CHECKPOINT.add_cte(blobs.cte("stored_blobs"))
        return statement

    @cached_property
    def PUT_WRITES(self) -> Executable:
        """The writes of a task."""
        rows = _unnested(idx=Integer, channel=Text, type=Text, start=Integer, size=Integer)
        statement: Executable = self._write_rows(
            rows, idx=rows.c.idx, channel=rows.c.channel, type=rows.c.type, blob=_part(rows)
        )
        return statement

    @cached_property
    def DELETE_THREAD(self) -> Executable:
        """All rows of a thread."""
        blobs, writes = self._of_thread(self.blobs), self._of_thread(self.writes)
        statement: Executable = self._of_thread(self.checkpoints).add_cte(
            blobs.cte("deleted_blobs"), writes.cte("deleted_writes")
        )
        return statement

    def put(self, rows: PutRows) -> Sequence[Step]:  # noqa: D102
        blobs = rows.blobs
        return [
            (
                self.PUT,
                {
                    **_checkpoint_params(rows),
                    "channel": [blob.channel for blob in blobs],
                    "version": [blob.version for blob in blobs],
                    "type": [blob.type for blob in blobs],
                    "digest": [blob.digest and blob.digest.hex() for blob in blobs],
                    **_parts([blob.blob for blob in blobs]),
                },
            )
        ]

    def put_writes(self, rows: WriteRows) -> Sequence[Step]:  # noqa: D102
        writes = rows.writes
        return [
            (
                self.PUT_WRITES,
                {
                    **_task_params(rows),
                    "idx": [write.idx for write in writes],
                    "channel": [write.channel for write in writes],
                    "type": [write.type for write in writes],
                    **_parts([write.blob for write in writes]),
                },
            )
        ]

    def delete_thread(self, thread_id: str) -> Sequence[Step]:  # noqa: D102
        return [(self.DELETE_THREAD, {"thread_id": thread_id})]


class SqliteStatements(Statements):
    """On SQLite, which has no writing CTE and no network, a call is a step per table."""

    @cached_property
    def BLOB(self) -> Executable:
        """One blob."""
        names = ("channel", "version", "type")
        binary = {name: param(name, LargeBinary) for name in ("blob", "digest")}
        statement: Executable = self._blob_rows(
            None, **{name: param(name) for name in names}, **binary
        )
        return statement

    @cached_property
    def WRITE(self) -> Executable:
        """One write."""
        statement: Executable = self._write_rows(
            None,
            idx=param("idx", Integer),
            channel=param("channel"),
            type=param("type"),
            blob=param("blob", LargeBinary),
        )
        return statement

    def put(self, rows: PutRows) -> Sequence[Step]:  # noqa: D102
        key = {"thread_id": rows.key.thread_id, "checkpoint_ns": rows.key.checkpoint_ns}
        blobs = [{**key, **blob._asdict()} for blob in rows.blobs]
        checkpoint = (self.CHECKPOINT, _checkpoint_params(rows))
        return [(self.BLOB, blobs), checkpoint] if blobs else [checkpoint]

    def put_writes(self, rows: WriteRows) -> Sequence[Step]:  # noqa: D102
        key = _task_params(rows)
        return [(self.WRITE, [{**key, **write._asdict()} for write in rows.writes])]

    def delete_thread(self, thread_id: str) -> Sequence[Step]:  # noqa: D102
        tables = (self.checkpoints, self.blobs, self.writes)
        return [(self._of_thread(table), {"thread_id": thread_id}) for table in tables]


def _unnested(**types: type[TypeEngine[Any]]) -> TableValuedAlias:
    """Rows from equally long arrays, one per column."""
    arrays = (param(name, ARRAY(type_)) for name, type_ in types.items())
    return func.unnest(*arrays).table_valued(*types, name="rows").render_derived()


def _part(rows: TableValuedAlias) -> Column:
    """The row's own part of the payload."""
    return func.substr(param("payload", LargeBinary), rows.c.start, rows.c.size, type_=LargeBinary)


def _parts(payloads: Sequence[bytes | None]) -> dict[str, Any]:
    """The parameters of `_part`: all payloads as one, where each begins (from 1), its size."""
    starts, position = [], 1
    for payload in payloads:
        starts.append(position)
        position += len(payload or b"")
    return {
        "payload": b"".join(payload or b"" for payload in payloads),
        "start": starts,
        "size": [None if payload is None else len(payload) for payload in payloads],
    }


def _checkpoint_params(rows: PutRows) -> dict[str, Any]:
    return {
        **rows.key._asdict(),
        "parent_checkpoint_id": rows.parent_checkpoint_id,
        "checkpoint": rows.checkpoint,
        "metadata": rows.metadata,
    }


def _task_params(rows: WriteRows) -> dict[str, Any]:
    return {**rows.key._asdict(), "task_id": rows.task_id, "task_path": rows.task_path}
