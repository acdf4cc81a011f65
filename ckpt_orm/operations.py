"""EXECUTE: what is done to the database, written once for both colours.

Every operation is a plain synchronous function of a lane, which is a connection with the statements
of its dialect, and of encoded parameters, and returns rows. It holds nothing afterwards: no Result,
no cursor, no iterator leaves this file. It knows no serde, never sleeps, and never yields. What
kind of connection it needs is told by its decorator; `runners` provides it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy.sql.base import Executable

from ckpt_orm import documents
from ckpt_orm.lanes import Lane
from ckpt_orm.logs import ChainMoved, whole
from ckpt_orm.once import once
from ckpt_orm.parcels import FEW, few_of, parcel_of, parcel_of_calls
from ckpt_orm.rows import Blob, Found, FoundWrite, Key, PutRows, Segment, Tail, Write, WriteRows
from ckpt_orm.statements import Page

P = ParamSpec("P")
R = TypeVar("R")


#: Turns that a transaction takes one by one. The server has room for some thousands, of all its
#: transactions together, and whoever finds none fails.
MOST_TURNS = 100


class Access(Enum):
    """What an operation does, as far as the connection it runs on is concerned."""

    READ = "one statement that reads"
    WRITE = "one statement that writes, on a dialect where one is enough"
    CHANGE = "several statements that belong together"


# As constants, since Python 3.11 takes several times as long for a member.
READ, WRITE, CHANGE = Access


@dataclass(frozen=True)
class Operation(Generic[P, R]):
    """A function of (lane, …) and the access it needs.

    Args:
        function: does it.
        access: the access.
        combines: whether several calls may share a transaction.
    """

    function: Callable[Concatenate[Lane, P], R]
    access: Access
    combines: bool = False

    @once
    def name(self) -> str:
        """What errors call it."""
        return self.function.__name__


def reads(function: Callable[Concatenate[Lane, P], R]) -> Operation[P, R]:
    """Mark an operation of one reading statement."""
    return Operation(function, READ)


def writes(function: Callable[Concatenate[Lane, P], R]) -> Operation[P, R]:
    """Mark an operation whose steps are one statement on Postgres."""
    return Operation(function, WRITE)


def stores(
    function: Callable[Concatenate[Lane, P], None],
) -> Operation[P, None]:
    """Mark an operation that `writes` rows of one key, and may share a transaction with others."""
    return Operation(function, WRITE, combines=True)


def changes(function: Callable[Concatenate[Lane, P], R]) -> Operation[P, R]:
    """Mark an operation that needs a transaction everywhere."""
    return Operation(function, CHANGE)


@dataclass(frozen=True)
class Selection:
    """Which checkpoints `list` is about, encoded; None where a condition is not asked for."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    filter: str | None = None

    def shape(self, after: Key | None) -> Page:
        """Which conditions there are."""
        return Page(
            thread_id=self.thread_id is not None,
            checkpoint_ns=self.checkpoint_ns is not None,
            checkpoint_id=self.checkpoint_id is not None,
            before=self.before is not None,
            filter=self.filter is not None,
            after=after is not None,
        )

    def params(self, after: Key | None, limit: int) -> dict[str, Any]:
        """The values of those conditions."""
        values: dict[str, Any] = {k: v for k, v in vars(self).items() if v is not None}
        if after is not None:
            values |= {
                "after_id": after.checkpoint_id,
                "after_thread": after.thread_id,
                "after_ns": after.checkpoint_ns,
            }
        return values | {"limit": limit}


@reads
def fetch(lane: Lane, key: Key) -> Found | None:
    """The checkpoint at `key`, the newest where it names none."""
    # An async driver hops to a thread for each statement, which is a kind of network too.
    if lane.st.dialect.steps and not lane.conn.dialect.is_async:
        with lane.snapshot():
            return _fetch_in_steps(lane, key)
    statement = lane.st.LATEST if key.checkpoint_id is None else lane.st.AT
    rows = lane.execute(statement, key._asdict())
    return next(iter(_assemble(rows)), None)


def _fetch_in_steps(lane: Lane, key: Key) -> Found | None:
    """The same, table by table."""
    statement = lane.st.LATEST_ALONE if key.checkpoint_id is None else lane.st.ALONE
    heads = lane.execute(statement, key._asdict())
    if not heads:
        return None
    checkpoint_id, parent, document, metadata, is_old = heads[0]
    at = key._replace(checkpoint_id=checkpoint_id)
    params = {**at._asdict(), "document": document}
    rows = lane.execute(lane.st.BLOBS_OF_DOCUMENT, params)
    blobs = {row[:2]: Blob(*row) for row in rows if row[0] is not None}
    segments = {
        (blob.channel, blob.chain): segments_below(lane, params, blob)
        for blob in blobs.values()
        if blob.chain is not None
    }
    writes = lane.execute(lane.st.WRITES_OF_CHECKPOINT, params)
    sends: Sequence[Any] = ()
    if is_old and parent:
        params["checkpoint_id"] = parent
        sends = lane.execute(lane.st.SENDS_OF_CHECKPOINT, params)
    return Found(
        at,
        parent,
        document,
        metadata,
        blobs,
        segments,
        [FoundWrite(*row) for row in writes],
        [FoundWrite(*row) for row in sends],
    )


def segments_below(lane: Lane, thread: Mapping[str, Any], blob: Blob) -> list[Segment]:
    """The segments of a blob's chain, as far as it needs them."""
    of_chain = {"channel": blob.channel, "chain": blob.chain, "stop": blob.stop}
    rows = lane.execute(lane.st.SEGMENTS_OF_CHAIN, {**thread, **of_chain})
    return [Segment(*row) for row in rows]


@reads
def page(lane: Lane, selection: Selection, after: Key | None, limit: int) -> list[Found]:
    """At most `limit` checkpoints below `after`, newest first."""
    if selection.filter is not None:
        lane.st.dialect.prepare_contains(lane.conn)
    statement = lane.st.page(selection.shape(after))
    return _assemble(lane.execute(statement, selection.params(after, limit)))


def store_all(
    lane: Lane, puts: Sequence[PutRows], writes: Sequence[WriteRows]
) -> Collection[tuple[str, str]]:
    """What `put` and `put_writes` do, for several calls in one statement.

    Returns:
        The threads and namespaces of which no put was stored, since a log of one is not what its
        tail follows.
    """
    statement = lane.st.ALL_WRITES if not puts else lane.st.STORES if writes else lane.st.PUTS
    params = parcel_of_calls(puts, writes)
    return {(row[0], row[1]) for row in lane.execute(statement, params, again=False)}


@stores
def put(lane: Lane, rows: PutRows) -> None:
    """Store a checkpoint with its blobs.

    Raises:
        ChainMoved: where a log is not what its tail follows, or the version is there and its chain
            is not started; the checkpoint is not stored then.
    """
    params = {
        **rows.key._asdict(),
        "parent_checkpoint_id": rows.parent_checkpoint_id,
        "checkpoint": rows.checkpoint,
        "metadata": rows.metadata,
    }
    thread: dict[str, Any] = rows.key.thread()
    if rows.filled:
        params |= rows.filled
        thread |= rows.filled
    if rows.blobs and not lane.st.dialect.stores_each:
        _put_at_once(lane, params, rows)
        return
    # A row is written first: from then on nobody else writes, and what is read stays as it is.
    store(lane, lane.st.BLOBS, thread, rows.blobs)
    for tail in rows.tails:
        add_segment(lane, thread, tail)
    lane.execute(lane.st.CHECKPOINT, params)


@wraps(put.function)
def _put_renewed(lane: Lane, rows: PutRows) -> None:
    try:
        put.function(lane, rows)
    except ChainMoved:
        # A version that is there stays, if nobody is deleting it: else it needs all of its value.
        put.function(lane, whole(rows))


#: The same for rows whose chains are new, by itself: it raises nothing.
put_renewed = replace(put, function=_put_renewed, combines=False)


def _put_at_once(lane: Lane, params: Mapping[str, Any], rows: PutRows) -> None:
    blobs, expected = len(rows.blobs), len(rows.tails)
    few = lane.st.few_put(blobs=blobs, tails=expected) if blobs + expected <= FEW else None
    # Core would compile its list of values each time, which takes longer than all the rest.
    if few is not None and lane.shortened(few):
        statement, given = few, few_of(rows.blobs, rows.tails)
    else:
        given = parcel_of(rows.blobs, rows.tails)
        statement = lane.st.PUT_GROWING if expected else lane.st.PUT
    added = lane.execute(statement, {**params, **given, "expected": expected})
    if expected and added[0][0] != expected:
        raise ChainMoved


def add_segment(lane: Lane, thread: Mapping[str, Any], tail: Tail) -> None:
    """Add to a chain.

    Raises:
        ChainMoved: where it is not what the tail follows.
    """
    if not lane.st.dialect.stores_each:
        packed = {**thread, **parcel_of((), [tail])}
        # Told by what it returns: some drivers count no rows where none was inserted.
        if not lane.conn.execute(lane.st.SEGMENTS_TOLD, packed).all():
            raise ChainMoved
        return
    params = {**thread, **tail._asdict()}
    if tail.follows is None:
        lane.execute(lane.st.SEGMENTS, params)
        return
    last = lane.execute(lane.st.TIP, params)
    if not last or last[0][0] != tail.follows:
        raise ChainMoved
    lane.execute(lane.st.FOLDING_SEGMENT if tail.folds else lane.st.NEXT_SEGMENT, params)
    if tail.folds:
        lane.execute(lane.st.FOLDED, {**params, "stop": tail.start + len(tail.data)})


@stores
def put_writes(lane: Lane, rows: WriteRows) -> None:
    """Store the writes of a task."""
    task, number = {**rows.task(), **rows.filled}, len(rows.writes)
    if 0 < number <= FEW and not lane.st.dialect.stores_each:
        few = lane.st.few_writes(rows=number)
        if lane.shortened(few):
            lane.execute(few, {**task, **few_of(rows.writes)})
            return
    store(lane, lane.st.WRITES, task, rows.writes)


def take_turns(lane: Lane, threads: Collection[str]) -> None:
    """Wait until nobody else deletes from some threads, or copies to them, for a transaction.

    Two that do would lock the same rows, in whatever order they come upon them. A put takes no
    turn. What it waits for with a row locked is a chain, and it locks chains in the order in which
    they are locked here, before any other row.
    """
    if not lane.st.dialect.is_alone:
        statement = lane.st.TURNS if len(threads) <= MOST_TURNS else lane.st.TURN_AT_ALL
        lane.conn.execute(statement, {"threads": documents.encode(sorted(threads))})


def hold_chains(lane: Lane, thread_id: str) -> None:
    """Wait for those who add to the chains of a thread, and let nobody do so for a transaction."""
    if not lane.st.dialect.is_alone:
        lane.conn.execute(lane.st.HOLD_CHAINS, {"of_thread": thread_id})


@changes
def delete_thread(lane: Lane, thread_id: str) -> None:
    """Remove all rows of a thread, in every namespace."""
    take_turns(lane, [thread_id])
    is_left = True
    while is_left:
        # A put that is adding to a chain is waited for: what it has stored needs the rest of it.
        hold_chains(lane, thread_id)
        for statement in lane.st.DELETE_THREAD:
            lane.execute(statement, {"thread_id": thread_id})
        # But a chain that was started since is deleted without being held.
        is_left = bool(lane.conn.execute(lane.st.HEADLESS, {"of_thread": thread_id}).all())


def store(
    lane: Lane,
    statement: Executable,
    params: Mapping[str, Any],
    rows: Sequence[Blob | Write],
) -> None:
    """Execute a statement for rows that have `params` in common, of which there may be none."""
    if lane.st.dialect.stores_each:
        lane.execute_many(statement, [{**params, **row._asdict()} for row in rows])
    elif rows:
        lane.execute(statement, {**params, **parcel_of(rows)})


def _assemble(rows: Sequence[Any]) -> list[Found]:
    """The checkpoints among the rows of a reading, newest first, each with what belongs to it."""
    blobs: dict[tuple[str, str], dict[tuple[str, str], Blob]] = defaultdict(dict)
    segments: dict[tuple[str, str], dict[tuple[str, bytes], list[Segment]]] = defaultdict(
        lambda: defaultdict(list)
    )
    writes: dict[Key, list[FoundWrite]] = defaultdict(list)
    sends: dict[Key, list[FoundWrite]] = defaultdict(list)
    found: list[tuple[Key, str | None, str, str]] = []
    # Unpacked in the order of FOUND: a name would be looked up for each cell of each row.
    for row in rows:
        kind, thread, ns, checkpoint_id, parent, channel, version, path, task, idx = row[:10]
        type_, blob, digest, checkpoint, metadata, chain = row[10:]
        if kind == "blob":
            blobs[thread, ns][channel, version] = Blob(channel, version, type_, blob, digest, chain)
            continue
        if kind == "segment":
            segments[thread, ns][channel, chain].append(Segment(idx, blob, digest))
            continue
        key = Key(thread, ns, checkpoint_id)
        if kind == "checkpoint":
            found.append((key, parent, checkpoint, metadata))
        else:
            of_kind = writes if kind == "write" else sends
            of_kind[key].append(FoundWrite(path, task, idx, channel, type_, blob))
    for of_thread in segments.values():
        for of_chain in of_thread.values():
            of_chain.sort()
    found.sort(key=lambda row: row[0][:2])
    found.sort(key=lambda row: row[0].checkpoint_id or "", reverse=True)
    return [
        Found(
            key,
            parent,
            checkpoint,
            metadata,
            blobs[key[:2]],
            segments[key[:2]],
            writes[key],
            sends[key],
        )
        for key, parent, checkpoint, metadata in found
    ]
