"""UNCHANGED: a message that was encoded before, and is as it was, is not encoded again.

A list of messages is put whole with each superstep, most of them the same objects as the last time,
or as when it was read. What a message is encoded as is decided by its fields, so these are looked
at (see `stretches`), which takes a sixth of the time that encoding takes; to remember them takes a
third. A list that became another one by more than additions is searched for messages that stayed.

As in `messages`, this is for LangChain's own messages and LangGraph's plain serde. A list of them
is put together from what each is encoded as, which is how msgpack encodes a list. What a message
was decoded from will do as well, where each read makes the same message of it: with that serde, as
LangGraph made it, and the types it admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ckpt_orm.messages import CLASSES, MOST_BYTES, Hook, Lately, is_langgraphs
from ckpt_orm.stretches import (
    OVERHEAD,
    LeavesMsgpack,
    Piece,
    Run,
    Stretch,
    code_of,
    header_of,
    look_at,
    weight_of,
)

#: A shorter list is encoded as a whole, which takes less than to look at its messages.
SHORTEST = 16

#: So many messages are put to what a list began with at a time: each time all is copied.
STRETCH = 16

#: Where more than one message of so many is encoded each time, all are.
_ODD = 4

#: Whose list it is: thread_id, checkpoint_ns, channel.
Place: TypeAlias = tuple[str, str, str]


class Encodings:
    """What lists of messages were encoded as, or decoded from; shared by all copies of a saver.

    Safe in threads without a lock, since what is kept does not change: at worst a list is encoded
    once more.

    Args:
        most_bytes: about how much memory is kept, the least lately used dropped.
        shortest: the length, 1 or more, from which on a list is looked at.
        stretch: how many more messages are put to what a list began with at a time.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, shortest: int = SHORTEST, stretch: int = STRETCH
    ) -> None:
        self._most_bytes, self._shortest, self._stretch = most_bytes, shortest, stretch
        self._lists: Lately[Place, Known] = Lately(most_bytes)

    def loaded(self, serde: SerializerProtocol, place: Place, value: Any, payload: bytes) -> None:
        """Remember what a list was just decoded from; nobody else has its messages yet."""
        if not self._is_meant(serde, value) or not CLASSES.issuperset(map(type, value)):
            return
        if not is_langgraphs(serde):
            return
        header = header_of(len(value))
        fits = weight_of(len(value), len(payload)) <= self._most_bytes // 2
        if fits and payload.startswith(header) and self._lists.get(place) is not ODD:
            stretch = Stretch(value.copy()).of(memoryview(payload)[len(header) :])
            self._keep(place, (stretch,), serde._unpack_ext_hook)

    def dumps(
        self, serde: SerializerProtocol, value: Any, place: Place | None = None
    ) -> tuple[str, bytes]:
        """What `serde.dumps_typed` returns; without a place nothing is known or remembered."""
        if place is None or not self._is_meant(serde, value):
            return serde.dumps_typed(value)
        known = self._lists.get(place)
        # To remember costs: not for lists that are put in turn, and too many for any to stay.
        if (not self._lists.has_room()) if known is None else known.is_left:
            return serde.dumps_typed(value)
        messages = value.copy()  # a node may be adding to the list meanwhile
        if not CLASSES.issuperset(map(type, messages)):
            return serde.dumps_typed(value)
        try:
            return "msgpack", self._payload_of(serde, place, messages, known or NOTHING)
        except LeavesMsgpack:
            self._lists.keep(place, UNFIT)
            return serde.dumps_typed(value)

    def _is_meant(self, serde: SerializerProtocol, value: Any) -> bool:
        return (
            type(value) is list
            and len(value) >= self._shortest
            and type(serde) is JsonPlusSerializer
            and "dumps_typed" not in vars(serde)
        )

    def _payload_of(
        self, serde: SerializerProtocol, place: Place, messages: list[BaseMessage], known: Known
    ) -> bytes:
        hook: Hook | None = getattr(serde, "_unpack_ext_hook", None)
        known = known if known.hook is hook else NOTHING
        header, parts = header_of(len(messages)), list(_beginning(serde, messages, known))
        rest = messages[sum(part.stretch.number for part in parts) :]
        if not rest:
            return b"".join((header, *_pieces_of(parts)))
        fresh, copies = look_at(rest)
        if copies is None:
            return b"".join((header, *_pieces_of(parts), code_of(serde, rest)))
        lost = known.stretches[len(parts) :]
        parts.append(Part(fresh, list(_codes(serde, copies, fresh, lost))))
        payload = b"".join((header, *_pieces_of(parts)))
        self._keep(place, self._joined(parts, memoryview(payload)[len(header) :]), hook)
        return payload

    def _joined(self, parts: list[Part], body: memoryview) -> tuple[Stretch, ...]:
        """Two stretches at most, what a list began with and what was added since."""
        *first, last = parts
        if len(first) > 1:
            last = first.pop().and_then(last)
        if first and last.stretch.number >= self._stretch:
            last = first.pop().and_then(last)
        if first:
            return first[0].stretch, last.stretch.of(b"".join(last.pieces))
        return (last.stretch.of(body),)

    def _keep(self, place: Place, stretches: tuple[Stretch, ...], hook: Hook | None) -> None:
        weight = sum(stretch.weight for stretch in stretches)
        number = sum(stretch.number for stretch in stretches)
        if _ODD * sum(len(stretch.odd) for stretch in stretches) > number:
            found = ODD
        else:
            fits = weight <= self._most_bytes // 2
            found = Known(stretches, weight, hook) if fits else UNFIT
        self._lists.keep(place, found)


class Known(NamedTuple):
    """What is known of a list.

    Args:
        stretches: its messages.
        weight: about how much memory that takes.
        hook: what made, or would make, these messages of these bytes. Another one may make others.
    """

    stretches: tuple[Stretch, ...]
    weight: int
    hook: Hook | None = None

    @property
    def is_left(self) -> bool:
        """Whether it is left to the serde, as far as is known."""
        return not self.stretches


#: What is known of a list that was not put before.
NOTHING = Known((), 0)

#: Of one with many odd messages, until that is forgotten; and of one that is too large for now, or
#: that msgpack cannot hold.
ODD, UNFIT = Known((), OVERHEAD), Known((), OVERHEAD + 1)


class Part(NamedTuple):
    """Messages that follow each other in a list that is put, and what they are encoded as now."""

    stretch: Stretch
    pieces: list[Piece]

    def and_then(self, other: Part) -> Part:
        """These messages and those that come next."""
        return Part(self.stretch.and_then(other.stretch), [*self.pieces, *other.pieces])


def _pieces_of(parts: Iterable[Part]) -> Iterator[Piece]:
    return chain.from_iterable(part.pieces for part in parts)


def _beginning(
    serde: SerializerProtocol, messages: list[BaseMessage], known: Known
) -> Iterator[Part]:
    """What a list begins with that is as it was."""
    start = 0
    for stretch in known.stretches:
        found = messages[start : start + stretch.number]
        if not stretch.holds(found):
            return
        yield Part(stretch, stretch.pieces(serde, found))
        start += stretch.number


def _codes(
    serde: SerializerProtocol,
    messages: Sequence[BaseMessage],
    now: Stretch,
    lost: Sequence[Stretch],
) -> Iterator[Piece]:
    """What messages are encoded as, of which some were in a list that has become another one."""
    done = 0
    for run in _runs(now, lost) if lost else ():
        if done < run.start:
            yield code_of(serde, messages[done : run.start])
        yield run.code
        done = run.stop
    if done < len(messages):
        yield code_of(serde, messages[done:])


class Spot(NamedTuple):
    """Where a message stood."""

    stretch: Stretch | None
    place: int


NOWHERE = Spot(None, 0)


def _runs(now: Stretch, lost: Sequence[Stretch]) -> Iterator[Run]:
    """Those of the messages of a list that are as they were elsewhere."""
    where = {id(one): Spot(it, place) for it in lost for place, one in enumerate(it.messages)}
    odd = {id(one) for it in (now, *lost) for one in it.unknown()}
    found = [NOWHERE if id(one) in odd else where.get(id(one), NOWHERE) for one in now.messages]
    # What stood as far from each other there as here are neighbours that stayed together.
    together = groupby(range(len(found)), lambda at: (found[at].stretch, found[at].place - at))
    for (stretch, by), places in together:
        if stretch is not None:
            start, *more = places
            yield from stretch.runs(now, start, start + 1 + len(more), by)
