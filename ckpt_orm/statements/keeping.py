"""Keeping: what a thread consists of, without its state; deletions by key; copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    delete,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.sql.base import Executable

from ckpt_orm.columns import own_key
from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import Column, constant, param
from ckpt_orm.statements.reading import found, key_columns
from ckpt_orm.statements.walking import Walking


class Keeping(Walking):
    """The statements of `retention`."""

    @cached_property
    def THREADS_OF_RUNS(self) -> Executable:
        """The threads in which some runs have made a checkpoint."""
        run_id = self.dialect.member(self.checkpoints.c.metadata, "run_id")
        wanted = self.dialect.elements("run_ids")
        return (
            select(self.checkpoints.c.thread_id)
            .where(run_id.in_(select(wanted.c.value)))
            .distinct()
            .order_by(self.checkpoints.c.thread_id)
        )

    @cached_property
    def SKELETON(self) -> Executable:
        """A thread's checkpoints, its blobs with a value, and its pending sends; no state."""
        checkpoint, blob, write = self.checkpoints.c, self.blobs.c, self.writes.c
        of_thread = param("thread_id")
        return union_all(
            found(
                "checkpoint",
                self.checkpoints,
                checkpoint_ns=checkpoint.checkpoint_ns,
                checkpoint_id=checkpoint.checkpoint_id,
                parent_checkpoint_id=checkpoint.parent_checkpoint_id,
                checkpoint=self.dialect.text(checkpoint.checkpoint),
                metadata=self.dialect.text(checkpoint.metadata),
            ).where(checkpoint.thread_id == of_thread),
            found(
                "blob",
                self.blobs,
                checkpoint_ns=blob.checkpoint_ns,
                channel=blob.channel,
                version=blob.version,
            ).where(blob.thread_id == of_thread, blob.type != constant(EMPTY)),
            found(
                "send",
                self.writes,
                checkpoint_ns=write.checkpoint_ns,
                checkpoint_id=write.checkpoint_id,
            ).where(write.thread_id == of_thread, write.channel == constant(TASKS)),
        )

    @cached_property
    def CHECKPOINTS_AT(self) -> Executable:
        """Some checkpoints of a namespace, to delete."""
        return self._delete(self.checkpoints, ids="checkpoint_id")

    @cached_property
    def WRITES_AT(self) -> Executable:
        """The writes of some checkpoints of a namespace, to delete."""
        return self._delete(self.writes, ids="checkpoint_id")

    @cached_property
    def BLOBS_AT(self) -> Executable:
        """Some versions of a channel, to delete."""
        return self._delete(self.blobs, "of_channel", ids="version")

    def _delete(self, table: Table, *names: str, ids: str) -> Executable:
        """The rows of `of_thread`, `of_ns` and names in key order, and of a list: by the index."""
        at = self._named(table, *names)
        return delete(table).where(at, self.dialect.among(table.c[ids], "ids"))

    @cached_property
    def WITHOUT_PARENT(self) -> Executable:
        """One checkpoint, to be made a root."""
        at = self._named(self.checkpoints, "of_id")
        return update(self.checkpoints).where(at).values(parent_checkpoint_id=null())

    def _named(self, table: Table, *names: str) -> ColumnElement[bool]:
        """The rows of a table that the parameters `of_thread`, `of_ns`, … name, in key order."""
        params = ("of_thread", "of_ns", *names)
        return and_(*(c == param(name) for c, name in zip(own_key(table), params, strict=False)))

    @cached_property
    def COPIES(self) -> Sequence[Executable]:
        """All rows of a thread, table by table, under another thread's id."""
        return [self._copy(table) for table in (self.blobs, self.writes, self.checkpoints)]

    @cached_property
    def CHECKPOINT_COPY(self) -> Executable:
        """One checkpoint under another thread's id, and with another parent."""
        return self._copy(self.checkpoints, "of_id", parent_checkpoint_id=param("of_parent"))

    @cached_property
    def WRITES_COPY(self) -> Executable:
        """The writes of one checkpoint under another thread's id."""
        return self._copy(self.writes, "of_id")

    @cached_property
    def BLOB_COPY(self) -> Executable:
        """One blob under another thread's id."""
        return self._copy(self.blobs, "of_channel", "of_version")

    def _copy(self, table: Table, *names: str, **instead: Column) -> Executable:
        """The rows of the thread `source`; with names, those of `of_ns` and them, in key order."""
        columns: dict[str, Column] = {
            c.name: c
            for c in table.columns
            if c.name not in ("thread_id", "created_at") and c.computed is None
        }
        columns |= instead
        params = ("source", *(("of_ns", *names) if names else ()))
        at = (c == param(name) for c, name in zip(own_key(table), params, strict=False))
        rows = select(param("target"), *columns.values()).where(*at)
        insert: Any = self.dialect.insert(table).from_select(["thread_id", *columns], rows)
        statement: Executable = insert.on_conflict_do_nothing(index_elements=key_columns(table))
        return statement
