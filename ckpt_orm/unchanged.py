"""UNCHANGED: a message that was encoded before, and is as it was, is not encoded again.

A list of messages is put whole with each superstep, most of them the same objects as the last time.
What a message is encoded as is decided by its fields. So it is remembered of each field what object
it held: one that cannot change has not changed if it is still there; of one that can, what was in
it. To look takes a third of the time that encoding takes, and half of that for the messages that a
list began with when it was put before, which are looked at all together.

As in `messages`, this is for LangChain's own messages and LangGraph's plain serde. A list of them
is put together from what each is encoded as, which is how msgpack encodes a list.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import msgpack  # type: ignore[import-untyped]
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ckpt_orm.messages import ATOMS, CLASSES, MOST_BYTES, MOST_SEEN, Lately

#: A shorter list is encoded as a whole, which takes less than to look at its messages.
SHORTEST = 16

#: As many more messages are put to what a list began with at a time: each time all is copied.
STRETCH = 8

#: So is a longer one: what is known would not hold it.
LONGEST = 4096

#: What a message takes besides its text, once decoded and once encoded.
_OVERHEAD = 3_000

#: Of marshal's formats, one in which equal values of the same types have the same bytes.
_FORMAT = 2

#: What holds the parts of a message that can change.
_CONTAINERS: frozenset[type] = frozenset({dict, list})

#: What these may hold besides each other for a message to be remembered.
_SCALARS = ATOMS - {bytes}


class Encodings:
    """What messages were encoded as; shared by all copies of a saver.

    Safe in threads without a lock: at worst a message is encoded once more.

    Args:
        most_bytes: about how much memory is kept, the least lately used dropped.
        shortest: the length, 1 or more, from which on a list is looked at.
        stretch: how many more messages are put to what a list began with at a time.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, shortest: int = SHORTEST, stretch: int = STRETCH
    ) -> None:
        self._shortest, self._stretch = shortest, stretch
        self._seen: set[int] = set()
        self._known: Lately[int, Encoding] = Lately(most_bytes // 2)
        #: What lists began with, by their first message.
        self._begun: Lately[int, Beginning] = Lately(most_bytes // 2)

    def dumps(self, serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
        """What `serde.dumps_typed` returns."""
        if (
            type(value) is not list
            or not self._shortest <= len(value) <= LONGEST
            or type(serde) is not JsonPlusSerializer
            or "dumps_typed" in vars(serde)
        ):
            return serde.dumps_typed(value)
        messages = value.copy()  # a node may be adding to the list meanwhile
        if not CLASSES.issuperset(map(type, messages)) or self._is_new(messages):
            return serde.dumps_typed(value)
        payload = self._payload_of(serde, messages)
        return serde.dumps_typed(value) if payload is None else ("msgpack", payload)

    def _is_new(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether a list was just made or loaded, and may never be put again."""
        if id(messages[0]) in self._seen:
            return False
        if len(self._seen) >= MOST_SEEN:
            self._seen = set()
        self._seen.update(map(id, messages))
        return True

    def _payload_of(
        self, serde: SerializerProtocol, messages: Sequence[BaseMessage]
    ) -> bytes | None:
        """A list of messages; None, where the serde leaves msgpack for one of them."""
        first = id(messages[0])
        found = self._begun.get(first)
        begun = found if found is not None and found.begins(messages) else NOTHING
        codes: list[bytes] = []
        known: list[Encoding] = []
        for message in messages[begun.number :]:
            code, encoding = self._encoded(serde, message, is_next=begun is not NOTHING)
            if not code:
                return None
            if encoding is not None and len(known) == len(codes):
                known.append(encoding)
            codes.append(code)
        payload = b"".join((_header_of(len(messages)), begun.body, *codes))
        if found is None:  # it may be one whose first message goes with the next step
            self._begun.keep(first, NOTHING)
        elif len(known) >= self._stretch:
            self._begun.keep(first, begun.and_then(known, payload, len(messages)))
        return payload

    def _encoded(
        self, serde: SerializerProtocol, message: BaseMessage, *, is_next: bool
    ) -> tuple[bytes, Encoding | None]:
        """A message as an item of a list, and what is known of it.

        No bytes, where the serde leaves msgpack for it. One that `is_next` in a list whose messages
        are known so far is looked at in any case.
        """
        found = self._known.get(id(message))
        if found is not None and found.holds(message):
            return found.code, found
        # Looked at before and after: a node may be changing the message meanwhile.
        has_room = self._known.has_room()
        encoding = encoding_of(message) if has_room or is_next else None
        tag, payload = serde.dumps_typed([message])
        if tag != "msgpack":
            return b"", None
        code = payload[1:]  # behind the header of a list of one
        if encoding is None or not encoding.holds(message):
            return code, None
        encoding.code = code
        if has_room:
            self._known.keep(id(message), encoding)
        return code, encoding


@lru_cache(maxsize=4096)
def _header_of(length: int) -> bytes:
    """The header of a list; kept, since a packer takes a buffer first that is larger than most."""
    header: bytes = msgpack.Packer().pack_array_header(length)
    return header


class Encoding:
    """What a message was encoded as, and what it consisted of.

    Args:
        message: the message, which is kept, so that no other one takes its place in memory.
        fields: all its fields.
        containers: those of them that can change, which are lists and dicts.
        held: what was in these, None where all were empty.
    """

    __slots__ = ("class_", "code", "containers", "held", "message", "names", "values")

    def __init__(
        self,
        message: BaseMessage,
        fields: Mapping[str, Any],
        containers: list[Any],
        held: bytes | None,
    ) -> None:
        self.message, self.class_ = message, type(message)
        self.names, self.values = list(fields), list(fields.values())
        self.containers, self.held = containers, held
        #: The message's bytes as an item of a list, once it has been encoded.
        self.code = b""

    @property
    def weight(self) -> int:
        """About how much memory it takes: its text twice, and what its containers hold."""
        return 2 * len(self.code) + 8 * len(self.held or b"") + _OVERHEAD

    def holds(self, message: BaseMessage) -> bool:
        """Whether it is the same message, as it was."""
        fields = message.__dict__
        return (
            message is self.message
            and type(message) is self.class_
            and list(fields) == self.names
            and all(map(is_, fields.values(), self.values))
            and not message.__pydantic_extra__
            and (not any(self.containers) if self.held is None else self._is_held())
        )

    def _is_held(self) -> bool:
        try:
            return marshal.dumps(self.containers, _FORMAT) == self.held
        except ValueError:
            return False


class Beginning:
    """The messages that a list began with, as they were when they were encoded.

    What is known of each is put together, so that all of them are looked at in a few steps.
    """

    __slots__ = (
        *("_classes", "_empty", "_full", "_held", "_names", "_sizes", "_values"),
        *("body", "number", "weight"),
    )

    def __init__(self) -> None:
        #: How many they are.
        self.number = 0
        #: Their bytes as items of a list, one behind the other.
        self.body: bytes | memoryview = b""
        #: About how much memory it takes.
        self.weight = 0
        self._classes: list[type] = []
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        self._empty: list[Any] = []
        self._full: list[list[Any]] = []
        self._held: list[bytes] = []

    def begins(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether a list begins with these messages, all of them as they were."""
        found = messages[: self.number]
        fields = list(map(_fields_of, found))
        return (
            all(map(is_, map(type, found), self._classes))
            and list(map(len, fields)) == self._sizes
            and list(chain.from_iterable(fields)) == self._names
            and all(map(is_, chain.from_iterable(map(_values_of, fields)), self._values))
            and not any(map(_extra_of, found))
            and not any(self._empty)
            and self._is_held()
        )

    def _is_held(self) -> bool:
        try:
            return list(map(marshal.dumps, self._full, repeat(_FORMAT))) == self._held
        except ValueError:
            return False

    def and_then(self, known: Sequence[Encoding], payload: bytes, number: int) -> Beginning:
        """These messages and the next ones of a list of so many, whose bytes are the payload."""
        longer, start = Beginning(), len(_header_of(number))
        size = len(self.body) + sum(len(one.code) for one in known)
        longer.body = memoryview(payload)[start : start + size]
        full = [one for one in known if one.held is not None]
        empty = [one.containers for one in known if one.held is None]
        longer.weight = self.weight + sum(one.weight for one in known)
        longer.number = self.number + len(known)
        longer._classes = [*self._classes, *(one.class_ for one in known)]
        longer._sizes = [*self._sizes, *(len(one.names) for one in known)]
        longer._names = [*self._names, *chain.from_iterable(one.names for one in known)]
        longer._values = [*self._values, *chain.from_iterable(one.values for one in known)]
        longer._empty = [*self._empty, *chain.from_iterable(empty)]
        longer._full = [*self._full, *(one.containers for one in full)]
        longer._held = [*self._held, *(one.held for one in full if one.held is not None)]
        return longer


#: What is known of a list that was not put before.
NOTHING = Beginning()

_fields_of, _extra_of = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_values_of = dict.values


def encoding_of(message: BaseMessage) -> Encoding | None:
    """What is remembered of a message; None where it could change without being seen to."""
    fields = message.__dict__.copy()
    containers = [value for value in fields.values() if type(value) not in ATOMS]
    if message.__pydantic_extra__ or message.__pydantic_private__ is not None:
        return None
    if not _CONTAINERS.issuperset(map(type, containers)):
        return None
    try:
        held = marshal.dumps(containers, _FORMAT) if any(containers) else None
        is_plain = held is None or _is_plain(marshal.loads(held))
    except (ValueError, RecursionError):  # they hold something else than plain data
        return None
    return Encoding(message, fields, containers, held) if is_plain else None


def _is_plain(values: Collection[Any]) -> bool:
    """Whether nothing else has the same bytes as what marshal read.

    It makes bytes of whatever has a buffer, such as an array, whose shape and type are not in them.
    """
    if _SCALARS.issuperset(map(type, values)):
        return True
    for value in values:
        kind = type(value)
        if kind is dict:
            if not (_is_plain(value) and _is_plain(value.values())):
                return False
        elif kind not in _SCALARS and not (kind is list and _is_plain(value)):
            return False
    return True
