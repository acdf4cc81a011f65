"""Messages of a list as they were when it was encoded, and whether they are so still.

It is remembered of each field of a message what object it held: one that cannot change has not
changed if it is still there; of one that can, what was in it. What is known of each message is put
together, so that all are looked at in a few steps, whatever their number.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeAlias

import msgpack  # type: ignore[import-untyped]
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ckpt_orm.messages import ATOMS

#: What a message takes besides its text, once decoded and once encoded.
OVERHEAD = 3_000

#: Of marshal's formats, one in which equal values of the same types have the same bytes.
_FORMAT = 2

#: What holds the parts of a message that can change.
_CONTAINERS: frozenset[type] = frozenset({dict, list})

#: What these may hold besides each other for a message to be remembered.
_SCALARS = ATOMS - {bytes}

#: What the fields of a message may hold.
_FIELDS = ATOMS | _CONTAINERS

#: What stands in the place of a message that is encoded each time.
_BLANK = HumanMessage("")

#: Bytes that go into a payload.
Piece: TypeAlias = bytes | memoryview


class Stretch:
    """Messages that follow each other in a list, as they were when it was encoded.

    What is known of each is put together, so that all are looked at in a few steps.

    Args:
        messages: the messages, which are kept, so that no other one takes their place in memory.
        odd: the places of those that could change without being seen to. They are encoded each
            time, and another message stands for them here.
    """

    def __init__(self, messages: list[BaseMessage], odd: tuple[int, ...] = ()) -> None:
        self.messages, self.odd = messages, odd
        plain = _plain_of(messages, odd)
        fields = list(map(_fields_of, plain))
        self._classes = list(map(type, plain))
        self._sizes = list(map(len, fields))
        self._names = list(chain.from_iterable(fields))
        self._values = list(chain.from_iterable(map(_values_of, fields)))
        containers = [value for value in self._values if type(value) in _CONTAINERS]
        self._full = [value for value in containers if value]
        self._empty = [value for value in containers if not value]
        #: What was in the full ones.
        self._held = _held_in(self._full)
        self._has_more = any(map(_extra_of, plain))
        #: The bytes of the messages as items of a list, one behind the other.
        self.body: Piece = b""
        #: About how much memory it takes.
        self.weight = 0

    @property
    def number(self) -> int:
        """How many messages they are."""
        return len(self.messages)

    def of(self, body: Piece) -> Stretch:
        """The same, once it is known what the messages were encoded as."""
        held = sum(map(len, filter(None, self._held)))
        self.weight = weight_of(self.number, len(body)) + 8 * held
        self.body = body
        return self

    def and_then(self, other: Stretch) -> Stretch:
        """These messages and those that come next, but for what they were encoded as."""
        longer = Stretch([])
        longer.odd = (*self.odd, *(self.number + place for place in other.odd))
        for name in _LISTS:
            setattr(longer, name, [*getattr(self, name), *getattr(other, name)])
        longer.is_plain = self.is_plain and other.is_plain
        return longer

    # --- are they as they were? ---

    def holds(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether these are as many messages as they were, all that are not odd as they were."""
        if len(messages) != self.number:
            return False
        plain = _plain_of(messages, self.odd)
        fields = list(map(_fields_of, plain))
        return (
            list(map(len, fields)) == self._sizes
            and all(map(is_, map(type, plain), self._classes))
            and list(chain.from_iterable(fields)) == self._names
            and all(map(is_, chain.from_iterable(map(_values_of, fields)), self._values))
            and not any(map(_extra_of, plain))
            and not any(self._empty)
            and _held_in(self._full) == self._held
            and self.is_plain
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether none that is not odd could change without being seen to."""
        return (
            not self._has_more
            and _FIELDS.issuperset(map(type, self._values))
            and all(map(_are_plain, self._held))
        )

    def unknown(self) -> Sequence[BaseMessage]:
        """Those of which it is not known what they were: the odd ones, or any of all."""
        return self.messages if self._has_more else [self.messages[place] for place in self.odd]

    # --- what were they encoded as? ---

    def pieces(self, serde: SerializerProtocol, messages: Sequence[BaseMessage]) -> list[Piece]:
        """What these messages are encoded as, which are as they were but for the odd ones."""
        if not self.odd:
            return [self.body]
        pieces: list[Piece] = []
        start = 0
        for place in self.odd:
            pieces += (self.code(start, place), code_of(serde, [messages[place]]))
            start = place + 1
        return [*pieces, self.code(start, self.number)]

    def code(self, start: int, stop: int) -> Piece:
        """What the messages from one place to another were encoded as."""
        return self.body[self._ends[start] : self._ends[stop]]

    @cached_property
    def _ends(self) -> list[int]:
        """Where a message ends and the next one begins, in their bytes."""
        unpacker = msgpack.Unpacker(max_buffer_size=len(self.body) + 1)
        unpacker.feed(self.body)
        ends = [0]
        for _ in self.messages:
            unpacker.skip()
            ends.append(unpacker.tell())
        return ends

    def runs(self, now: Stretch, start: int, stop: int, by: int) -> Iterator[Run]:
        """Those of the messages from `start` to `stop` of a list that are as they were here.

        Args:
            now: the list as it is.
            start: the first message.
            stop: the one behind the last.
            by: how many places further on they stood here.
        """
        if self._of(start + by, stop + by) == now._of(start, stop):
            yield Run(start, stop, self.code(start + by, stop + by))
        elif stop - start > 1:
            middle = (start + stop) // 2
            yield from self.runs(now, start, middle, by)
            yield from self.runs(now, middle, stop, by)

    def _of(self, start: int, stop: int) -> Facts:
        """What is known of the messages from one place to another."""
        first, last = self._starts[start], self._starts[stop]
        held = slice(bisect_left(self._filled, first), bisect_left(self._filled, last))
        return (
            self._classes[start:stop],
            self._sizes[start:stop],
            self._names[first:last],
            list(map(id, self._values[first:last])),
            [at - first for at in self._filled[held]],
            self._held[held],
        )

    @cached_property
    def _starts(self) -> list[int]:
        """Where the fields of a message end and those of the next one begin."""
        return [0, *accumulate(self._sizes)]

    @cached_property
    def _filled(self) -> list[int]:
        """Which fields held something that can change."""
        full = set(map(id, self._full))
        return [at for at, value in enumerate(self._values) if id(value) in full]


#: What is known of some messages.
Facts: TypeAlias = tuple[list[Any], ...]

#: What there is of each message, or some of its fields.
_LISTS = ("messages", "_classes", "_sizes", "_names", "_values", "_full", "_empty", "_held")


class Run(NamedTuple):
    """Messages of a list, from one place to another, that are as they were elsewhere."""

    start: int
    stop: int
    code: Piece


class LeavesMsgpack(Exception):
    """The serde encodes a message otherwise: as part of a list it would too."""


_fields_of, _extra_of = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_values_of = dict.values


def weight_of(number: int, size: int) -> int:
    """About how much memory so many messages take that are encoded in so many bytes."""
    return OVERHEAD * number + 2 * size  # their text twice


def stretch_of(messages: list[BaseMessage]) -> Stretch:
    """Messages as they are; it is looked which of them are odd."""
    found = Stretch(messages)
    if found.is_plain:
        return found
    odd = (place for place, one in enumerate(messages) if not Stretch([one]).is_plain)
    return Stretch(messages, tuple(odd))


def _plain_of(messages: Sequence[BaseMessage], odd: Collection[int]) -> Sequence[BaseMessage]:
    """Messages, with another one in place of each odd one."""
    if not odd:
        return messages
    plain = list(messages)
    for place in odd:
        plain[place] = _BLANK
    return plain


def code_of(serde: SerializerProtocol, messages: Sequence[BaseMessage]) -> bytes:
    """Messages as items of a list."""
    tag, payload = serde.dumps_typed(list(messages))
    if tag != "msgpack":
        raise LeavesMsgpack
    return payload[len(header_of(len(messages))) :]


@lru_cache(maxsize=4096)
def header_of(length: int) -> bytes:
    """The header of a list; kept, since a packer takes a buffer first that is larger than most."""
    header: bytes = msgpack.Packer().pack_array_header(length)
    return header


def _held_in(containers: Sequence[Any]) -> list[bytes | None]:
    """What lists and dicts hold; None, where that is something else than plain data."""
    try:
        return list(map(marshal.dumps, containers, repeat(_FORMAT)))
    except ValueError:
        return list(map(_held_by, containers))


def _held_by(container: Any) -> bytes | None:
    try:
        return marshal.dumps(container, _FORMAT)
    except ValueError:
        return None


def _are_plain(held: bytes | None) -> bool:
    """Whether what a container held is plain data, and nothing else that has the same bytes."""
    try:
        return held is not None and _is_plain(marshal.loads(held))
    except RecursionError:
        return False


def _is_plain(values: Collection[Any]) -> bool:
    """Whether nothing else has the same bytes as what marshal read.

    It makes bytes of whatever has a buffer, such as an array, whose shape and type are not in them.
    """
    if type(values) is dict and not _SCALARS.issuperset(map(type, values)):
        return False
    for value in values.values() if type(values) is dict else values:
        kind = type(value)
        if kind not in _SCALARS and not (kind in _CONTAINERS and _is_plain(value)):
            return False
    return True
