"""COPIES: a message that was decoded before is copied, which takes a quarter of the time.

Decoding is most of what a read costs, and nearly all of it goes into making messages: the same ones
with each run of a thread, and in `list` the same ones in one checkpoint after another. What the
serde makes of one is decided by its bytes; so what was decoded from the same bytes twice is kept,
and each reader gets a copy of its own, that shares only what cannot change.

That holds for LangChain's own messages, which are made of plain data and do nothing else when they
are made. Any other object is left to the serde, and so is every serde but LangGraph's plain one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

#: How many bytes of encoded messages are kept decoded; decoded ones take some three times as much.
MOST_BYTES = 8 * 1024 * 1024

#: A longer message is mostly text, which takes as long to compare as to decode.
LONGEST = 64 * 1024

#: Of how many messages it is known that they were decoded once.
MOST_SEEN = 32 * 1024

#: LangChain's own; what an application derives from them may do anything when it is made.
CLASSES: frozenset[type] = frozenset(
    {
        *(AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage),
        *(AIMessageChunk, ChatMessageChunk, FunctionMessageChunk, HumanMessageChunk),
        *(SystemMessageChunk, ToolMessageChunk, RemoveMessage),
    }
)

#: What can be shared, since nobody can change it.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})

#: What a serde makes a value with.
Hook = Callable[[int, bytes], Any]


class Readers:
    """What decodes for each serde; shared by all copies of a saver."""

    def __init__(self) -> None:
        self._readers: WeakKeyDictionary[JsonPlusSerializer, SerializerProtocol]
        self._readers = WeakKeyDictionary()

    def of(self, serde: SerializerProtocol) -> SerializerProtocol:
        """What loads msgpack as a serde does, and messages that it has met before faster."""
        # A subclass may make what it likes of the same bytes, and something else each time.
        if type(serde) is not JsonPlusSerializer:
            return serde
        reader = self._readers.get(serde)
        if reader is None:
            reader = self._readers[serde] = _reader_of(serde)
        return reader


def _reader_of(serde: JsonPlusSerializer) -> SerializerProtocol:
    """A copy of the serde whose hook remembers messages; without a hook to take over, as it is."""
    own = vars(serde)
    reader = copy.copy(serde)
    if own.get("_custom_unpack_ext_hook") is False and "_unpack_ext_hook" in own:
        reader._unpack_ext_hook = Copies(serde._unpack_ext_hook).made
    return reader


class Copies:
    """Stands before a serde's hook, and copies the messages that this has made before.

    Safe in threads without a lock: whatever two of them do at once, at worst a message is decoded
    once more.

    Args:
        hook: the serde's own.
        most_bytes: how many bytes of encoded messages are kept, the least lately used dropped.
    """

    def __init__(self, hook: Hook, most_bytes: int = MOST_BYTES) -> None:
        self._hook, self._half = hook, most_bytes // 2
        self._seen: set[int] = set()
        # Two halves, the older of which is dropped when the newer one is full.
        self._new: dict[bytes, Mold] = {}
        self._old: dict[bytes, Mold] = {}
        self._size = 0

    def made(self, code: int, data: bytes) -> Any:
        """What the serde makes of an extension of msgpack."""
        if code != EXT_PYDANTIC_V2 or len(data) > LONGEST:
            return self._hook(code, data)
        mold = self._new.get(data)
        if mold is not None:
            return mold.cast()
        mold = self._old.get(data)
        if mold is not None:
            self._keep(data, mold)
            return mold.cast()
        value = self._hook(code, data)
        # To keep a message costs as much as to copy it: not for what may never be read again.
        if self._is_known(hash(data)) and (mold := mold_of(value)) is not None:
            self._keep(data, mold)
        return value

    def _is_known(self, digest: int) -> bool:
        """Whether it was asked before."""
        if digest in self._seen:
            return True
        if len(self._seen) >= MOST_SEEN:
            self._seen = set()
        self._seen.add(digest)
        return False

    def _keep(self, data: bytes, mold: Mold) -> None:
        self._new[data] = mold
        self._size += len(data)
        if self._size > self._half:
            self._old, self._new, self._size = self._new, {}, 0


class Mold:
    """A message that nobody else has, to be copied: what a pydantic model consists of.

    Args:
        message: made of plain data, and not shared.
    """

    __slots__ = ("_class", "_extra", "_fields", "_named", "_nested")

    def __init__(self, message: BaseMessage) -> None:
        self._class = type(message)
        self._fields = _copied(message.__dict__)
        self._extra = _copied(message.__pydantic_extra__)
        self._named = message.__pydantic_fields_set__.copy()
        self._nested = [
            (name, value) for name, value in self._fields.items() if type(value) not in ATOMS
        ]

    def cast(self) -> BaseMessage:
        """A message of one's own."""
        # As pydantic copies a model, but without looking twice, in half the time.
        made = self._class.__new__(self._class)
        fields = self._fields.copy()
        for name, value in self._nested:
            fields[name] = _copied(value)
        _set(made, "__dict__", fields)
        _set(made, "__pydantic_extra__", _copied(self._extra))
        _set(made, "__pydantic_fields_set__", self._named.copy())
        _set(made, "__pydantic_private__", None)
        return made


_set = object.__setattr__


def mold_of(value: Any) -> Mold | None:
    """A mold of a value that was just made, None where a copy would not be certain to be equal."""
    if (
        type(value) not in CLASSES
        or value.__pydantic_private__
        or not _is_plain(value.__dict__)
        or not _is_plain(value.__pydantic_extra__)
    ):
        return None
    return Mold(value)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in ATOMS or not value:
        return kind in ATOMS or kind is dict or kind is list
    if kind is dict:
        return all(type(key) in ATOMS and _is_plain(item) for key, item in value.items())
    return kind is list and all(map(_is_plain, value))


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()} if value else {}
    if kind is list:
        return [_copied(item) for item in value] if value else []
    return value
