"""Stepping: a checkpoint with what belongs to it, table by table, where no network lies between.

The single statement of `reading` saves round trips. On a SQLite file there are none to save, and
three look-ups by key take half of its time; what they read must be read in one transaction then.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    LargeBinary,
    Select,
    Table,
    Text,
    and_,
    func,
    select,
)
from sqlalchemy.sql.base import Executable

from ckpt_orm.once import once
from ckpt_orm.rows import SENDS_WITH_CHECKPOINT
from ckpt_orm.statements.dialects import constant, param
from ckpt_orm.statements.reading import PAYLOAD, Reading


class Stepping(Reading):
    """The statements that read one checkpoint in steps."""

    @once
    def LATEST_ALONE(self) -> Executable:
        """The newest checkpoint of a thread and namespace, by itself."""
        newest = self.dialect.in_order(self.checkpoints.c.checkpoint_id).desc()
        return (
            self._alone(*self._names("thread_id", "checkpoint_ns"))
            .order_by(newest)
            .limit(constant(1))
        )

    @once
    def ALONE(self) -> Executable:
        """The checkpoint of an id, by itself."""
        return self._alone(*self._names("thread_id", "checkpoint_ns", "checkpoint_id"))

    def _alone(self, *where: ColumnElement[bool]) -> Select[Any]:
        """Id, parent, document, metadata, and whether its sends are kept with the parent."""
        table, text_of = self.checkpoints.c, self.dialect.text
        return select(
            table.checkpoint_id,
            table.parent_checkpoint_id,
            text_of(table.checkpoint),
            text_of(table.metadata),
            func.coalesce(self.dialect.older(table.checkpoint, SENDS_WITH_CHECKPOINT), constant(0)),
        ).where(*where)

    @once
    def BLOBS_OF_DOCUMENT(self) -> Executable:
        """The blobs that the versions of a document name, as rows of `Blob`; NULLs for none.

        An outer join, whose order is fixed: the other way round, all blobs of the thread are read.
        """
        blob = self.blobs.c
        named = self.dialect.entries(param("document"), "channel_versions")
        same = and_(
            *self._names("thread_id", "checkpoint_ns", table=self.blobs),
            blob.channel == named.c.key,
            blob.version == self.dialect.text(named.c.value),
        )
        columns = (blob[name] for name in ("channel", "version", *PAYLOAD, "stop"))
        return select(*columns).select_from(named.outerjoin(self.blobs, same))

    @once
    def SEGMENTS_OF_CHAIN(self) -> Executable:
        """The segments of a chain below `stop`, in order, as rows of `Segment`."""
        segment = self.segments.c
        of_chain = self._names("thread_id", "checkpoint_ns", "channel", table=self.segments)
        return (
            select(segment.start, segment.data, segment.digest)
            .where(
                *of_chain,
                segment.chain == param("chain", LargeBinary),
                segment.start < param("stop", BigInteger),
            )
            .order_by(segment.start)
        )

    @once
    def WRITES_OF_CHECKPOINT(self) -> Select[Any]:
        """The writes of a checkpoint, as rows of `FoundWrite`."""
        write = self.writes.c
        columns = ("task_path", "task_id", "idx", "channel", "type", "blob")
        at = self._names("thread_id", "checkpoint_ns", "checkpoint_id", table=self.writes)
        return select(*(write[name] for name in columns)).where(*at)

    @once
    def SENDS_OF_CHECKPOINT(self) -> Executable:
        """Those to `__pregel_tasks`."""
        return self.WRITES_OF_CHECKPOINT.where(self.writes.c.channel == constant(TASKS))

    def _names(self, *keys: str, table: Table | None = None) -> list[ColumnElement[bool]]:
        of = self.checkpoints if table is None else table
        return [of.c[key] == param(key, Text) for key in keys]
