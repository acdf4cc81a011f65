"""Where the parts of a payload end, so that parts which moved are found again.

A payload in msgpack is cut at its items; an item larger than a grain is cut at its own items, also
within an extension, and a long string into blocks. Any other payload is cut into blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

from ckpt_orm.growth.manifests import Span

#: About how many units a payload is compared by; where there are more, neighbours are grouped.
UNITS = 4096

#: How many ends are looked at. A container of more items than that is cut into blocks.
_MOST_ENDS = 8 * UNITS

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


class Unit(NamedTuple):
    """A part of a payload: where it starts, and the xxh3_64 of its bytes."""

    start: int
    digest: int


def header_size(tag: str, payload: bytes) -> int:
    """How many bytes at the front change when the value grows: the header of a msgpack item."""
    return _HEADERS.get(payload[0], 0) if tag == "msgpack" and payload else 0


def units(tag: str, payload: bytes, window: Span) -> list[Unit]:
    """The whole units of a payload that lie in a window of it, in order."""
    ends = list(islice(_ends_within(tag, payload, window), _MOST_ENDS))
    view = memoryview(payload)
    return [Unit(start, xxh3_64_intdigest(view[start:stop])) for start, stop in pairwise(ends)]


def grouped(payload: bytes, found: list[Unit], bits: int) -> list[Unit]:
    """Neighbouring units as one: about every 2 to the power of `bits`.

    Where a group begins is decided by the unit there and not by its number, so that groups are the
    same ones again after a shift.
    """
    mask = (1 << bits) - 1
    starts = [start for start, digest in found if not digest & mask]
    view = memoryview(payload)
    return [Unit(start, xxh3_64_intdigest(view[start:stop])) for start, stop in pairwise(starts)]


def _ends_within(tag: str, payload: bytes, window: Span) -> Iterator[int]:
    try:
        for end in _ends(tag, memoryview(payload), Span(0, len(payload)), window, _DEPTH):
            if end > window.stop:
                return
            if end >= window.start:
                yield end
    except (ValueError, msgpack.UnpackException):
        return  # another format by the name of msgpack, or one that ends early


def _ends(tag: str, view: memoryview, item: Span, window: Span, depth: int) -> Iterator[int]:
    """Where the parts of an item end, in order, with the end of its header and its own."""
    first = view[item.start] if tag == "msgpack" and depth else 0
    body = Span(item.start + _HEADERS.get(first, 0), item.stop)
    yield body.start
    if first in _ARRAYS or first in _MAPS:
        yield from _ends_of_items(tag, view, item, window, depth)
    elif first in _EXTENSIONS and _is_one_item(view[body.start : body.stop]):
        yield from _ends(tag, view, body, window, depth - 1)
    else:
        yield from range(body.start + _BLOCK, item.stop, _BLOCK)
    yield item.stop


def _ends_of_items(
    tag: str, view: memoryview, item: Span, window: Span, depth: int
) -> Iterator[int]:
    unpacker = _unpacker(view[item.start : item.stop])
    if view[item.start] in _ARRAYS:
        count = unpacker.read_array_header()
    else:
        count = 2 * unpacker.read_map_header()
    if count > _MOST_ENDS:
        yield from range(item.start + _BLOCK, item.stop, _BLOCK)
        return
    grain = max(_BLOCK, len(view) // UNITS)
    start = item.start + unpacker.tell()
    for _ in range(count):
        unpacker.skip()
        stop = item.start + unpacker.tell()
        if stop - start > grain and start < window.stop and stop > window.start:
            yield from _ends(tag, view, Span(start, stop), window, depth - 1)
        else:
            yield stop
        start = stop


def _is_one_item(view: memoryview) -> bool:
    unpacker = _unpacker(view)
    unpacker.skip()
    return bool(unpacker.tell() == len(view))


def _unpacker(view: memoryview) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(view)))
    unpacker.feed(view)
    return unpacker
