"""Finding: threads and checkpoints that an application asks about, without reading their state.

Not a part of LangGraph's contract, and asked for by everybody who shows a list of conversations. A
page of threads is one statement on the primary key's index; what goes over the wire of each thread
is its namespaces, its newest checkpoint's step, source and time, and what it waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT
from sqlalchemy import Row

from ckpt_orm.codec import Codec, ordered
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import Selection, reads
from ckpt_orm.policies import stored_at
from ckpt_orm.rows import FoundWrite, Key, check_key, key_of
from ckpt_orm.tenants import AnyRunner, TenantRunner

#: Threads that are fetched at a time.
PAGE = 50


@dataclass(frozen=True)
class ThreadSummary:
    """What can be told of a thread without reading its state.

    Args:
        thread_id: its id.
        namespaces: "" for the root graph, and those of its subgraphs, in order.
        checkpoints: how many it has, in all namespaces.
        checkpoint_id: the newest one of the root graph; of the first namespace where there is none.
        updated_at: when that one was stored, or else made, in UTC; None where neither is known. On
            SQLite it is exact by the time in the checkpoint's id, and a whole second where that is
            of another one, as in a copied thread.
        step: its step, -1 for the input.
        source: "input", "loop", "update" or "fork".
        interrupts: what its tasks wait for, as `interrupt()` was given it, in the tasks' order.
    """

    thread_id: str
    namespaces: tuple[str, ...]
    checkpoints: int
    checkpoint_id: str
    updated_at: datetime | None
    step: int | None
    source: str | None
    interrupts: tuple[Any, ...]


@dataclass
class ThreadRows:
    """A thread as it is read."""

    namespaces: dict[str, int] = field(default_factory=dict)
    head: Row[Any] | None = None
    interrupts: list[FoundWrite] = field(default_factory=list)


# --- the operations ---


@reads
def count(lane: Lane, selection: Selection) -> int:
    """How many checkpoints are selected."""
    statement = lane.st.count(selection.shape(None))
    return int(lane.conn.execute(statement, _params(lane, selection)).scalar_one())


@reads
def exists(lane: Lane, selection: Selection) -> bool:
    """Whether any checkpoint is selected."""
    statement = lane.st.some(selection.shape(None))
    return lane.conn.execute(statement, _params(lane, selection)).first() is not None


@reads
def threads(lane: Lane, filter: str | None, after: str | None, limit: int) -> dict[str, ThreadRows]:
    """The next threads, by id."""
    if filter is not None:
        lane.st.dialect.prepare_contains(lane.conn)
    statement = lane.st.summaries(filter=filter is not None, after=after is not None)
    given = {"filter": filter, "after": after, "limit": limit}
    params = {name: value for name, value in given.items() if value is not None}
    found: dict[str, ThreadRows] = defaultdict(ThreadRows)
    for row in lane.conn.execute(statement, params).all():
        thread = found[row.thread_id]
        if row.kind == "namespace":
            thread.namespaces[row.checkpoint_ns] = row.number
        elif row.kind == "head":
            thread.head = row
        else:
            write = FoundWrite(row.task_path, row.task_id, 0, INTERRUPT, row.type, row.blob)
            thread.interrupts.append(write)
    return dict(sorted(found.items()))


def _params(lane: Lane, selection: Selection) -> dict[str, Any]:
    if selection.filter is not None:
        lane.st.dialect.prepare_contains(lane.conn)
    return {name: value for name, value in vars(selection).items() if value is not None}


# --- the saver's part ---


class Finding:
    """The part of the saver that tells what there is."""

    serde: SerializerProtocol
    _runner: AnyRunner

    def threads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[ThreadSummary]:
        """All threads in the order of their ids, a page at a time; no connection is held meanwhile.

        Args:
            filter: only threads with a checkpoint whose metadata contains this, as in `list`.
            after: only threads with a greater id: the last one of the page before.
            limit: how many at most; None for all.

        Raises:
            InvalidConfig: for a negative limit, or an id or filter that cannot be stored.
        """
        return self._threads(self._filter(filter), _bound(after), check_limit(limit))

    def _threads(
        self, filter: str | None, after: str | None, limit: int | None
    ) -> Iterator[ThreadSummary]:
        while size := page_size(limit, PAGE):
            page = self._runner.run(threads, filter, after, size)
            yield from self._summaries(page)
            if len(page) < size:
                return
            after, limit = max(page), None if limit is None else limit - size

    def athreads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadSummary]:
        """`threads`, for async callers."""
        return self._athreads(self._filter(filter), _bound(after), check_limit(limit))

    async def _athreads(
        self, filter: str | None, after: str | None, limit: int | None
    ) -> AsyncIterator[ThreadSummary]:
        while size := page_size(limit, PAGE):
            page = await self._runner.arun(threads, filter, after, size)
            for summary in self._summaries(page):
                yield summary
            if len(page) < size:
                return
            after, limit = max(page), None if limit is None else limit - size

    def count(
        self,
        config: RunnableConfig | None = None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
    ) -> int:
        """How many checkpoints `list` would give.

        Args:
            config: as for `list`; None counts those of every thread.
            filter: as for `list`.
            before: as for `list`.
        """
        return self._runner.run(count, self._selection(config, filter, before))

    async def acount(
        self,
        config: RunnableConfig | None = None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
    ) -> int:
        """`count`, for async callers."""
        return await self._runner.arun(count, self._selection(config, filter, before))

    def exists(
        self,
        config: RunnableConfig | None = None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
    ) -> bool:
        """Whether `list` would give any checkpoint.

        Args:
            config: as for `list`: a thread, a namespace of it, or one checkpoint.
            filter: as for `list`.
            before: as for `list`.
        """
        return self._runner.run(exists, self._selection(config, filter, before))

    async def aexists(
        self,
        config: RunnableConfig | None = None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
    ) -> bool:
        """`exists`, for async callers."""
        return await self._runner.arun(exists, self._selection(config, filter, before))

    def _selection(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
    ) -> Selection:
        """What `list`, `count` and `exists` are about."""
        metadata = self._filter(filter)
        self._admit(before or {})
        bound = _bound(_checkpoint_id(before) if before else None)
        if config is None:
            return Selection(before=bound, filter=metadata)
        key = self._key(config)
        every = config["configurable"].get("checkpoint_ns") is None
        namespace = None if every else key.checkpoint_ns
        return Selection(key.thread_id, namespace, key.checkpoint_id, bound, metadata)

    def _key(self, config: RunnableConfig) -> Key:
        """The checkpoint that a config names to this saver."""
        self._admit(config)
        return key_of(config)

    def _admit(self, config: RunnableConfig) -> None:
        """Refuse a config of another tenant than the saver's, where there are tenants."""
        if isinstance(self._runner, TenantRunner):
            self._runner.admit(config)

    def _filter(self, filter: Mapping[str, Any] | None) -> str | None:
        if not filter:
            return None
        InvalidConfig.unless_mapping("the filter", filter)
        return Codec(self.serde).encode_filter(filter)

    def _summaries(self, page: Mapping[str, ThreadRows]) -> Iterator[ThreadSummary]:
        for thread_id, rows in page.items():
            if rows.head is not None:
                yield self._summary(thread_id, rows, rows.head)

    def _summary(self, thread_id: str, rows: ThreadRows, head: Any) -> ThreadSummary:
        key = Key(thread_id, head.checkpoint_ns, head.checkpoint_id)
        asked = (Codec(self.serde).load_write(key, write) for write in ordered(rows.interrupts))
        return ThreadSummary(
            thread_id=thread_id,
            namespaces=tuple(sorted(rows.namespaces)),
            checkpoints=sum(rows.namespaces.values()),
            checkpoint_id=head.checkpoint_id,
            updated_at=stored_at(head.checkpoint_id, head.created_at),
            step=_number(head.step),
            source=head.source,
            interrupts=tuple(one for value in asked for one in _several(value)),
        )


def check_limit(limit: int | None) -> int | None:
    """A limit that can be counted down.

    Raises:
        InvalidConfig: for a negative one, and for what is no whole number.
    """
    if limit is not None and not isinstance(limit, int):
        raise InvalidConfig(
            f"limit is of type {type(limit).__name__}: pass None, or a whole number"
        )
    if limit is not None and limit < 0:
        raise InvalidConfig(f"limit is {limit}: pass None for all, or a number from 0")
    return limit


def page_size(limit: int | None, page: int) -> int:
    """How many to fetch at once of those that are still wanted."""
    return page if limit is None else min(page, limit)


def _checkpoint_id(before: RunnableConfig) -> object:
    try:
        return (before.get("configurable") or {}).get("checkpoint_id")
    except AttributeError:
        raise InvalidConfig.instead_of(before) from None


def _bound(id: object) -> str | None:
    """An id to go on after; "" and None are none."""
    bound = str(id) if id else None
    check_key(bound)
    return bound


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _several(value: Any) -> Sequence[Any]:
    """A task's interrupts, which are a sequence, and were a single one in old releases."""
    return value if isinstance(value, (list, tuple)) else [value]
