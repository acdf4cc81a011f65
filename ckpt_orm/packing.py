"""Packing: values that are there already become logs, or logs become whole values again.

Online, a few rows at a time: a version is changed only where nobody has changed it meanwhile, and
what it was is readable until its transaction commits. What is packed is planned as `put` plans it,
version after version of a channel; what was unpacked can be read by the official saver.

As a sweep is, it is a generator of steps, which `upkeep` drives in either colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from ckpt_orm.lanes import Lane
from ckpt_orm.logs import ChainMoved, Logs, Shelf, as_log, is_log, payload_of, tag_of, tail_of
from ckpt_orm.operations import add_segment, changes, hold_chains, take_turns
from ckpt_orm.retention import collect
from ckpt_orm.rows import NOTHING, Blob, Key, Segments, Tail
from ckpt_orm.sweeping import Steps
from ckpt_orm.verifying import blobs_after, segments_of, threads

#: Bytes of values that one transaction stores, and that are in memory for it.
BATCH_BYTES = 8 << 20


@dataclass
class Packed:
    """What packing or unpacking has changed.

    Args:
        threads: threads that were looked at.
        values: versions of channels that are stored in another way now.
        skipped: those that somebody else had changed meanwhile: the next run sees them.
    """

    threads: int = 0
    values: int = 0
    skipped: int = 0


class Change(NamedTuple):
    """How a version is to be stored, and whether it is a log so far."""

    checkpoint_ns: str
    blob: Blob
    was_log: bool
    tail: Tail | None = None


@changes
def store(
    lane: Lane,
    thread_id: str,
    found: Sequence[Change],
    filled: Mapping[str, Any] = NOTHING,
) -> int:
    """Store versions in another way; how many were still as they had been."""
    done = 0
    take_turns(lane, [thread_id])
    # Before blobs, as by those who delete.
    hold_chains(lane, thread_id)
    for change in found:
        with suppress(ChainMoved), lane.conn.begin_nested():
            done += _store(lane, thread_id, change, filled)
    collect(lane, thread_id)
    return done


def _store(lane: Lane, thread_id: str, change: Change, filled: Mapping[str, Any]) -> bool:
    """Store a version, if it still is what it was; whether it is."""
    blob, tail = change.blob, change.tail
    params = {
        "of_thread": thread_id,
        "of_ns": change.checkpoint_ns,
        "of_channel": blob.channel,
        "of_version": blob.version,
        "was_digest": blob.digest,
        "new_type": blob.type,
        "new_blob": blob.blob,
        "new_chain": blob.chain,
        "new_stop": blob.stop,
    }
    if not lane.conn.execute(
        lane.st.UNPACKED if change.was_log else lane.st.PACKED, params
    ).rowcount:
        return False
    if tail is not None:
        thread = {"thread_id": thread_id, "checkpoint_ns": change.checkpoint_ns}
        add_segment(lane, {**thread, **filled}, tail)
    return True


#: Makes the changes of a page of blobs.
Converter = Callable[[str, Blob, Segments], Change | None]


def pack(
    shelf: Callable[[], Shelf],
    filled: Mapping[str, Any],
    on_progress: Callable[[Packed], object] | None,
) -> Steps[Packed]:
    """Make logs of all values that grow.

    Args:
        shelf: makes what is remembered of a thread's values.
        filled: the parameters of segments' own columns.
        on_progress: called after each thread.
    """
    return _convert(
        lambda thread_id: partial(_packed, Logs(shelf()), thread_id),
        on_progress,
        filled,
    )


def unpack(on_progress: Callable[[Packed], object] | None) -> Steps[Packed]:
    """Store all logs whole."""
    return _convert(lambda thread_id: _unpacked, on_progress)


def _convert(
    of_thread: Callable[[str], Converter],
    on_progress: Callable[[Packed], object] | None,
    filled: Mapping[str, Any] = NOTHING,
) -> Steps[Packed]:
    packed = Packed()
    after: str | None = None
    while page := (yield threads, (after,)):
        for thread_id in page:
            convert, last = of_thread(thread_id), ("", "", "")
            while rows := (yield blobs_after, (thread_id, last)):
                segments: Mapping[str, Segments] = yield segments_of, (thread_id, rows)
                changed = (convert(ns, Blob(*row), segments[ns]) for ns, *row in rows)
                for found in _batches(change for change in changed if change is not None):
                    done: int = yield store, (thread_id, found, filled)
                    packed.values += done
                    packed.skipped += len(found) - done
                last = rows[-1][: len(last)]
            packed.threads += 1
            if on_progress:
                on_progress(packed)
        after = page[-1]
    return packed


def _batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Changes as one transaction stores them; those that come later are not yet made."""
    batch: list[Change] = []
    size = 0
    for change in changes:
        batch.append(change)
        size += len(change.blob.blob or b"") + len(change.tail.data if change.tail else b"")
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _packed(logs: Logs, thread_id: str, ns: str, blob: Blob, segments: Segments) -> Change | None:
    """A version as a log, if it grows from what was seen of its channel before."""
    key = Key(thread_id, ns, None)
    if is_log(blob):
        payload = _intact(blob, segments)
        if payload is not None:
            logs.read(key, blob, payload, segments)
        return None
    log = logs.planned(key, blob)
    logs.remember(key, blob, log)
    return None if log is None else Change(ns, as_log(log), False, tail_of(log))


def _unpacked(ns: str, blob: Blob, segments: Segments) -> Change | None:
    """A log as a whole value; one that cannot be read stays what it is."""
    payload = _intact(blob, segments) if is_log(blob) else None
    if payload is None:
        return None
    return Change(ns, blob._replace(type=tag_of(blob), blob=payload, chain=None, stop=None), True)


def _intact(blob: Blob, segments: Segments) -> bytes | None:
    """The payload of a log, None where it is not what was stored."""
    try:
        payload = payload_of(blob, segments)
    except ValueError:
        return None
    return payload if blob.digest in (None, xxh3_128_digest(payload)) else None
