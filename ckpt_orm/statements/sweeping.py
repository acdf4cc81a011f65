"""Sweeping: which threads there are, how old and how heavy their rows are, and whether they fit."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import INTERRUPT
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    null,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.selectable import CTE

from ckpt_orm.columns import own_key
from ckpt_orm.once import once
from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import Column, constant, param
from ckpt_orm.statements.keeping import Keeping, among
from ckpt_orm.statements.reading import PAYLOAD, found


class Sweeping(Keeping):
    """The statements of `sweeping` and `verifying`."""

    # --- which threads ---

    def threads(self, *, first: bool) -> Executable:
        """A page of threads with checkpoints: how many each has, and since when."""
        return self.FIRST_THREADS if first else self.THREADS

    @once
    def FIRST_THREADS(self) -> Executable:
        """The first page."""
        return self._with_checkpoints(self._page(None, self.checkpoints))

    @once
    def THREADS(self) -> Executable:
        """The page after a thread."""
        return self._with_checkpoints(self._page(param("after"), self.checkpoints))

    def any_threads(self, *, first: bool) -> Executable:
        """A page of threads that have a row in any of the tables."""
        return self.FIRST_ANY_THREADS if first else self.ANY_THREADS

    @once
    def FIRST_ANY_THREADS(self) -> Executable:
        """The first page."""
        page = self._page(None, self.checkpoints, self.blobs, self.writes, self.segments)
        return self._any(page)

    @once
    def ANY_THREADS(self) -> Executable:
        """The page after a thread."""
        page = self._page(param("after"), self.checkpoints, self.blobs, self.writes, self.segments)
        return self._any(page)

    def _any(self, page: CTE) -> Executable:
        return select(page.c.thread_id).where(page.c.thread_id.is_not(None)).order_by(page.c.number)

    def _page(self, after: Column | None, *tables: Table) -> CTE:
        """The next `limit` threads: from each to the next by index, whatever lies between."""
        first = select(_next(after, tables).label("thread_id"), constant(1).label("number")).cte(
            "page", recursive=True
        )
        following = select(_next(first.c.thread_id, tables, first), first.c.number + constant(1))
        more = and_(first.c.thread_id.is_not(None), first.c.number < param("limit", Integer))
        return first.union_all(following.where(more))

    def _with_checkpoints(self, page: CTE) -> Executable:
        table = self.checkpoints.c
        return (
            select(
                page.c.thread_id,
                func.count().label("checkpoints"),
                func.count(table.created_at).label("dated"),
                func.min(table.created_at).label("oldest"),
                func.max(table.created_at).label("newest"),
            )
            .select_from(page.join(self.checkpoints, table.thread_id == page.c.thread_id))
            .group_by(page.c.thread_id)
            .order_by(page.c.thread_id)
        )

    @once
    def CHECKPOINTS(self) -> Executable:
        """How many checkpoints there are."""
        return select(func.count()).select_from(self.checkpoints)

    # --- one thread ---

    @once
    def HOLD(self) -> Executable:
        """One's turn at a thread that has a checkpoint; no row where it is another's."""
        thread_id = param("thread_id")
        is_there = exists().where(self.checkpoints.c.thread_id == thread_id)
        if self.dialect.is_alone:
            return select(constant(1)).where(is_there)
        all_ = func.pg_try_advisory_xact_lock_shared(self._turn_at_all)
        its = func.pg_try_advisory_xact_lock(self._turn_at(thread_id))
        return select(constant(1)).where(is_there, all_, its)

    @once
    def PLACES(self) -> Executable:
        """Where a thread's checkpoints are."""
        table = self.checkpoints.c
        of_thread = table.thread_id == param("thread_id")
        return select(table.checkpoint_ns, table.checkpoint_id).where(of_thread)

    @once
    def THERE(self) -> Executable:
        """A checkpoint's id, if it is there; it cannot go until the transaction ends."""
        at = (self._is(name) for name in ("thread_id", "checkpoint_ns", "checkpoint_id"))
        found = select(self.checkpoints.c.checkpoint_id).where(*at)
        return found.with_for_update(read=True, key_share=True)

    def facts(self, *, metadata: bool) -> Executable:
        """What a policy asks of a thread's checkpoints, with their metadata or without."""
        return self.FACTS_AND_METADATA if metadata else self.FACTS

    @once
    def FACTS(self) -> Select[Any]:
        """When, by what and in which step a thread's checkpoints were made."""
        table, member = self.checkpoints.c, self.dialect.member
        ts = member(table.checkpoint, "ts")
        return select(
            table.checkpoint_ns,
            table.checkpoint_id,
            table.created_at,
            case((table.created_at.is_(None), ts)).label("ts"),
            member(table.metadata, "source").label("source"),
            member(table.metadata, "step").label("step"),
        ).where(table.thread_id == param("thread_id"))

    @once
    def FACTS_AND_METADATA(self) -> Executable:
        """The same, with their metadata."""
        return self.FACTS.add_columns(self.dialect.text(self.checkpoints.c.metadata).label("about"))

    @once
    def INTERRUPTED(self) -> Executable:
        """The checkpoints at which a task was interrupted that has not written anything since."""
        write, later = self.writes.c, self.writes.alias("later")
        task = ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id")
        went_on = exists().where(
            *(later.c[name] == write[name] for name in task), later.c.idx >= constant(0)
        )
        return (
            select(write.checkpoint_ns, write.checkpoint_id)
            .where(
                write.thread_id == param("thread_id"),
                write.idx == constant(WRITES_IDX_MAP[INTERRUPT]),
                write.channel == constant(INTERRUPT),
                ~went_on,
            )
            .distinct()
        )

    # --- how heavy ---

    @once
    def WEIGHT(self) -> Executable:
        """How many rows some checkpoints, their writes, and some blobs are; bytes of payload.

        With the chains that only these blobs refer to.
        """
        place = self.dialect.rows("places", ns=Text, id=Text)
        blob = self.dialect.rows("garbage", ns=Text, channel=Text, version=Text)
        return union_all(
            _weight("checkpoints", self.checkpoints).where(_among(self.checkpoints, place)),
            _weight("writes", self.writes).where(_among(self.writes, place)),
            _weight("blobs", self.blobs).where(_among(self.blobs, blob)),
            _weight("segments", self.segments).where(self._dead(~_among(self.blobs, blob))),
        )

    @once
    def WEIGHT_OF_THREAD(self) -> Executable:
        """The same of all rows of a thread."""
        tables = {
            "checkpoints": self.checkpoints,
            "writes": self.writes,
            "blobs": self.blobs,
            "segments": self.segments,
        }
        of_thread = param("of_thread")
        return union_all(
            *(_weight(k, t).where(t.c.thread_id == of_thread) for k, t in tables.items())
        )

    # --- whether it fits ---

    @once
    def ANATOMY(self) -> Executable:
        """All of a thread but its payloads, from one snapshot: documents, blobs, written-to ids."""
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
                type=blob.type,
                idx=case((blob.digest.is_not(None), constant(1)), else_=constant(0)),
            ).where(blob.thread_id == of_thread),
            found(
                "write",
                self.writes,
                checkpoint_ns=write.checkpoint_ns,
                checkpoint_id=write.checkpoint_id,
                idx=func.count(),
            )
            .where(write.thread_id == of_thread)
            .group_by(write.checkpoint_ns, write.checkpoint_id),
        )

    @once
    def DATES(self) -> Executable:
        """When a thread's checkpoints were stored."""
        table = self.checkpoints.c
        return select(table.checkpoint_id, table.created_at).where(
            table.thread_id == param("thread_id")
        )

    @once
    def ORPHANED_WRITES(self) -> Executable:
        """The writes of some checkpoints that are not there, to delete."""
        place = self.dialect.rows("places", ns=Text, id=Text)
        write = self.writes.c
        at = ("thread_id", "checkpoint_ns", "checkpoint_id")
        same = (self.checkpoints.c[name] == write[name] for name in at)
        return delete(self.writes).where(_among(self.writes, place), ~exists().where(*same))

    @once
    def BLOBS_AFTER(self) -> Executable:
        """The next blobs of a thread, with their payload."""
        columns = ("checkpoint_ns", "channel", "version", *PAYLOAD, "stop")
        return _after(self.blobs, *columns).where(self.blobs.c.type != constant(EMPTY))

    @once
    def WRITES_AFTER(self) -> Executable:
        """The next writes of a thread, with their payload."""
        columns = ("task_path", "channel", "type", "blob")
        return _after(self.writes, *(c.name for c in own_key(self.writes)[1:]), *columns)


def _next(after: Column | None, tables: tuple[Table, ...], page: CTE | None = None) -> Column:
    """The first thread after one, in any of the tables."""
    firsts = []
    for table in tables:
        first = select(func.min(table.c.thread_id).label("thread_id"))
        if after is not None:
            first = first.where(table.c.thread_id > after)
        firsts.append(first if page is None else first.correlate(page))
    if len(firsts) == 1:
        return firsts[0].scalar_subquery()
    each = union_all(*firsts).subquery()
    return select(func.min(each.c.thread_id)).select_from(each).scalar_subquery()


def _weight(kind: str, table: Table) -> Any:
    """Rows of a table, and the bytes of payload in them."""
    payload = table.c.get("blob", table.c.get("data"))
    size = null() if payload is None else func.sum(func.length(payload))
    return select(
        cast(constant(kind), Text).label("kind"),
        func.count().label("rows"),
        cast(func.coalesce(size, constant(0)), BigInteger).label("bytes"),
    ).select_from(table)


def _among(table: Table, named: FromClause) -> ColumnElement[bool]:
    """The rows of a table that `of_thread` and the rows of `named` name, in key order."""
    return and_(table.c.thread_id == param("of_thread"), among(table, named))


def _after(table: Table, *columns: str) -> Select[Any]:
    """The rows of a thread after a key, at most `limit`."""
    _, *key = own_key(table)
    after = (param(f"after_{c.name}", c.type if c.name == "idx" else Text) for c in key)
    return (
        select(*(table.c[name] for name in columns))
        .where(table.c.thread_id == param("thread_id"), tuple_(*key) > tuple_(*after))
        .order_by(*key)
        .limit(param("limit", Integer))
    )
