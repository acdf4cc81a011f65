"""Keeping: what a thread consists of, without its state; deletions by key; copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import (
    ColumnElement,
    FromClause,
    LargeBinary,
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
    update,
)
from sqlalchemy.sql.base import Executable
from xxhash import xxh3_64_intdigest

from ckpt_orm.columns import is_tenant, own_key
from ckpt_orm.once import once
from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import CHAIN_SIZE, Column, constant, param
from ckpt_orm.statements.reading import found, key_columns
from ckpt_orm.statements.scoping import tenant_param
from ckpt_orm.statements.walking import Walking


class Keeping(Walking):
    """The statements of `retention`."""

    @once
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

    @once
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

    @once
    def CHECKPOINTS_AT(self) -> Executable:
        """Some checkpoints of a namespace, to delete."""
        return self._delete(self.checkpoints, ids="checkpoint_id")

    @once
    def WRITES_AT(self) -> Executable:
        """The writes of some checkpoints of a namespace, to delete."""
        return self._delete(self.writes, ids="checkpoint_id")

    @once
    def BLOBS_AT(self) -> Executable:
        """Some versions of a channel, to delete."""
        return self._delete(self.blobs, "of_channel", ids="version")

    def _delete(self, table: Table, *names: str, ids: str) -> Executable:
        """The rows of `of_thread`, `of_ns` and names in key order, and of a list: by the index."""
        at = self._named(table, *names)
        return delete(table).where(at, self.dialect.among(table.c[ids], "ids"))

    @once
    def TURNS(self) -> Executable:
        """One's turn at some threads, in their order; whoever is there is waited for."""
        threads = self.dialect.elements("threads")
        # A shared turn at all threads first, which whoever takes too many turns has alone.
        all_ = func.pg_advisory_xact_lock_shared(self._turn_at_all)
        return select(all_, func.pg_advisory_xact_lock(self._turn_at(threads.c.value)))

    @once
    def TURN_AT_ALL(self) -> Executable:
        """One's turn at all threads."""
        return select(func.pg_advisory_xact_lock(self._turn_at_all))

    @property
    def _turn_at_all(self) -> Column:
        """The number of a turn at all threads, of a tenant where the tables hold those of many.

        That of one thread is another number, and no two are the same, as good as surely: they have
        64 bits.
        """
        number = constant(xxh3_64_intdigest(self.checkpoints.fullname.encode()) >> 1)
        for tenant in filter(is_tenant, self.checkpoints.primary_key):
            number = func.hashtextextended(cast(tenant_param(tenant), Text), number)
        return number

    def _turn_at(self, thread_id: Column) -> Column:
        return func.hashtextextended(thread_id, self._turn_at_all)

    @once
    def HOLD_CHAINS(self) -> Executable:
        """The first segment of each chain of a thread, locked: nothing is added to it meanwhile."""
        return self._chains().with_for_update()

    @once
    def AT_REST(self) -> Executable:
        """Whether nobody is adding to a chain of a thread, all of which are locked if so."""
        held = self._chains().with_for_update(skip_locked=True).cte("held")
        number, all_ = (select(func.count()).select_from(of) for of in (held, self._chains().cte()))
        return select(number.scalar_subquery() == all_.scalar_subquery())

    def _chains(self) -> Select[Any]:
        segment = self.segments.c
        of_thread = (segment.thread_id == param("of_thread"), segment.start == constant(0))
        # In the order of tails in a parcel: two that lock several of them do not deadlock.
        texts = map(self.dialect.in_order, (segment.checkpoint_ns, segment.channel))
        return select(segment.start).where(*of_thread).order_by(*texts, segment.chain)

    @once
    def HEADLESS(self) -> Executable:
        """A segment of a thread whose chain has no first one; no row where there is none."""
        segment, first = self.segments.c, self.segments.alias("first")
        key = ("checkpoint_ns", "channel", "chain")
        same = (first.c[name] == segment[name] for name in key)
        of_thread = param("of_thread")
        head = exists().where(first.c.thread_id == of_thread, *same, first.c.start == constant(0))
        headless = select(segment.start).where(segment.thread_id == of_thread, ~head)
        return headless.limit(constant(1))

    @once
    def DEAD_SEGMENTS(self) -> Executable:
        """The chains of a thread that no blob refers to, to delete."""
        return delete(self.segments).where(self._dead())

    def _dead(self, *still: ColumnElement[bool]) -> ColumnElement[bool]:
        """The segments of chains that no blob refers to, of those that `still` are there."""
        key = ("checkpoint_ns", "channel", "chain")
        first, segment, blob = self.segments.alias("first"), self.segments.c, self.blobs.c
        of_thread = param("of_thread")
        same = (blob[name] == first.c[name] for name in key)
        refers = exists().where(blob.thread_id == of_thread, *same, *still)
        dead = select(*(first.c[name] for name in key)).where(
            first.c.thread_id == of_thread, first.c.start == constant(0), ~refers
        )
        here = tuple_(*(segment[name] for name in key))
        return and_(segment.thread_id == of_thread, here.in_(dead))

    @once
    def WITHOUT_PARENT(self) -> Executable:
        """One checkpoint, to be made a root."""
        at = self._named(self.checkpoints, "of_id")
        return update(self.checkpoints).where(at).values(parent_checkpoint_id=null())

    def _named(self, table: Table, *names: str) -> ColumnElement[bool]:
        """The rows of a table that the parameters `of_thread`, `of_ns`, … name, in key order."""
        params = ("of_thread", "of_ns", *names)
        return and_(*(c == param(name) for c, name in zip(own_key(table), params, strict=False)))

    @once
    def COPIES(self) -> Sequence[Executable]:
        """All rows of a thread, of one moment, under another thread's id."""
        tables = (self.segments, self.blobs, self.writes, self.checkpoints)
        return self.dialect.together(*(self._copy(table) for table in tables))

    @once
    def COPIES_OF_SOME(self) -> Sequence[Executable]:
        """The same of some checkpoints and blobs; one whose parent is none of them is a root."""
        place = self.dialect.rows("places", ns=Text, id=Text)
        blob = self.dialect.rows("versions", ns=Text, channel=Text, version=Text)
        checkpoint = self.checkpoints.c
        parent = checkpoint.parent_checkpoint_id
        is_copied = tuple_(checkpoint.checkpoint_ns, parent).in_(select(*place.c))
        kept = case((is_copied, parent))
        return self.dialect.together(
            self._copy(self.segments),
            self._copy(self.blobs, among(self.blobs, blob)),
            self._copy(self.writes, among(self.writes, place)),
            self._copy(self.checkpoints, among(self.checkpoints, place), parent_checkpoint_id=kept),
        )

    def _salted(self, table: Table) -> dict[str, Column]:
        """A chain's id as it is in a copy, which goes on in another way than its original."""
        if table not in (self.segments, self.blobs):
            return {}
        chain, joined = table.c.chain, self.dialect.joined
        half = constant(CHAIN_SIZE // 2)
        salted = joined(param("salt", LargeBinary), func.substr(chain, half + constant(1), half))
        if table is self.segments:
            return {"chain": salted}
        # A manifest begins with the id.
        rest = func.substr(table.c.blob, constant(CHAIN_SIZE + 1))
        manifest = case((chain.is_not(None), joined(salted, rest)), else_=table.c.blob)
        return {"chain": salted, "blob": manifest}

    def _copy(self, table: Table, *where: ColumnElement[bool], **instead: Column) -> Executable:
        """The rows of the thread `source` under the id of `target`."""
        columns: dict[str, Column] = {
            c.name: c
            for c in table.columns
            if c.name not in ("thread_id", "created_at") and c.computed is None
        }
        columns |= self._salted(table) | instead
        of_source = table.c.thread_id == param("source")
        rows = select(param("target"), *columns.values()).where(of_source, *where)
        insert: Any = self.dialect.insert(table).from_select(["thread_id", *columns], rows)
        statement: Executable = insert.on_conflict_do_nothing(index_elements=key_columns(table))
        return statement


def among(table: Table, named: FromClause) -> ColumnElement[bool]:
    """The rows of a table that the rows of `named` name, in the order of its key in a thread."""
    # Left to join them, SQLite goes through the JSON text again for each row of the thread.
    _, *key = own_key(table)
    return tuple_(*key[: len(named.c)]).in_(select(*named.c))
