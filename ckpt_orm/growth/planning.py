"""How a payload is to be stored, given what this process knows of earlier versions.

Whole, as the tail of the chain of an earlier version, or as a new chain with all of it. The tip of
a chain names its whole content, xxh3_128(tip before + appended bytes): who knows the tip knows
every byte, and an append that expects another tip than the stored one must not happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isqrt
from secrets import token_bytes
from typing import NamedTuple, cast

from xxhash import xxh3_128, xxh3_128_digest

from ckpt_orm.growth.folding import covered_end, in_use
from ckpt_orm.growth.likeness import Run, runs
from ckpt_orm.growth.manifests import CHAIN_BYTES, Cutter, Manifest, Piece, Span, size_of
from ckpt_orm.growth.units import header_of

#: In bytes. A smaller payload is always stored whole.
THRESHOLD = 4 * 1024

#: In bytes. A payload of this size starts a chain although no earlier version shows that it grows.
LARGE = 64 * 1024

#: In bytes. What is new and no longer than this stays in the manifest.
LITERAL = 64

#: What part of a payload must be shared with an earlier version: one in so many.
WORTHWHILE = 4

#: In bytes. A chain may hold this much beyond twice the payload; a row counts as some bytes more.
_DEAD_WEIGHT = 64 * 1024
_ROW_WEIGHT = 128


class End(NamedTuple):
    """The end of a chain: its tip, its length in bytes, its rows, and the starts of loose ones."""

    tip: bytes
    length: int
    rows: int
    loose: tuple[int, ...]


class Known(NamedTuple):
    """What this process knows of one stored version of a channel.

    `manifest` is None where it is stored whole, and `end` None where it has no chain or the end is
    not known. Either the payload is at hand, or `digest`, its xxh3_128; both where it was told.
    """

    version: str
    tag: str
    size: int
    header: bytes
    manifest: Manifest | None
    end: End | None
    payload: bytes | None
    digest: bytes | None = None

    @classmethod
    def whole(cls, version: str, tag: str, payload: bytes, digest: bytes | None = None) -> Known:
        """A version that was stored or read whole."""
        return cls(version, tag, len(payload), header_of(tag, payload), None, None, payload, digest)

    @classmethod
    def read(
        cls,
        version: str,
        tag: str,
        payload: bytes,
        manifest: Manifest,
        starts: Iterable[int] = (),
        *,
        length: int | None = None,
        tip: bytes | None = None,
        digest: bytes | None = None,
    ) -> Known:
        """A version that was read as a log.

        `starts` are those of the rows read, in order, `length` and `tip` what the chain is up to
        the end of some row at or behind the spans, all from one snapshot. Without these two nothing
        can be appended to the chain.
        """
        end = None
        if length is not None and tip is not None:
            rows = tuple(starts)
            loose = rows[rows.index(manifest.loose) :] if manifest.loose in rows else ()
            end = End(tip, length, len(rows), loose)
        header = header_of(tag, payload)
        return cls(version, tag, len(payload), header, manifest, end, payload, digest)

    def without_payload(self) -> Known:
        """The same in a few hundred bytes: that a later value begins with it can still be seen."""
        if self.payload is None:
            return self
        return self._replace(payload=None, digest=self.digest or xxh3_128_digest(self.payload))

    def begins(self, payload: bytes) -> bool:
        """Whether `payload`, of the same tag, is this value with something appended to it."""
        start, size = len(header_of(self.tag, payload)), self.size - len(self.header)
        if len(payload) - start < size:
            return False
        if self.payload is not None:
            return payload.startswith(memoryview(self.payload)[len(self.header) :], start)
        found = xxh3_128(self.header)
        found.update(memoryview(payload)[start : start + size])
        return found.digest() == self.digest


class Grown(NamedTuple):
    """How a payload is stored as a log.

    The chain named by `manifest.chain` must have the tip `expects` (None: the chain is new) and
    then gets `end`. `data` are its bytes from `start` on, to be written as one row; there always
    are some, so that the row's key can decide a race. `folds` says that this row replaces all rows
    from `start` on.
    """

    manifest: Manifest
    expects: bytes | None
    end: End
    start: int
    data: bytes
    folds: bool = False

    def known(self, version: str, tag: str, payload: bytes, digest: bytes | None = None) -> Known:
        """What is known once this is committed."""
        header, size = header_of(tag, payload), len(payload)
        return Known(version, tag, size, header, self.manifest, self.end, payload, digest)


def plan(
    tag: str, payload: bytes, bases: Sequence[Known], *, fold: int | None, eager: bool = True
) -> Grown | None:
    """How to store a payload; None is whole.

    `bases` are versions of the same channel, the likeliest to be shared with first. Every `fold`
    loose rows become one; None never folds. If `eager`, what is large starts a chain before
    another version shows that it grows.
    """
    if "+" in tag or len(payload) < THRESHOLD:  # what is encrypted or compressed shares nothing
        return None
    # A base of less than the worthwhile part says nothing about the rest.
    telling = [known for known in bases if WORTHWHILE * known.size >= len(payload)]
    likest = _likest(tag, payload, telling)
    if likest is None:
        return renewed(payload) if eager and len(payload) >= LARGE else None
    base, shared = likest
    if WORTHWHILE * sum(run.size for run in shared) < len(payload):
        return None
    if base.manifest is None or base.end is None or _overtaken(base.manifest, base.end, bases):
        return renewed(payload)
    found = continued(payload, base, base.manifest, base.end, shared)
    pieces, tail = found or placed(pieces_of(payload, base.manifest, shared), base.end.length)
    return _appended(payload, base.manifest, base.end, pieces, tail, fold) or renewed(payload)


def renewed(payload: bytes) -> Grown:
    """A new chain with all of the payload."""
    chain, size = token_bytes(CHAIN_BYTES), len(payload)
    manifest = Manifest(chain, size, size, (Span(0, size),))
    return Grown(manifest, None, End(_tip(chain, payload), size, 1, ()), 0, payload)


def _tip(before: bytes, appended: bytes) -> bytes:
    tip = xxh3_128(before)
    tip.update(appended)
    return tip.digest()


def _likest(tag: str, payload: bytes, bases: Sequence[Known]) -> tuple[Known, list[Run]] | None:
    """The base to share with, and what; None where no base can tell."""
    for base in bases:
        if base.tag == tag and base.begins(payload):
            return base, [_body(base, header_of(tag, payload))]
        if base.tag == tag and base.payload is not None:
            return base, runs(tag, base.payload, payload, _most_pieces(len(payload)))
    return None


def _body(base: Known, header: bytes) -> Run:
    """All of the base but its header, and that too if it is still the same."""
    if header == base.header:
        return Run(0, 0, base.size)
    return Run(len(header), len(base.header), base.size - len(base.header))


def _overtaken(manifest: Manifest, end: End, bases: Iterable[Known]) -> bool:
    """Whether the chain is known to be longer: the append would fail."""
    return any(
        known.end.length > end.length
        for known in bases
        if known.manifest and known.end and known.manifest.chain == manifest.chain
    )


def _most_pieces(size: int) -> int:
    """How many pieces a payload may consist of: as many as cost about what a new chain costs."""
    return max(16, isqrt(size // 20))


def continued(
    payload: bytes, base: Known, manifest: Manifest, end: End, shared: list[Run]
) -> tuple[tuple[Piece, ...], bytes] | None:
    """What `placed` makes of `pieces_of`, at once, where all that is new is at the end.

    None where it is not, or where the base does not end with its chain.
    """
    header, last = header_of(base.tag, payload), manifest.pieces[-1]
    longer = len(header) - len(base.header)
    tail = payload[base.size + longer :]
    if (
        len(shared) != 1
        or not _is_body(shared[0], base, longer)
        or not tail
        or not isinstance(last, Span)
        or last.stop != end.length
    ):
        return None
    grown = Span(last.start, last.stop + len(tail))
    if header == base.header:
        return (*manifest.pieces[:-1], grown), tail
    if manifest.pieces[0] != base.header:
        return None
    return (header, *manifest.pieces[1:-1], grown), tail


def _is_body(run: Run, base: Known, longer: int) -> bool:
    """Whether a run is all of the base behind its header, where the new header ends."""
    is_all = run.old <= len(base.header) and run.old + run.size == base.size
    return is_all and run.new == run.old + longer


def _appended(
    payload: bytes,
    base: Manifest,
    end: End,
    pieces: tuple[Piece, ...],
    tail: bytes,
    fold: int | None,
) -> Grown | None:
    """The payload in terms of the base's chain; None where a new chain is better."""
    size, length = len(payload), end.length + len(tail)
    if len(pieces) > _most_pieces(size):
        return None
    if length - in_use(pieces) + end.rows * _ROW_WEIGHT > size + _DEAD_WEIGHT:
        return None
    start, data, loose = _row(payload, pieces, end, tail, fold)
    rows = end.rows + 1 - (len(end.loose) if start < end.length else 0)
    manifest = Manifest(base.chain, size, loose[0] if loose else length, pieces)
    after = End(_tip(end.tip, tail), length, rows, loose)
    return Grown(manifest, end.tip, after, start, data, folds=start < end.length)


def pieces_of(payload: bytes, base: Manifest, shared: list[Run]) -> Iterator[Piece]:
    """The payload as pieces of the base, and bytes for what is new."""
    cutter, at = Cutter(base), 0
    for run in shared:
        if at < run.new:
            yield payload[at : run.new]
        yield from cutter.cut(run.old, run.old + run.size)
        at = run.new + run.size
    if at < len(payload):
        yield payload[at:]


def placed(pieces: Iterable[Piece], length: int) -> tuple[tuple[Piece, ...], bytes]:
    """The pieces with only short literals left, and the tail that the others are in.

    The tail is never empty: it takes the last literal, or a byte that nothing refers to.
    """
    found = _merged(pieces)
    literals = [number for number, piece in enumerate(found) if isinstance(piece, bytes)]
    tail: list[bytes] = []
    for number in [n for n in literals if size_of(found[n]) > LITERAL] or literals[-1:]:
        tail.append(cast(bytes, found[number]))
        found[number] = Span(length, length := length + len(tail[-1]))
    return tuple(_merged(found)), b"".join(tail) or b"\0"


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, with neighbours joined where one continues the other."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, Span) and isinstance(last, Span) and last.stop == piece.start:
            merged[-1] = Span(last.start, piece.stop)
        elif isinstance(piece, bytes) and isinstance(last, bytes):
            merged[-1] = last + piece
        else:
            merged.append(piece)
    return merged


def _row(
    payload: bytes, pieces: tuple[Piece, ...], end: End, tail: bytes, fold: int | None
) -> tuple[int, bytes, tuple[int, ...]]:
    """The row to write, where it starts and its bytes, and the rows that are loose after it."""
    if fold is None:
        return end.length, tail, ()
    loose = (*end.loose, end.length)
    if len(loose) >= fold:
        # Rows before bytes that the payload no longer has are never folded.
        begins, data = covered_end(pieces, payload, end.length + len(tail))
        loose = tuple(start for start in loose if start >= begins)
        if len(loose) >= fold:
            return loose[0], data[loose[0] - begins :], ()
    return end.length, tail, loose
