"""What two payloads have in common, as a few runs of bytes.

First what they begin and end with, which is all for one edit. What is left in the middle is
compared by units; a unit found again is extended byte by byte, so a run is as long as the bytes
allow. Runs are compared by their bytes: a digest only says where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from ckpt_orm.growth.manifests import Span, size_of
from ckpt_orm.growth.units import UNITS, Units, grouped, header_of, units

#: A shorter run costs about as much as it saves.
SHORTEST = 64

#: In bytes. A change of no more than this that leaves the length alone is stepped over, a counter
#: or the header of a container within, where at least so much is the same behind it.
_STEP = 9
_BEHIND = 512

#: How many changes are stepped over: what has more of them is compared by units.
_MOST_STEPS = 8


class Run(NamedTuple):
    """Bytes that are in both payloads: where in the new one, where in the old one, how many."""

    new: int
    old: int
    size: int


def runs(tag: str, old: bytes, new: bytes, most: int) -> list[Run]:
    """The runs that `new` shares with `old`, in the order of `new`, none overlapping there.

    The search ends after about `most` runs.
    """
    found = list(islice(_from_the_front(tag, old, new), _MOST_STEPS))
    front = found[-1] if found else Run(0, 0, 0)
    old_middle = Span(front.old + front.size, len(old))
    new_middle = Span(front.new + front.size, len(new))
    back = common_back(old, len(old), new, len(new), min(map(size_of, (old_middle, new_middle))))
    old_middle = Span(old_middle.start, len(old) - back)
    new_middle = Span(new_middle.start, len(new) - back)
    if min(map(size_of, (old_middle, new_middle))) > SHORTEST:
        found += islice(_moved(tag, old, new, old_middle, new_middle), most)
    if back:
        found.append(Run(new_middle.stop, old_middle.stop, back))
    return found


def _from_the_front(tag: str, old: bytes, new: bytes) -> Iterator[Run]:
    """What both begin with, but for the header and for short changes."""
    headers = header_of(tag, old), header_of(tag, new)
    i, j = (0, 0) if headers[0] == headers[1] else map(len, headers)
    step, most = 0, min(len(old) - i, len(new) - j)
    while size := common_front(old, i + step, new, j + step, most - step):
        i, j, most = i + step, j + step, most - step - size
        yield Run(j, i, size)
        i, j = i + size, j + size
        step = _length_of_change(old, i, new, j)


def _length_of_change(old: bytes, i: int, new: bytes, j: int) -> int:
    """How far to step over a short change; where it is none, no step."""
    view = memoryview(new)
    for step in range(1, _STEP + 1):
        if old.startswith(view[j + step : j + step + _BEHIND], i + step):
            return step if j + step + _BEHIND <= len(new) else 0
    return 0


def common_front(old: bytes, i: int, new: bytes, j: int, most: int) -> int:
    """How many bytes, `most` at most, are the same from `i` and `j` on."""
    view = memoryview(new)
    return _most_for_which(
        lambda same, step: old.startswith(view[j + same : j + same + step], i + same), most
    )


def common_back(old: bytes, i: int, new: bytes, j: int, most: int) -> int:
    """How many bytes, `most` at most, are the same up to `i` and `j`."""
    view = memoryview(new)
    return _most_for_which(
        lambda same, step: old.startswith(view[j - same - step : j - same], i - same - step), most
    )


def _most_for_which(goes_on: Callable[[int, int], bool], most: int) -> int:
    """How far one can go, `most` at most, where `goes_on` tells of a place and a step from there.

    In steps that double as long as they are good, and are halved once one is not.
    """
    same, step = 0, SHORTEST
    while same < most:
        step = min(step, most - same)
        if goes_on(same, step):
            same, step = same + step, 2 * step
        elif step == 1:
            break
        else:
            most = same + step - 1
            step = step // 2
    return same


def _moved(tag: str, old: bytes, new: bytes, old_span: Span, new_span: Span) -> Iterator[Run]:
    """What is in both, wherever it is: each unit of the new one is looked for in the old one."""
    olds, news = _units_of_both(tag, old, new, old_span, new_span)
    last = dict(zip(olds.digests, olds.starts, strict=True))
    first = dict(zip(reversed(olds.digests), reversed(olds.starts), strict=True))
    reached, most = new_span.start, new_span.stop
    for start, digest in zip(news.starts, news.digests, strict=True):
        if start < reached or digest not in first:
            continue
        size, place = max(
            (common_front(old, place, new, start, min(old_span.stop - place, most - start)), place)
            for place in {first[digest], last[digest]}
        )
        before = common_back(old, place, new, start, min(place - old_span.start, start - reached))
        if before + size >= SHORTEST:
            yield Run(start - before, place - before, before + size)
            reached = start + size


def _units_of_both(
    tag: str, old: bytes, new: bytes, old_span: Span, new_span: Span
) -> tuple[Units, Units]:
    olds, news = units(tag, old, old_span), units(tag, new, new_span)
    bits = (max(len(olds.starts), len(news.starts)) // UNITS).bit_length()
    if bits:
        return grouped(old, olds, bits), grouped(new, news, bits)
    return olds, news
