"""Verifying: whether what is stored fits together and can be read, thread by thread.

What a thread consists of is taken from one snapshot, without payloads, so a live run is never taken
for a fault. Then its payloads are read, some at a time: each must have its digest, and the saver's
serde must be able to decode it. No connection is held while it does.

A blob or write that no checkpoint needs does no harm but takes room, and is all that a repair
removes: where the thread has shown no sign of life for a while, since a run's writes come before
their checkpoint. For the same reason writes whose checkpoint was never stored are no fault: a run
that is under way has them, and one that failed leaves them. What is missing or broken can only be
told; it has to come from a backup.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from ckpt_orm import documents
from ckpt_orm.anatomy import Anatomy
from ckpt_orm.codec import Codec
from ckpt_orm.errors import CorruptCheckpoint
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import changes, reads, segments_below, take_turns
from ckpt_orm.policies import born_at
from ckpt_orm.retention import Place, Reduction, places_of, reduce
from ckpt_orm.rows import Blob, FoundWrite, Key, Segment, Segments
from ckpt_orm.sweeping import Steps
from ckpt_orm.words import counted

#: Threads, and payloads of a thread, that are fetched at a time.
PAGE = 100

#: Faults that a report holds; beyond them it only counts.
MOST = 10_000

#: Below every idx of a write.
LEAST = -(2**31)

#: How long ago a thread's last sign of life must be for a repair.
GRACE = timedelta(hours=1)

#: What can be found.
ORPHANED_BLOB = "orphaned blob"
ORPHANED_WRITES = "orphaned writes"
MISSING_BLOB = "missing blob"
BROKEN_CHAIN = "broken chain"
BROKEN_DIGEST = "broken digest"
UNDECODABLE = "undecodable"

#: Those that a repair removes, and that make nothing unreadable.
HARMLESS = frozenset({ORPHANED_BLOB, ORPHANED_WRITES})


class Fault(NamedTuple):
    """Something that does not fit.

    Args:
        kind: what it is: one of the names above.
        table: where the row is, or should be.
        key: the values of its primary key, as far as they are known.
        problem: what is wrong, in words; never a stored value.
        repaired: whether it has been removed.
    """

    kind: str
    table: str
    key: tuple[str, ...]
    problem: str
    repaired: bool = False


@dataclass
class Report:
    """What a check has found.

    Args:
        threads: threads that were looked at.
        checkpoints: their checkpoints.
        payloads: the blobs and writes that were decoded.
        counts: how often each kind of fault occurred.
        repaired: how many of them were removed.
        left: how often each kind occurs that is still there.
        early: writes whose checkpoint was not stored, which is no fault.
        removed: how many of those were removed.
        faults: the first of the faults, at most `MOST`.
    """

    threads: int = 0
    checkpoints: int = 0
    payloads: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    repaired: int = 0
    left: Counter[str] = field(default_factory=Counter)
    early: int = 0
    removed: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is left that does not fit."""
        return not self.left

    def add(self, found: Iterable[Fault]) -> None:
        """Take faults in."""
        for fault in found:
            self.counts[fault.kind] += 1
            if fault.repaired:
                self.repaired += 1
            else:
                self.left[fault.kind] += 1
            if len(self.faults) < MOST:
                self.faults.append(fault)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        found = [fault._asdict() for fault in self.faults]
        counts = {"counts": dict(self.counts), "left": dict(self.left)}
        return {"ok": self.ok, **asdict(self), **counts, "faults": found}


# --- the operations ---


@reads
def threads(lane: Lane, after: str | None) -> list[str]:
    """The next threads that have a row in any of the tables."""
    params = {"limit": PAGE} if after is None else {"limit": PAGE, "after": after}
    return [
        row.thread_id for row in lane.conn.execute(lane.st.any_threads(first=after is None), params)
    ]


@reads
def dissect(lane: Lane, thread_id: str) -> Anatomy:
    """What a thread consists of, from one snapshot."""
    found = Anatomy(thread_id)
    for row in lane.conn.execute(lane.st.ANATOMY, {"thread_id": thread_id}).all():
        if row.kind == "blob":
            found.add_blob((row.checkpoint_ns, row.channel, row.version), row)
        elif row.kind == "write":
            found.writes[Place(row.checkpoint_ns, row.checkpoint_id)] = row.idx
        else:
            found.add_checkpoint(Place(row.checkpoint_ns, row.checkpoint_id), row)
    dates = lane.conn.execute(lane.st.DATES, {"thread_id": thread_id}).all()
    found.born = [born_at(row.checkpoint_id, row.created_at, None) for row in dates]
    found.born += [born_at(at.checkpoint_id, None, None) for at in found.unstored()]
    return found


@changes
def remove(lane: Lane, thread_id: str, before: datetime) -> set[Any]:
    """Delete what no checkpoint of a thread needs, if its last sign of life is long ago."""
    take_turns(lane, [thread_id])
    found = dissect.function(lane, thread_id)
    if not found.is_quiet(before):
        return set()
    blobs, places = found.orphaned_blobs(), found.unstored()
    named = documents.encode([{"ns": ns, "id": id} for ns, id in places])
    with lane.conn.begin_nested() as attempt:
        reduce(lane, thread_id, Reduction(set(), blobs, []))
        lane.conn.execute(lane.st.ORPHANED_WRITES, {"of_thread": thread_id, "places": named})
        if places_of(lane, thread_id) - found.documents.keys():
            attempt.rollback()  # one was saved since the look, which may need some of it
            return set()
    return {*blobs, *places}


@reads
def blobs_after(lane: Lane, thread_id: str, after: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The next blobs of a thread that have a value."""
    names = ("checkpoint_ns", "channel", "version")
    rows = lane.conn.execute(lane.st.BLOBS_AFTER, _after(thread_id, names, after)).all()
    return [tuple(row) for row in rows]


@reads
def segments_of(
    lane: Lane, thread_id: str, blobs: Sequence[tuple[Any, ...]]
) -> Mapping[str, Segments]:
    """The segments of some blobs of a thread, by namespace; each once, however many need it."""
    stops: dict[tuple[str, str, bytes], int] = defaultdict(int)
    for ns, channel, *_, chain, stop in blobs:
        if chain is not None:
            stops[ns, channel, chain] = max(stops[ns, channel, chain], stop)
    found: dict[str, dict[tuple[str, bytes], list[Segment]]] = defaultdict(dict)
    for (ns, channel, chain), stop in stops.items():
        blob = Blob(channel, "", "", None, None, chain, stop)
        of_thread = {"thread_id": thread_id, "checkpoint_ns": ns}
        found[ns][channel, chain] = segments_below(lane, of_thread, blob)
    return found


@reads
def writes_after(lane: Lane, thread_id: str, after: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The next writes of a thread."""
    names = ("checkpoint_ns", "checkpoint_id", "task_id", "idx")
    rows = lane.conn.execute(lane.st.WRITES_AFTER, _after(thread_id, names, after)).all()
    return [tuple(row) for row in rows]


def _after(thread_id: str, names: tuple[str, ...], after: tuple[Any, ...]) -> dict[str, Any]:
    keys = {f"after_{name}": value for name, value in zip(names, after, strict=True)}
    return {"thread_id": thread_id, "limit": PAGE, **keys}


# --- the check ---


def verify(
    codec: Codec,
    before: datetime | None,
    on_progress: Callable[[Report], object] | None,
    *,
    payloads: bool,
) -> Steps[Report]:
    """Check all threads; `before` is when a thread's last sign of life must be for a repair."""
    report = Report()
    after: str | None = None
    while page := (yield threads, (after,)):
        for thread_id in page:
            found: Anatomy = yield dissect, (thread_id,)
            problems, early = list(structure(found)), found.early_writes()
            removed: set[Any] = set()
            if before is not None and (early or any(p.kind in HARMLESS for p in problems)):
                removed = yield remove, (thread_id, before)
            report.add(p._replace(repaired=_place(p) in removed) for p in problems)
            report.early += sum(found.writes[place] for place in early)
            report.removed += sum(found.writes[place] for place in early & removed)
            report.add(_documents(codec, found))
            if payloads:
                yield from _payloads(codec, thread_id, report)
            report.threads += 1
            report.checkpoints += len(found.documents)
            if on_progress:
                on_progress(report)
        after = page[-1]
    return report


def structure(found: Anatomy) -> Iterator[Fault]:
    """What does not fit together."""
    thread_id = found.thread_id
    for ns, channel, version in sorted(found.orphaned_blobs()):
        key = (thread_id, ns, channel, version)
        yield Fault(ORPHANED_BLOB, "checkpoint_blobs", key, "no checkpoint refers to it")
    for place in sorted(found.orphaned_writes()):
        problem = f"{counted(found.writes[place], 'write')} of a checkpoint that is gone"
        yield Fault(ORPHANED_WRITES, "checkpoint_writes", (thread_id, *place), problem)
    for (ns, channel, version), places in sorted(found.missing_blobs().items()):
        refer = "1 checkpoint refers" if len(places) == 1 else f"{len(places):,} checkpoints refer"
        problem = f"{refer} to it, the last is {max(places).checkpoint_id}"
        yield Fault(MISSING_BLOB, "checkpoint_blobs", (thread_id, ns, channel, version), problem)
    for channel, place in sorted(found.broken_chains()):
        problem = f"channel {channel!r} is rebuilt from an ancestor that is not there"
        yield Fault(BROKEN_CHAIN, "checkpoints", (thread_id, *place), problem)
    for place in sorted(found.unreadable):
        problem = "its document or metadata is not that of a checkpoint"
        yield Fault(UNDECODABLE, "checkpoints", (thread_id, *place), problem)


def _documents(codec: Codec, found: Anatomy) -> Iterator[Fault]:
    """What in documents and metadata cannot be decoded."""
    for place in sorted(found.skeleton.bones):
        key = Key(found.thread_id, *place)
        try:
            for text in found.documents[place]:
                codec.load_document(key, text)
        except CorruptCheckpoint as error:
            yield Fault(UNDECODABLE, "checkpoints", (found.thread_id, *place), error.args[1])


def _payloads(codec: Codec, thread_id: str, report: Report) -> Steps[None]:
    """Decode all payloads of a thread."""
    after: tuple[Any, ...] = ("", "", "")
    while rows := (yield blobs_after, (thread_id, after)):
        faults = yield from _blob_faults(codec, thread_id, rows)
        if faults:  # which may be those of a chain that went between two reads: look once more
            again = yield blobs_after, (thread_id, after)
            still = yield from _blob_faults(codec, thread_id, again)
            faults = [fault for fault in faults if fault in still]
        report.add(faults)
        report.payloads += len(rows)
        after = rows[-1][: len(after)]
    last: tuple[Any, ...] = ("", "", "", LEAST)
    while rows := (yield writes_after, (thread_id, last)):
        for ns, checkpoint_id, task_id, idx, path, *row in rows:
            key = Key(thread_id, ns, checkpoint_id)
            where = "checkpoint_writes", (thread_id, ns, checkpoint_id, task_id, str(idx))
            write = FoundWrite(path, task_id, idx, *row)
            report.add(_decoded(*where, partial(codec.load_write, key, write)))
        report.payloads += len(rows)
        last = rows[-1][: len(last)]


def _blob_faults(
    codec: Codec, thread_id: str, rows: Sequence[tuple[Any, ...]]
) -> Steps[list[Fault]]:
    """What of some blobs cannot be decoded."""
    chains: Mapping[str, Segments] = yield segments_of, (thread_id, rows)
    found: list[Fault] = []
    for ns, *row in rows:
        key, blob = Key(thread_id, ns, None), Blob(*row)
        where = "checkpoint_blobs", (thread_id, ns, *row[:2])
        found += _decoded(*where, partial(codec.load_blob, key, blob, chains[ns]))
    return found


def _decoded(table: str, key: tuple[str, ...], load: Callable[[], object]) -> Iterator[Fault]:
    """The fault that a payload cannot be decoded, if so."""
    try:
        load()
    except CorruptCheckpoint as error:
        # What the serde refuses has its refusal as the cause; a digest that differs has none.
        kind = BROKEN_DIGEST if error.__cause__ is None else UNDECODABLE
        yield Fault(kind, table, key, error.args[1])


def _place(fault: Fault) -> tuple[str, ...]:
    """Where in its thread an orphan is."""
    _, *key = fault.key
    return tuple(key) if fault.kind in HARMLESS else ()
