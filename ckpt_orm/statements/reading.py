"""Reading: a checkpoint, or a page of them, with all that belongs to it, in one statement.

One statement is one snapshot and one round trip. Its rows are of several kinds, told apart by their
first column; a kind leaves the columns that it does not have NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    Table,
    Text,
    and_,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import TypeEngine

from ckpt_orm.columns import fillings, own_key
from ckpt_orm.models import Models
from ckpt_orm.once import once
from ckpt_orm.rows import SENDS_WITH_CHECKPOINT
from ckpt_orm.statements.dialects import Column, Dialect, constant, param

#: The columns of a reading, with the type of the NULL that stands where one is not used.
FOUND: dict[str, TypeEngine[Any]] = {
    "kind": Text(),
    "thread_id": Text(),
    "checkpoint_ns": Text(),
    "checkpoint_id": Text(),
    "parent_checkpoint_id": Text(),
    "channel": Text(),
    "version": Text(),
    "task_path": Text(),
    "task_id": Text(),
    "idx": Integer(),
    "type": Text(),
    "blob": LargeBinary(),
    "digest": LargeBinary(),
    "checkpoint": Text(),
    "metadata": Text(),
    "chain": LargeBinary(),
}


#: The key of a blob, and what is read of it.
BLOB_KEY = ("thread_id", "checkpoint_ns", "channel", "version")
PAYLOAD = ("type", "blob", "digest", "chain")


def key_columns(table: Table) -> list[str]:
    """The names of a table's primary key, in its order."""
    return [column.name for column in table.primary_key]


def found(kind: str | Column, source: FromClause, **columns: Column) -> Select[Any]:
    """One branch of a reading: `columns` of `source`, and NULL for the others."""
    given = {"kind": cast(constant(kind), Text) if isinstance(kind, str) else kind, **columns}
    return select(
        *(given.get(name, cast(null(), type_)).label(name) for name, type_ in FOUND.items())
    ).select_from(source)


def also(kind: str, source: FromClause, **columns: Column) -> Select[Any]:
    """A branch after the first, which has given names and types to all columns.

    A driver takes a statement apart with each execution if it is long, and sends it whole.
    """
    given = {"kind": constant(kind), **columns}
    return select(*(given.get(name, literal_column("NULL")) for name in FOUND)).select_from(source)


class Page(NamedTuple):
    """Which conditions a page of `list` has: the shape of its statement, not their values."""

    thread_id: bool
    checkpoint_ns: bool
    checkpoint_id: bool
    before: bool
    filter: bool
    after: bool


class Reading:
    """The statements that read checkpoints.

    Args:
        models: the mapped tables.
        dialect: what is particular to the database.
    """

    def __init__(self, models: Models, dialect: Dialect) -> None:
        self.dialect = dialect
        self.checkpoints, self.blobs, self.writes, self.segments = models.tables
        self.fillings = fillings(models.tables)
        self._pages: dict[Page, Executable] = {}

    @once
    def LATEST(self) -> Executable:
        """The newest checkpoint of a thread and namespace, with its blobs and writes."""
        where = self._is("thread_id"), self._is("checkpoint_ns")
        return self._reading(self._targets(*where, limit=constant(1)))

    @once
    def AT(self) -> Executable:
        """The checkpoint of an id, with its blobs and writes."""
        keys = ("thread_id", "checkpoint_ns", "checkpoint_id")
        return self._reading(self._targets(*(self._is(key) for key in keys)))

    def page(self, shape: Page) -> Executable:
        """A page of checkpoints, newest first, with their blobs (each once) and their writes."""
        if shape not in self._pages:
            target = self._targets(*self._where(shape), limit=param("limit", Integer))
            self._pages[shape] = self._reading(target, several=True)
        return self._pages[shape]

    def _where(self, shape: Page) -> Sequence[ColumnElement[bool]]:
        table, in_order = self.checkpoints.c, self.dialect.in_order
        where = [
            self._is(key)
            for key in ("thread_id", "checkpoint_ns", "checkpoint_id")
            if getattr(shape, key)
        ]
        if shape.before:
            where.append(in_order(table.checkpoint_id) < param("before"))
        if shape.filter:
            where.append(self.dialect.contains(table.metadata, param("filter")))
        if shape.after:
            where.append(self._after())
        return where

    def _after(self) -> ColumnElement[bool]:
        """Below the last row of the page before, in the order of `_targets`."""
        table, in_order = self.checkpoints.c, self.dialect.in_order
        older = in_order(table.checkpoint_id) < param("after_id")
        same = table.checkpoint_id == param("after_id")
        thread, ns = in_order(table.thread_id), in_order(table.checkpoint_ns)
        return or_(
            older,
            and_(same, thread > param("after_thread")),
            and_(same, table.thread_id == param("after_thread"), ns > param("after_ns")),
        )

    def _is(self, key: str) -> ColumnElement[bool]:
        return self.checkpoints.c[key] == param(key)

    def _targets(self, *where: ColumnElement[bool], limit: Column | None = None) -> CTE:
        """The checkpoints a reading is about."""
        table, in_order = self.checkpoints.c, self.dialect.in_order
        query = select(
            table.thread_id,
            table.checkpoint_ns,
            table.checkpoint_id,
            table.parent_checkpoint_id,
            table.checkpoint,
            table.metadata,
        ).where(*where)
        if limit is not None:
            query = query.order_by(
                in_order(table.checkpoint_id).desc(),
                in_order(table.thread_id),
                in_order(table.checkpoint_ns),
            ).limit(limit)
        return query.cte("target")

    def _reading(self, target: CTE, *, several: bool = False) -> Executable:
        """The rows of the target checkpoints in one statement, so of one snapshot.

        Five kinds of rows: "checkpoint", "blob" (what `channel_versions` name, each once),
        "segment" (the bytes of those that are parts of chains, each once), "write", and "send" (for
        formats before v4: the parent's writes to `__pregel_tasks`).
        """
        row, text_of = target.c, self.dialect.text
        key = {name: row[name] for name in ("thread_id", "checkpoint_ns", "checkpoint_id")}
        blobs = self._blobs_of(target, several)
        return union_all(
            found(
                "checkpoint",
                target,
                **key,
                parent_checkpoint_id=row.parent_checkpoint_id,
                checkpoint=text_of(row.checkpoint),
                metadata=text_of(row.metadata),
            ),
            also("blob", blobs, **{name: blobs.c[name] for name in (*BLOB_KEY, *PAYLOAD)}),
            self._segments_of(blobs, several),
            self._writes_of("write", target, key, row.checkpoint_id),
            self._writes_of("send", target, key, row.parent_checkpoint_id, TASKS).where(
                self.dialect.older(row.checkpoint, SENDS_WITH_CHECKPOINT),
            ),
        )

    def _blobs_of(self, target: CTE, several: bool) -> CTE:
        """The blobs that `channel_versions` name."""
        row = target.c
        named = self.dialect.entries(row.checkpoint, "channel_versions")
        query = select(
            row.thread_id,
            row.checkpoint_ns,
            named.c.key.label("channel"),
            self.dialect.text(named.c.value).label("version"),
        ).select_from(target.join(named, true()))
        # Without DISTINCT, SQLite would go through all blobs of the thread, and through the JSON
        # again for each of them.
        once = several or self.dialect.steps
        versions = (query.distinct() if once else query).cte("versions")
        key = {column.name: versions.c[column.name] for column in own_key(self.blobs)}
        same = and_(*(self.blobs.c[name] == key[name] for name in key))
        names = (*PAYLOAD, "stop")
        joined, blob = self.dialect.lookup(versions, self.blobs, same, *names)
        columns = (blob[name] for name in names)
        return select(*key.values(), *columns).select_from(joined).cte("named")

    def _segments_of(self, blobs: CTE, several: bool) -> Select[Any]:
        """The segments of blobs, each once: of several versions of a value one needs the most."""
        row, key = blobs.c, ("thread_id", "checkpoint_ns", "channel", "chain")
        columns = {name: row[name] for name in key}
        if not several:
            return self._segments_below(blobs, row.stop, **columns).where(row.chain.is_not(None))
        stop = func.max(row.stop).label("stop")
        chains = select(*columns.values(), stop).where(row.chain.is_not(None))
        named = chains.group_by(*columns.values()).cte("chains")
        return self._segments_below(named, named.c.stop, **{name: named.c[name] for name in key})

    def _segments_below(self, source: FromClause, stop: Column, **columns: Column) -> Select[Any]:
        """The segments of chains, as far as they are needed; `columns` hold their key."""
        segment = self.segments.c
        *of_chain, _ = own_key(self.segments)
        same = (column == columns[column.name] for column in of_chain)
        joined, part = self.dialect.lookups(
            source, self.segments, and_(*same, segment.start < stop), "start", "data", "digest"
        )
        found = {"idx": part.start, "blob": part.data, "digest": part.digest}
        return also("segment", joined, **columns, **found)

    def _writes_of(
        self,
        kind: str,
        target: CTE,
        key: Mapping[str, Column],
        checkpoint_id: Column,
        channel: str | None = None,
    ) -> Select[Any]:
        """The writes to a checkpoint, to all channels or to one."""
        writes = self.writes.alias("w")
        write = writes.c
        same = and_(
            write.thread_id == target.c.thread_id,
            write.checkpoint_ns == target.c.checkpoint_ns,
            write.checkpoint_id == checkpoint_id,
            *(() if channel is None else (write.channel == constant(channel),)),
        )
        columns = ("task_path", "task_id", "idx", "channel", "type", "blob")
        return also(
            kind,
            target.join(writes, same),
            **key,
            **{name: write[name] for name in columns},
        )
