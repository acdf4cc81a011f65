"""Walking: the ancestors of a checkpoint, for each DeltaChannel as far as its nearest value."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Text,
    and_,
    case,
    cast,
    exists,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.selectable import CTE

from ckpt_orm.once import once
from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import Column, Columns, constant, param
from ckpt_orm.statements.reading import PAYLOAD, also, found
from ckpt_orm.statements.stepping import Stepping


class Walking(Stepping):
    """The statements of `history`."""

    def history(self, *, latest: bool) -> Executable:
        """The ancestors of a checkpoint for each channel, as far as its nearest stored value.

        Rows of kind "target" and "ancestor" (idx 1 where the channel has a value, with its
        document), "blob" (those values) and "write" (what the ancestors' tasks wrote to it).
        """
        return self.HISTORY_OF_LATEST if latest else self.HISTORY

    @once
    def HISTORY(self) -> Executable:
        """The history of the checkpoint of an id."""
        keys = ("thread_id", "checkpoint_ns", "checkpoint_id")
        return self._walk(self._targets(*(self._is(key) for key in keys)))

    @once
    def HISTORY_OF_LATEST(self) -> Executable:
        """The history of the newest checkpoint."""
        where = self._is("thread_id"), self._is("checkpoint_ns")
        return self._walk(self._targets(*where, limit=constant(1)))

    def _walk(self, target: CTE) -> Executable:
        channels = self.dialect.elements("channels")
        walk = (
            select(
                channels.c.value.label("channel"),
                target.c.checkpoint_id,
                target.c.parent_checkpoint_id,
                cast(constant("target"), Text).label("kind"),
                constant(0).label("seeded"),
            )
            .select_from(target.join(channels, true()))
            .cte("walk", recursive=True)
        )
        at_parent = self._is_at(self.checkpoints, walk.c.parent_checkpoint_id)
        onwards, ancestor = self.dialect.lookup(walk, self.checkpoints, at_parent)
        seeded = or_(
            self.dialect.has_entry(ancestor.checkpoint, "channel_values", walk.c.channel),
            exists().where(self._is_value(ancestor, walk.c.channel)),
        )
        step = select(
            walk.c.channel,
            ancestor.checkpoint_id,
            ancestor.parent_checkpoint_id,
            cast(constant("ancestor"), Text),
            case((seeded, constant(1)), else_=constant(0)),
        ).select_from(onwards)
        # UNION, not UNION ALL: a row that is there already is not followed again, so the walk
        # ends on a cycle of parents too.
        return self._walked(walk.union(step.where(walk.c.seeded == constant(0))))

    def _walked(self, walk: CTE) -> Executable:
        """The steps of a walk with what was found on it."""
        seed = self.checkpoints.alias("seed")
        at_seed = and_(walk.c.seeded == constant(1), self._is_at(seed, walk.c.checkpoint_id))
        key = {"channel": walk.c.channel, "checkpoint_id": walk.c.checkpoint_id}
        wrote = and_(
            self._is_at(self.writes, walk.c.checkpoint_id),
            self.writes.c.channel == walk.c.channel,
            walk.c.kind == constant("ancestor"),
        )
        written, write = self.dialect.lookups(walk, self.writes, wrote)
        valued, blob = self.dialect.lookup(
            walk.join(seed, at_seed), self.blobs, self._is_value(seed.c, walk.c.channel)
        )
        at_blob = {
            "thread_id": param("thread_id"),
            "checkpoint_ns": param("checkpoint_ns"),
            "channel": walk.c.channel,
            "chain": blob.chain,
        }
        return union_all(
            found(
                walk.c.kind,
                walk.outerjoin(seed, at_seed),
                **key,
                parent_checkpoint_id=walk.c.parent_checkpoint_id,
                idx=walk.c.seeded,
                checkpoint=self.dialect.text(seed.c.checkpoint),
            ),
            also(
                "blob",
                valued,
                **key,
                version=blob.version,
                **{name: blob[name] for name in PAYLOAD},
            ),
            self._segments_below(valued, blob.stop, **at_blob, checkpoint_id=walk.c.checkpoint_id),
            also(
                "write",
                written,
                **key,
                **{name: write[name] for name in ("task_path", "task_id", "idx", "type", "blob")},
            ),
        )

    def _is_at(self, table: FromClause, checkpoint_id: Column) -> ColumnElement[bool]:
        """Whether a row belongs to a checkpoint of the thread and namespace that are asked for."""
        return and_(
            table.c.thread_id == param("thread_id"),
            table.c.checkpoint_ns == param("checkpoint_ns"),
            table.c.checkpoint_id == checkpoint_id,
        )

    def _is_value(self, checkpoint: Columns, channel: Column) -> ColumnElement[bool]:
        """Whether a blob is the value of a channel at a checkpoint."""
        blob, version_of = self.blobs.c, self.dialect.entry
        return and_(
            blob.thread_id == param("thread_id"),
            blob.checkpoint_ns == param("checkpoint_ns"),
            blob.channel == channel,
            blob.version == version_of(checkpoint.checkpoint, "channel_versions", channel),
            blob.type != constant(EMPTY),
        )
