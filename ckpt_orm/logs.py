"""Logs: which blobs of a put share their bytes with earlier versions, and such blobs read again.

Between the codec, which knows values, and `growth`, which knows bytes: here a version stored as a
log is a row of checkpoint_blobs, whose tag says so, and rows of checkpoint_segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckpt_orm import growth
from ckpt_orm.forks import after_fork
from ckpt_orm.rows import Blob, Key, Log, PutRows, Segment, Segments, Tail

#: What follows the serde's own tag where the payload is a log.
LOG = "+log"


class ChainMoved(Exception):
    """A chain is not what a tail was made for: another one has been at it, or at its version."""


class Shelf:
    """What a runner's savers have in common: whether they store logs, and what they remember.

    Args:
        fold: how many small segments become one, None where reading many costs nothing.
        grows_from: from what size in bytes on a value is stored as a log.
        on: whether values that grow are stored as logs; None until the database was asked.
    """

    def __init__(self, fold: int | None, grows_from: int, on: bool | None) -> None:
        self.fold, self.grows_from, self.on = fold, grows_from, on
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin anew, knowing nothing."""
        self.memory = growth.Memory()


class Logs:
    """What a saver's process knows of the values it lately stored or read.

    Args:
        shelf: what it shares with others.
        tenant: whose values they are, None where there are no tenants.
    """

    def __init__(self, shelf: Shelf, tenant: Any = None) -> None:
        self.shelf, self._tenant = shelf, tenant

    def of(self, tenant: Any) -> Logs:
        """The same for the values of a tenant, whose threads may be named like another one's."""
        return Logs(self.shelf, tenant)

    def split(self, rows: PutRows, *, eager: bool = True) -> PutRows:
        """The rows of a put, with those of its values as logs that share bytes or soon will.

        Not `eager` are those that do already: where whole values are compressed, to wait for that
        costs little.
        """
        if not self.shelf.on or not any(map(self._may_grow, rows.blobs)):
            return rows
        return _with_logs(rows, [self.planned(rows.key, blob, eager=eager) for blob in rows.blobs])

    def renewed(self, rows: PutRows) -> PutRows:
        """The same rows, each log as a chain of its own, for where one was not what was known.

        That may have been a log of another call in a batch, all of which was left out for it.
        """
        logs = rows.log_of_each
        return _with_logs(
            rows, [log and log._replace(grown=growth.renewed(_payload(log))) for log in logs]
        )

    def stored(self, rows: PutRows) -> None:
        """Remember what was stored."""
        if rows.logs:
            for blob, log in zip(rows.plain or rows.blobs, rows.logs, strict=True):
                self.remember(rows.key, blob, log)

    def remember(self, key: Key, blob: Blob, log: Log | None) -> None:
        """Remember a version that was stored, as a log or whole."""
        if log is not None:
            whole = log.blob
            known = log.grown.known(blob.version, whole.type, _payload(log), whole.digest)
            self.shelf.memory.remember(self._channel(key, blob), known)
        elif self._may_grow(blob):
            bases = self.shelf.memory.recall(self._channel(key, blob))
            if all(known.version != blob.version for known in bases):
                self._remember_whole(key, blob)

    def planned(self, key: Key, blob: Blob, *, eager: bool = True) -> Log | None:
        """How a version shares bytes with earlier ones; None where it is better stored whole."""
        if not self._may_grow(blob):
            return None
        bases = self.shelf.memory.recall(self._channel(key, blob))
        if any(known.version == blob.version for known in bases):
            return None  # it is there already, unless that was rolled back
        payload = blob.blob or b""
        grown = growth.plan(blob.type, payload, bases, fold=self.shelf.fold, eager=eager)
        return None if grown is None else Log(blob, grown)

    def read(self, key: Key, blob: Blob, payload: bytes, segments: Segments) -> None:
        """Remember what was read, its digest checked."""
        if not self.shelf.on:
            return
        if is_log(blob):
            manifest = growth.Manifest.decode(blob.blob or b"")
            rows = segments.get((blob.channel, manifest.chain), ())
            known = growth.Known.read(
                blob.version,
                tag_of(blob),
                payload,
                manifest,
                [row.start for row in rows],
                length=rows[-1].start + len(rows[-1].data) if rows else None,
                tip=rows[-1].digest if rows else None,
                digest=blob.digest,
            )
            self.shelf.memory.remember(self._channel(key, blob), known)
        elif self._may_grow(blob):
            self._remember_whole(key, blob)

    def _may_grow(self, blob: Blob) -> bool:
        return blob.blob is not None and len(blob.blob) >= self.shelf.grows_from

    def _channel(self, key: Key, blob: Blob) -> growth.Channel:
        return growth.Channel(key.thread_id, key.checkpoint_ns, blob.channel, self._tenant)

    def _remember_whole(self, key: Key, blob: Blob) -> None:
        known = growth.Known.whole(blob.version, blob.type, blob.blob or b"", blob.digest)
        self.shelf.memory.remember(self._channel(key, blob), known)


def is_log(blob: Blob) -> bool:
    """Whether a blob holds a manifest in place of its value's payload."""
    return blob.chain is not None


def tag_of(blob: Blob) -> str:
    """The serde's own tag."""
    return blob.type.removesuffix(LOG) if is_log(blob) else blob.type


def payload_of(blob: Blob, segments: Segments) -> bytes:
    """The payload of a blob.

    Raises:
        ValueError: where a part of it is missing.
    """
    if not is_log(blob):
        return blob.blob or b""
    manifest = growth.Manifest.decode(blob.blob or b"")
    rows: Sequence[Segment] = segments.get((blob.channel, manifest.chain), ())
    return growth.assemble(manifest, ((row.start, row.data) for row in rows))


def _payload(log: Log) -> bytes:
    return log.blob.blob or b""


def _with_logs(rows: PutRows, logs: Sequence[Log | None]) -> PutRows:
    blobs = [
        blob if log is None else as_log(log) for blob, log in zip(rows.blobs, logs, strict=True)
    ]
    tails = [tail_of(log) for log in logs if log is not None]
    return rows._replace(blobs=blobs, tails=tails, logs=logs)


def whole(rows: PutRows) -> PutRows:
    """The same rows without logs."""
    pairs = zip(rows.blobs, rows.log_of_each, strict=True)
    blobs = [log.blob if log else blob for blob, log in pairs]
    return rows._replace(blobs=blobs, tails=(), logs=())


def as_log(log: Log) -> Blob:
    """The row of a value that is stored as a log."""
    whole, manifest = log.blob, log.grown.manifest
    return Blob(
        whole.channel,
        whole.version,
        whole.type + LOG,
        manifest.encode(),
        whole.digest,
        manifest.chain,
        log.grown.end.length,
    )


def tail_of(log: Log) -> Tail:
    """What is to be added to its chain."""
    grown = log.grown
    return Tail(
        log.blob.channel,
        log.blob.version,
        grown.manifest.chain,
        grown.start,
        grown.data,
        grown.end.tip,
        grown.expects,
        grown.folds,
    )
