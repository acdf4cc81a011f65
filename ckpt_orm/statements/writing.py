"""Writing: what `put`, `put_writes` and `delete_thread` store and remove.

The rows of a call travel as one JSON parameter, their payloads as one byte string in which each row
knows its place. So a statement is the same for any number of rows, and bytes are sent as bytes: an
array of them would go as escaped text with several drivers.

On Postgres each call is a single statement, so one round trip and one transaction without BEGIN and
COMMIT. On SQLite, which has no writing CTE and no network, it is a statement per table.
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
    cast,
    delete,
    func,
    select,
    true,
)
from sqlalchemy.sql.base import Executable

from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import Column, constant, param
from ckpt_orm.statements.finding import Finding
from ckpt_orm.statements.reading import key_columns

#: Bytes of a digest; it stands behind its payload.
DIGEST_SIZE = 16


class Statements(Finding):
    """All statements of one set of tables on one dialect; `statements_for` makes and keeps them."""

    @cached_property
    def PUT(self) -> Sequence[Executable]:
        """A checkpoint with its blobs."""
        return self.dialect.together(self.BLOBS, self.CHECKPOINT)

    @cached_property
    def CHECKPOINT(self) -> Any:
        """A checkpoint; one that is there already keeps its parent."""
        document = self.dialect.document
        insert = self._insert(
            self.checkpoints,
            None,
            **_params("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"),
            checkpoint=document(param("checkpoint")),
            metadata=document(param("metadata")),
        )
        changed = {name: insert.excluded[name] for name in ("checkpoint", "metadata")}
        key = key_columns(self.checkpoints)
        return insert.on_conflict_do_update(index_elements=key, set_=changed)

    @cached_property
    def BLOBS(self) -> Any:
        """Blobs; a version that is there already stays as it is."""
        return self._blobs().on_conflict_do_nothing(index_elements=key_columns(self.blobs))

    @cached_property
    def SNAPSHOTS(self) -> Any:
        """Blobs; a version that is there already stays, unless it is empty."""
        insert = self._blobs()
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.blobs),
            set_={name: insert.excluded[name] for name in ("type", "blob", "digest")},
            where=self.blobs.c.type == constant(EMPTY),
        )

    def _blobs(self) -> Any:
        rows = self.dialect.rows(
            "rows", channel=Text, version=Text, type=Text, start=Integer, size=Integer
        )
        digest = _part(rows.c.start + rows.c.size, constant(DIGEST_SIZE))
        return self._insert(
            self.blobs,
            rows,
            **_params("thread_id", "checkpoint_ns"),
            **{name: rows.c[name] for name in ("channel", "version", "type")},
            blob=_part(rows.c.start, rows.c.size),
            digest=digest,
        )

    @cached_property
    def WRITES(self) -> Any:
        """Writes; of one that is there already, only a special channel's (idx < 0) is replaced."""
        rows = self.dialect.rows(
            "rows", idx=Integer, channel=Text, type=Text, start=Integer, size=Integer
        )
        insert = self._insert(
            self.writes,
            rows,
            **_params("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path"),
            **{name: rows.c[name] for name in ("idx", "channel", "type")},
            blob=_part(rows.c.start, rows.c.size),
        )
        replaced = ("channel", "type", "blob", "task_path")
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.writes),
            set_={name: insert.excluded[name] for name in replaced},
            where=insert.excluded.idx < constant(0),
        )

    @cached_property
    def DELETE_THREAD(self) -> Sequence[Executable]:
        """All rows of a thread."""
        tables = (self.writes, self.blobs, self.checkpoints)
        of_thread = (table.c.thread_id == param("thread_id") for table in tables)
        deletes = (
            delete(table).where(is_in) for table, is_in in zip(tables, of_thread, strict=True)
        )
        return self.dialect.together(*deletes)

    def _insert(self, table: Table, source: FromClause | None, **columns: Column) -> Any:
        """INSERT … SELECT, which reads the same from parameters and from rows."""
        rows = select(*columns.values())
        if source is not None:
            rows = rows.select_from(source)
        # SQLite needs a WHERE here to tell ON CONFLICT from a join's ON.
        return self.dialect.insert(table).from_select(list(columns), rows.where(true()))


def _params(*names: str) -> dict[str, Column]:
    return {name: param(name) for name in names}


def _part(start: Column, size: Column) -> Column:
    """A part of the payload; NULL where its size is."""
    # Said in words, since pg8000 leaves it to the server, which takes a text's `substr` then.
    payload = cast(param("payload", LargeBinary), LargeBinary)
    return func.substr(payload, start, size, type_=LargeBinary)
