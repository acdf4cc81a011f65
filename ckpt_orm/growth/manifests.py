"""What the row of a version stored as a log holds, and the payload put together again.

    blob = chain (16 raw bytes, so that SQL can compare them) + msgpack [size, loose, pieces...]

A piece is two integers (where a span of the chain starts, how long it is) or a literal's bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import msgpack  # type: ignore[import-untyped]

#: How long a chain's random id is, in bytes.
CHAIN_BYTES = 16

#: Where a chain must end: its offsets are 64-bit integers in the database.
_FARTHEST = 2**63 - 1


class Span(NamedTuple):
    """The bytes of a chain from `start` up to `stop`, which is not included."""

    start: int
    stop: int


#: A part of a payload: a span of its chain, or the bytes themselves.
Piece: TypeAlias = Span | bytes


def size_of(piece: Piece) -> int:
    """How many bytes of the payload a piece stands for."""
    return piece.stop - piece.start if isinstance(piece, Span) else len(piece)


class Manifest(NamedTuple):
    """The pieces a payload consists of.

    `chain` is the id of the chain all spans lie in, `size` the payload's length in bytes, and
    `loose` where the rows of the chain begin that a later append may fold into one.
    """

    chain: bytes
    size: int
    loose: int
    pieces: tuple[Piece, ...]

    @property
    def spans(self) -> list[Span]:
        """The pieces that lie in the chain, in the order of the payload."""
        return [piece for piece in self.pieces if isinstance(piece, Span)]

    @property
    def reach(self) -> Span:
        """The stretch of the chain from its first byte in use to its last; empty without spans."""
        spans = self.spans
        return Span(
            min((span.start for span in spans), default=0),
            max((span.stop for span in spans), default=0),
        )

    def encode(self) -> bytes:
        """The bytes a version's row holds."""
        flat: list[int | bytes] = [self.size, self.loose]
        for piece in self.pieces:
            flat += (piece.start, piece.stop - piece.start) if isinstance(piece, Span) else (piece,)
        packed: bytes = msgpack.packb(flat)
        return self.chain + packed

    @classmethod
    def decode(cls, blob: bytes) -> Manifest:
        """The manifest in a version's row; ValueError where the bytes are none."""
        try:
            flat = msgpack.unpackb(memoryview(blob)[CHAIN_BYTES:])
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ValueError("a manifest that is no msgpack") from error
        if type(flat) is not list or len(flat) < 2:
            raise ValueError("a manifest without its two lengths")
        size, loose, *rest = flat
        pieces = tuple(_pieces(iter(rest)))
        if sum(map(size_of, pieces)) != _offset(size):
            raise ValueError("a manifest whose pieces do not add up to its size")
        return cls(bytes(blob[:CHAIN_BYTES]), size, _offset(loose), pieces)


def _pieces(flat: Iterator[object]) -> Iterator[Piece]:
    for first in flat:
        if type(first) is bytes and first:
            yield first
        else:
            start = _offset(first)
            stop = start + _offset(next(flat, None))
            if not start < _offset(stop):
                raise ValueError("a manifest with an empty span")
            yield Span(start, stop)


def _offset(found: object) -> int:
    if type(found) is not int or not 0 <= found <= _FARTHEST:
        raise ValueError("a manifest with something else in place of an offset")
    return found


class Cutter:
    """Finds the pieces that any stretch of a payload consists of."""

    def __init__(self, manifest: Manifest) -> None:
        self._pieces = manifest.pieces
        self._starts = list(accumulate(map(size_of, manifest.pieces), initial=0))

    def cut(self, start: int, stop: int) -> Iterator[Piece]:
        """The pieces of the payload's bytes from `start` up to `stop`."""
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            begins, ends = self._starts[number], min(stop, self._starts[number + 1])
            piece = self._pieces[number]
            if isinstance(piece, Span):
                yield Span(piece.start + start - begins, piece.start + ends - begins)
            else:
                yield piece[start - begins : ends - begins]
            start, number = ends, number + 1


def assemble(manifest: Manifest, rows: Iterable[tuple[int, bytes]]) -> bytes:
    """The payload of a version from rows of its chain.

    `rows` are (start, data) in the order of `start`; rows outside the spans do no harm. ValueError
    where a span is not covered, or where rows overlap.
    """
    starts, stretches = _stretches(rows)
    parts: list[bytes | memoryview] = []
    for piece in manifest.pieces:
        if isinstance(piece, Span):
            number = bisect_right(starts, piece.start) - 1
            if number < 0 or piece.stop > starts[number] + len(stretches[number]):
                raise ValueError("a stretch of the chain is missing")
            begins = starts[number]
            parts.append(stretches[number][piece.start - begins : piece.stop - begins])
        else:
            parts.append(piece)
    return b"".join(parts)


def _stretches(rows: Iterable[tuple[int, bytes]]) -> tuple[list[int], list[memoryview]]:
    """Rows that follow each other without a gap, joined: where each stretch starts, its bytes."""
    starts: list[int] = []
    runs: list[list[bytes]] = []
    reached = -1
    for start, data in rows:
        if start != reached:
            if start < reached:
                raise ValueError("rows of the chain overlap")
            starts.append(start)
            runs.append([])
        runs[-1].append(data)
        reached = start + len(data)
    return starts, [memoryview(b"".join(run)) for run in runs]
