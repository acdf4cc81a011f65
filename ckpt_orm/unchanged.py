"""UNCHANGED: a message that was encoded before, and is as it was, is not encoded again.

A list of messages is put whole with each superstep, most of them the same objects as the last time.
What a message is encoded as is decided by its fields. So it is remembered of each field what object
it held: one that cannot change has not changed if it is still there; of one that can, what was in
it. To look takes less than half of the time that encoding takes.

As in `messages`, this is for LangChain's own messages and LangGraph's plain serde. A list of them
is put together from what each is encoded as, which is how msgpack encodes a list.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import msgpack  # type: ignore[import-untyped]
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ckpt_orm.messages import ATOMS, CLASSES, MOST_BYTES, MOST_SEEN, Lately

#: A shorter list is encoded as a whole, which takes less than to look at its messages.
SHORTEST = 16

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
    """

    def __init__(self, most_bytes: int = MOST_BYTES, shortest: int = SHORTEST) -> None:
        self._shortest = shortest
        self._seen: set[int] = set()
        self._known: Lately[int, Encoding] = Lately(most_bytes)

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
        codes = [self._code_of(message) or self._encoded(serde, message) for message in messages]
        if not all(codes):
            return serde.dumps_typed(value)
        return "msgpack", _header_of(len(codes)) + b"".join(codes)

    def _is_new(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether a list was just made or loaded, and may never be put again."""
        if id(messages[0]) in self._seen:
            return False
        if len(self._seen) >= MOST_SEEN:
            self._seen = set()
        self._seen.update(map(id, messages))
        return True

    def _code_of(self, message: BaseMessage) -> bytes | None:
        found = self._known.get(id(message))
        return found.code if found is not None and found.holds(message) else None

    def _encoded(self, serde: SerializerProtocol, message: BaseMessage) -> bytes:
        """A message as an item of a list; nothing, where the serde leaves msgpack for it."""
        # Looked at before and after: a node may be changing the message meanwhile.
        encoding = encoding_of(message) if self._known.has_room() else None
        tag, payload = serde.dumps_typed([message])
        if tag != "msgpack":
            return b""
        code = payload[1:]  # behind the header of a list of one
        if encoding is not None and encoding.holds(message):
            encoding.code = code
            self._known.keep(id(message), encoding)
        return code


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

    __slots__ = ("_class", "_containers", "_held", "_names", "_values", "code", "message")

    def __init__(
        self,
        message: BaseMessage,
        fields: Mapping[str, Any],
        containers: list[Any],
        held: bytes | None,
    ) -> None:
        self.message, self._class = message, type(message)
        self._names, self._values = list(fields), list(fields.values())
        self._containers, self._held = containers, held
        #: The message's bytes as an item of a list, once it has been encoded.
        self.code = b""

    @property
    def weight(self) -> int:
        """About how much memory it takes: its text twice, and what its containers hold."""
        return 2 * len(self.code) + 8 * len(self._held or b"") + _OVERHEAD

    def holds(self, message: BaseMessage) -> bool:
        """Whether it is the same message, as it was."""
        fields = message.__dict__
        return (
            message is self.message
            and type(message) is self._class
            and list(fields) == self._names
            and all(map(is_, fields.values(), self._values))
            and not message.__pydantic_extra__
            and (not any(self._containers) if self._held is None else self._is_held())
        )

    def _is_held(self) -> bool:
        try:
            return marshal.dumps(self._containers, _FORMAT) == self._held
        except ValueError:
            return False


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
