"""Messages of a list as they were when it was encoded, and whether they are so still.

It is remembered of each field of a message what object it held: one that cannot change has not
changed if it is still there; of one that can, what was in it. What is known of each message is put
together, so that all are looked at in a few steps, whatever their number.

What they were is also what is encoded, as copies that are made of it: a node may be changing the
messages meanwhile, and back, and what it made of them in between is not what is remembered.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, islice, repeat
from operator import attrgetter, is_, not_
from typing import Any, NamedTuple, TypeAlias

import msgpack  # type: ignore[import-untyped]
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ckpt_orm.messages import ATOMS, made_of
from ckpt_orm.once import once

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

#: What a copy has in place of an empty one; nobody adds to it.
_EMPTY: dict[type, Any] = {dict: {}, list: []}

#: What a dict and a list take besides what is in them.
_DICT, _LIST = 184, 56

#: What stands in the place of a message that is encoded each time.
_BLANK = HumanMessage("")

#: Bytes that go into a payload.
Piece: TypeAlias = bytes | memoryview


class Stretch:
    """Messages that follow each other in a list, as they were when it was encoded.

    What is known of each is put together, so that all are looked at in a few steps.

    Args:
        messages: the messages, which are kept, so that no other one takes their place in memory.
            Each is looked at in one step, as something else may be changing it.
        odd: the places of those that could change without being seen to. They are encoded each
            time, and another message stands for them here.
    """

    def __init__(self, messages: list[BaseMessage], odd: tuple[int, ...] = ()) -> None:
        self.messages, self.odd = _plain_of(messages, odd), odd
        fields = list(map(dict.copy, map(_fields_of, self.messages)))
        self._classes = list(map(type, self.messages))
        self._sizes = list(map(len, fields))
        self._names = list(chain.from_iterable(fields))
        self._values = list(chain.from_iterable(map(_values_of, fields)))
        containers = [value for value in self._values if type(value) in _CONTAINERS]
        #: Whether there is anything in each container, and what there is in those that are full.
        self._are_full = list(map(bool, containers))
        self._full = list(compress(containers, self._are_full))
        self._empty = list(compress(containers, map(not_, self._are_full)))
        self._held = _held_in(self._full)
        self._has_more = any(map(_extra_of, self.messages))
        #: The bytes of the messages as items of a list, one behind the other.
        self.body: Piece = b""

    @property
    def number(self) -> int:
        """How many messages they are."""
        return len(self.messages)

    @property
    def weight(self) -> int:
        """About how much memory it takes."""
        return weight_of(self.number, len(self.body)) + _size_of(self._held)

    def of(self, body: Piece) -> Stretch:
        """The same, once it is known what the messages were encoded as."""
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

    def holds(self, messages: list[BaseMessage]) -> bool:
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

    @once
    def is_plain(self) -> bool:
        """Whether none that is not odd could change without being seen to."""
        return self._read() is not None

    def _read(self) -> list[Any] | None:
        """What the full containers held, in others, where all is plain data."""
        if self._has_more or None in self._held:
            return None
        if not _FIELDS.issuperset(map(type, self._values)):
            return None
        try:
            read = list(map(marshal.loads, filter(None, self._held)))
            return read if all(map(_is_plain, read)) else None
        except RecursionError:
            return None

    def copies(self, messages: Sequence[BaseMessage]) -> list[BaseMessage] | None:
        """Messages as they were when they were looked at, but for the odd ones.

        Returns:
            Nothing, where any other one could change without being seen to.
        """
        read = self._read()
        self.is_plain = read is not None
        if read is None:
            return None
        values, contents = self._values.copy(), iter(read)
        for at, is_full in zip(self._containers, self._are_full, strict=True):
            values[at] = next(contents) if is_full else _EMPTY[type(values[at])]
        items = zip(self._names, values, strict=True)
        fields = [dict(islice(items, size)) for size in self._sizes]
        copies = list(map(made_of, self._classes, fields))
        for place in self.odd:
            copies[place] = messages[place]
        return copies

    def unknown(self) -> Sequence[BaseMessage]:
        """Those of which it is not known what they were: what stands for odd ones, or all."""
        return self.messages if self._has_more else [_BLANK]

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

    @once
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

    @once
    def _containers(self) -> list[int]:
        """Which fields are containers."""
        return [at for at, value in enumerate(self._values) if type(value) in _CONTAINERS]

    @once
    def _filled(self) -> list[int]:
        """Which of them held anything."""
        return list(compress(self._containers, self._are_full))

    @once
    def _starts(self) -> list[int]:
        """Where the fields of a message end and those of the next one begin."""
        return [0, *accumulate(self._sizes)]


#: What is known of some messages.
Facts: TypeAlias = tuple[list[Any], ...]

#: What there is of each message, of each of its fields, and of each container.
_LISTS = (
    *("messages", "_classes", "_sizes"),
    *("_names", "_values"),
    *("_are_full", "_full", "_empty", "_held"),
)


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


def look_at(messages: list[BaseMessage]) -> tuple[Stretch, list[BaseMessage] | None]:
    """Messages as they are, and copies to encode; it is looked which of them are odd.

    Returns:
        No copies, where a message changed meanwhile: nothing is to be remembered then.
    """
    found = Stretch(messages)
    if (copies := found.copies(messages)) is None:
        odd = (place for place, one in enumerate(messages) if not Stretch([one]).is_plain)
        found = Stretch(messages, tuple(odd))
        copies = found.copies(messages)
    return found, copies


def _size_of(held: Sequence[bytes | None]) -> int:
    """About how much memory takes what containers hold, and they themselves."""
    known = b"".join(filter(None, held))
    return 8 * len(known) + _DICT * known.count(b"{") + _LIST * known.count(b"[")


def _plain_of(messages: list[BaseMessage], odd: Collection[int]) -> list[BaseMessage]:
    """Messages, with another one in place of each odd one."""
    if not odd:
        return messages
    plain = messages.copy()
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
