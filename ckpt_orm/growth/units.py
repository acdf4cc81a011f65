"""Where the parts of a payload end, so that parts which moved are found again.

A payload in msgpack is cut at its items; an item larger than a grain is cut at its own items, also
within an extension, and a long string into blocks. Any other payload is cut into blocks only.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

from ckpt_orm.growth.manifests import Span

#: About how many units a payload is compared by; where there are more, neighbours are grouped.
UNITS = 4096

#: A container of more items than `UNITS` is cut at them if they have about this many bytes each:
#: looking at smaller ones would cost more than writing them again.
_ITEM = 128

#: How deep containers are cut. Each level reads its bytes once more.
_DEPTH = 8

_BLOCK = 1024

#: How long the header of a msgpack item is, by its first byte, where a body follows.
_ARRAYS = {**dict.fromkeys(range(0x90, 0xA0), 1), 0xDC: 3, 0xDD: 5}
_MAPS = {**dict.fromkeys(range(0x80, 0x90), 1), 0xDE: 3, 0xDF: 5}
_EXTENSIONS = {**dict.fromkeys(range(0xD4, 0xD9), 2), 0xC7: 3, 0xC8: 4, 0xC9: 6}
_STRINGS = {
    **dict.fromkeys(range(0xA0, 0xC0), 1),
    **{0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5},
}
_HEADERS = _ARRAYS | _MAPS | _EXTENSIONS | _STRINGS


class Units(NamedTuple):
    """Parts of a payload in order: where each starts, and the xxh3_64 of its bytes.

    Two lists and not one of pairs: thousands of pairs at a time keep the garbage collector busy.
    """

    starts: list[int]
    digests: list[int]


def header_of(tag: str, payload: bytes) -> bytes:
    """What changes at the front when the value grows: the header of a msgpack item."""
    return payload[: _HEADERS.get(payload[0], 0)] if tag == "msgpack" and payload else b""


def units(tag: str, payload: bytes, window: Span) -> Units:
    """The whole units of a payload that lie in a window of it."""
    cutting = _Cutting(tag, memoryview(payload), window)
    # Another format by the name of msgpack is cut as far as it can be read.
    with suppress(ValueError, msgpack.UnpackException):
        cutting.cut(0, len(payload), _DEPTH)
    return _between(payload, cutting.ends)


def grouped(payload: bytes, found: Units, bits: int) -> Units:
    """Neighbouring units as one: about every 2 to the power of `bits`.

    Where a group begins is decided by the unit there and not by its number, so that groups are the
    same ones again after a shift.
    """
    mask = (1 << bits) - 1
    return _between(payload, [s for s, digest in zip(*found, strict=True) if not digest & mask])


def _between(payload: bytes, ends: list[int]) -> Units:
    view = memoryview(payload)
    digests = [xxh3_64_intdigest(view[start:stop]) for start, stop in pairwise(ends)]
    return Units(ends[:-1], digests)


class _Cutting:
    """Collects where the parts of a payload end, as far as they are in the window."""

    def __init__(self, tag: str, view: memoryview, window: Span) -> None:
        self.ends: list[int] = []
        self._is_msgpack = tag == "msgpack"
        self._view = view
        self._window = window
        self._grain = max(_BLOCK, len(view) // UNITS)
        self._most_ends = min(8 * UNITS, max(UNITS, len(view) // _ITEM))

    def cut(self, start: int, stop: int, depth: int) -> None:
        """The item from `start` to `stop`: the end of its header, those of its parts, its own."""
        first = self._view[start] if self._is_msgpack and depth else 0
        body = start + _HEADERS.get(first, 0)
        self._end(body)
        if first in _ARRAYS or first in _MAPS:
            self._cut_items(start, stop, depth)
        elif first in _EXTENSIONS and _is_one_item(self._view[body:stop]):
            self.cut(body, stop, depth - 1)
        else:
            self._cut_blocks(body, stop)
        self._end(stop)

    def _cut_items(self, start: int, stop: int, depth: int) -> None:
        unpacker = _unpacker(self._view[start:stop])
        if self._view[start] in _ARRAYS:
            count = unpacker.read_array_header()
        else:
            count = 2 * unpacker.read_map_header()
        if len(self.ends) + count > self._most_ends:
            self._cut_blocks(start, stop)
            return
        begins = start + unpacker.tell()
        for _ in range(count):
            unpacker.skip()
            end = start + unpacker.tell()
            if self._window.start <= end and begins <= self._window.stop:
                if end - begins > self._grain:
                    self.cut(begins, end, depth - 1)
                else:
                    self._end(end)
            begins = end

    def _cut_blocks(self, start: int, stop: int) -> None:
        for end in range(start + self._grain, stop, self._grain):
            self._end(end)

    def _end(self, end: int) -> None:
        if self._window.start <= end <= self._window.stop and end not in self.ends[-1:]:
            self.ends.append(end)


def _is_one_item(view: memoryview) -> bool:
    unpacker = _unpacker(view)
    unpacker.skip()
    return bool(unpacker.tell() == len(view))


def _unpacker(view: memoryview) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(view)))
    unpacker.feed(view)
    return unpacker
