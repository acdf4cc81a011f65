"""What two payloads have in common, as a few runs of bytes.

First what they begin and end with, which is all for one edit. What is left in the middle is
compared by units; a unit found again is extended byte by byte, so a run is as long as the bytes
allow. Runs are compared by their bytes: a digest only says where to look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_orm.growth.manifests import Span
from ckpt_orm.growth.units import UNITS, Unit, grouped, units

#: A shorter run costs about as much as it saves.
SHORTEST = 64

#: At how many places a unit is tried that occurs more than once.
_PLACES = 4


class Run(NamedTuple):
    """Bytes that are in both payloads: where in the new one, where in the old one, how many."""

    new: int
    old: int
    size: int


def runs(tag: str, old: bytes, new: bytes) -> list[Run]:
    """The runs that `new` shares with `old`, in the order of `new`, none overlapping there."""
    most = min(len(old), len(new))
    front = common_front(old, 0, new, 0, most)
    back = common_back(old, len(old), new, len(new), most - front)
    old_middle, new_middle = Span(front, len(old) - back), Span(front, len(new) - back)
    found = [Run(0, 0, front)] if front else []
    if min(old_middle.stop, new_middle.stop) - front > SHORTEST:
        found += _moved(tag, old, new, old_middle, new_middle)
    if back:
        found.append(Run(new_middle.stop, old_middle.stop, back))
    return found


def common_front(old: bytes, i: int, new: bytes, j: int, most: int) -> int:
    """How many bytes, `most` at most, are the same from `i` and `j` on."""
    view = memoryview(new)
    same, step = 0, SHORTEST
    while same < most:
        step = min(step, most - same)
        if old.startswith(view[j + same : j + same + step], i + same):
            same, step = same + step, 2 * step
        elif step == 1:
            break
        else:
            most = same + step - 1
            step = step // 2
    return same


def common_back(old: bytes, i: int, new: bytes, j: int, most: int) -> int:
    """How many bytes, `most` at most, are the same up to `i` and `j`."""
    view = memoryview(new)
    same, step = 0, SHORTEST
    while same < most:
        step = min(step, most - same)
        if old.startswith(view[j - same - step : j - same], i - same - step):
            same, step = same + step, 2 * step
        elif step == 1:
            break
        else:
            most = same + step - 1
            step = step // 2
    return same


def _moved(tag: str, old: bytes, new: bytes, old_span: Span, new_span: Span) -> Iterator[Run]:
    olds, news = _units_of_both(tag, old, new, old_span, new_span)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for start, digest in olds:
        if len(places[digest]) < _PLACES:
            places[digest].append(start)
    reached, most = new_span.start, new_span.stop
    for start, digest in news:
        if start < reached or digest not in places:
            continue
        size, place = max(
            (common_front(old, place, new, start, min(old_span.stop - place, most - start)), place)
            for place in places[digest]
        )
        before = common_back(old, place, new, start, min(place - old_span.start, start - reached))
        if before + size >= SHORTEST:
            yield Run(start - before, place - before, before + size)
            reached = start + size


def _units_of_both(
    tag: str, old: bytes, new: bytes, old_span: Span, new_span: Span
) -> tuple[list[Unit], list[Unit]]:
    olds, news = units(tag, old, old_span), units(tag, new, new_span)
    bits = (max(len(olds), len(news)) // UNITS).bit_length()
    if bits:
        return grouped(old, olds, bits), grouped(new, news, bits)
    return olds, news
