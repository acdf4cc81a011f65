"""COPIES: a message that was decoded before is copied, which takes a quarter of the time.

Decoding is most of what a read costs, and nearly all of it goes into making messages: the same ones
with each run of a thread, and in `list` the same ones in one checkpoint after another. What the
serde makes of one is decided by its bytes; so what was decoded from the same bytes twice is kept,
and each reader gets a copy of its own, that shares only what cannot change.

That holds for LangChain's own messages, made of plain data and nothing else: making them calls no
code of an application, tells no listener of LangGraph's, and no two parts of one are the same
object. Anything else is left to the serde, and so is every serde but LangGraph's plain one, in one
that compresses or not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
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
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from ckpt_orm.compression import ZstdSerializer

if TYPE_CHECKING:
    from typing import TypeGuard

#: How much memory messages are kept in, for each serde of a saver: some 10,000 of 600 characters.
MOST_BYTES = 32 * 1024 * 1024

#: A longer message is mostly text, which takes as long to compare as to decode.
LONGEST = 64 * 1024

#: Of how many messages it is known that they were decoded once; known, they take 3 MB.
MOST_SEEN = 32 * 1024

#: One of so many is kept where there is no room: what is read in turn and does not fit together
#: would else be dropped each time before it is read again, and have cost twice the decoding.
ONE_OF = 8

#: What is nested deeper is not copied, so that a copy needs no more of the stack than a query does.
DEEPEST = 16

#: What a mold takes besides its parts: itself, its lists, its places in the dictionaries.
_OVERHEAD = 700

#: What pydantic's models consist of, and what a mold takes.
_PARTS = frozenset(
    {"__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"}
)


def _has_parts(kind: type) -> bool:
    """Whether that is all its objects consist of, as a later pydantic might change."""
    return {slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ())} == _PARTS


#: LangChain's own; what an application derives from them may do anything when it is made.
CLASSES: frozenset[type] = frozenset(
    filter(
        _has_parts,
        (
            *(AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage),
            *(AIMessageChunk, ChatMessageChunk, FunctionMessageChunk, HumanMessageChunk),
            *(SystemMessageChunk, ToolMessageChunk, RemoveMessage),
        ),
    )
)

#: What can be shared, since nobody can change it.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})

#: What a number or a short string takes, about, and how long such a one is.
_SMALL = 64

#: LangGraph's code for a model; where a later one calls it otherwise, nothing is copied.
_MODEL = getattr(jsonplus, "EXT_PYDANTIC_V2", None)

#: What a serde makes a value with.
Hook = Callable[[int, bytes], Any]


class Reader(NamedTuple):
    """What decodes in place of a serde, as long as that has this hook."""

    hook: Hook
    serde: SerializerProtocol


class Readers:
    """What decodes for each serde; shared by all copies of a saver."""

    def __init__(self) -> None:
        self._readers: WeakKeyDictionary[JsonPlusSerializer, Reader] = WeakKeyDictionary()

    def of(self, serde: SerializerProtocol) -> SerializerProtocol:
        """What loads msgpack as a serde does, and messages that it has met before faster."""
        if type(serde) is ZstdSerializer:
            return serde.around(self.of(serde.serde))
        # Asked before each use: an application may replace the parts of a serde that is in use.
        if not is_langgraphs(serde):
            return serde
        hook, reader = serde._unpack_ext_hook, self._readers.get(serde)
        if reader is None or reader.hook is not hook:
            reader = self._readers[serde] = Reader(hook, _reader_of(serde))
        return reader.serde


_METHODS = frozenset(vars(JsonPlusSerializer))


def is_langgraphs(serde: SerializerProtocol) -> TypeGuard[JsonPlusSerializer]:
    """Whether a serde, and the hook in it, are LangGraph's own and as it made them."""
    # A subclass, or an object with methods of its own, may make what it likes of the same bytes,
    # and something else each time. A wrapped function says that it is the one it wraps.
    if type(serde) is not JsonPlusSerializer:
        return False
    own = vars(serde)
    return (
        own.get("_custom_unpack_ext_hook") is False
        and getattr(own.get("_unpack_ext_hook"), "__globals__", None) is vars(jsonplus)
        and own.keys().isdisjoint(_METHODS)
    )


def _reader_of(serde: JsonPlusSerializer) -> JsonPlusSerializer:
    """A copy of the serde whose hook remembers messages."""
    reader = copy.copy(serde)
    reader._unpack_ext_hook = Copies(serde._unpack_ext_hook).made
    return reader


class Weighed(Protocol):
    """What takes memory."""

    @property
    def weight(self) -> int:
        """About how many bytes."""


K = TypeVar("K")
W = TypeVar("W", bound=Weighed)


class Lately(Generic[K, W]):
    """What was used lately, as far as it fits into so many bytes.

    In two halves, the older of which is dropped when the newer one is full. Safe in threads without
    a lock: at worst something is dropped too early.
    """

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._new: dict[K, W] = {}
        self._old: dict[K, W] = {}
        self._size = self._turn = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def get(self, key: K) -> W | None:
        """What is kept under a key."""
        found = self._new.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.keep(key, found)
        return found

    def has_room(self) -> bool:
        """Whether one more is to be kept: each until something had to be dropped, then few."""
        self._turn += 1
        return not self._old or self._turn % ONE_OF == 0

    def keep(self, key: K, found: W) -> None:
        """Keep something, as used last."""
        before = self._new.get(key)
        size = self._size + found.weight - (0 if before is None else before.weight)
        # Before it is full, or one large thing would be too much in either half.
        if size > self._half:
            self._old, self._new, size = self._new, {}, found.weight
        self._new[key], self._size = found, size


class Copies:
    """Stands before a serde's hook, and copies the messages that this has made before.

    Safe in threads without a lock: whatever two of them do at once, at worst a message is decoded
    once more.

    Args:
        hook: the serde's own.
        most_bytes: how much memory is kept, the least lately used dropped.
    """

    def __init__(self, hook: Hook, most_bytes: int = MOST_BYTES) -> None:
        self._hook = hook
        self._seen: set[int] = set()
        self._molds: Lately[bytes, Mold] = Lately(most_bytes)

    def made(self, code: int, data: bytes) -> Any:
        """What the serde makes of an extension of msgpack."""
        if code != _MODEL or len(data) > LONGEST:
            return self._hook(code, data)
        mold = self._molds.get(data)
        if mold is not None:
            return mold.cast()
        value = self._hook(code, data)
        # To keep a message costs as much as to decode it: not for what may never be read again.
        is_kept = self._is_known(hash(data)) and self._molds.has_room()
        if is_kept and (mold := mold_of(value, data)) is not None:
            self._molds.keep(data, mold)
        return value

    def _is_known(self, digest: int) -> bool:
        """Whether it was asked before."""
        if digest in self._seen:
            return True
        if len(self._seen) >= MOST_SEEN:
            self._seen = set()
        self._seen.add(digest)
        return False


class Mold:
    """A message that nobody else has, to be copied: what a pydantic model consists of.

    Args:
        message: made of plain data, and without private attributes.
        weight: how much memory its values take.
    """

    __slots__ = ("_class", "_empty", "_extra", "_fields", "_full", "_named", "weight")

    def __init__(self, message: BaseMessage, weight: int) -> None:
        self._class = type(message)
        self._fields, extra = _copied(message.__dict__), message.__pydantic_extra__
        self._extra = None if extra is None else _copied(extra)
        self._named = message.__pydantic_fields_set__.copy()
        self._full: list[tuple[str, Any]] = []
        self._empty: list[tuple[str, type]] = []
        for name, value in self._fields.items():
            if type(value) is dict or type(value) is list:
                if value:
                    self._full.append((name, value))
                else:
                    self._empty.append((name, type(value)))
        self.weight = weight + getsizeof(self._fields) + getsizeof(self._named) + _OVERHEAD

    def cast(self) -> BaseMessage:
        """A message of one's own."""
        # As pydantic copies a model, but without looking twice, in a third of the time.
        made = self._class.__new__(self._class)
        fields, extra = self._fields.copy(), self._extra
        for name, kind in self._empty:
            fields[name] = kind()
        for name, value in self._full:
            fields[name] = _copied(value)
        _set_fields(made, fields)
        _set_extra(made, None if extra is None else _copied(extra))
        _set_named(made, self._named.copy())
        _set_private(made, None)
        return made


def made_of(kind: type[BaseMessage], fields: dict[str, Any]) -> BaseMessage:
    """A message that is like another one with these fields as far as its encoding goes."""
    made = kind.__new__(kind)
    _set_fields(made, fields)
    _set_extra(made, {})
    _set_named(made, set())
    _set_private(made, None)
    return made


def _setter(part: str) -> Callable[[BaseMessage, Any], None]:
    """What sets a part of a pydantic model, without a look at its name."""
    slot = vars(BaseModel).get(part)
    return partial(_set, part) if slot is None else slot.__set__


def _set(part: str, made: BaseMessage, value: Any) -> None:
    object.__setattr__(made, part, value)


_set_fields, _set_extra = _setter("__dict__"), _setter("__pydantic_extra__")
_set_named, _set_private = _setter("__pydantic_fields_set__"), _setter("__pydantic_private__")


def mold_of(value: Any, data: bytes) -> Mold | None:
    """A mold of what a serde made of some bytes; None where a copy might differ in any respect."""
    kind = type(value)
    if kind not in CLASSES or value.__pydantic_private__ is not None:
        return None
    if not _calls_only(kind, data):
        return None
    weight = weight_of([*value.__dict__.values(), value.__pydantic_extra__])
    return Mold(value, weight + getsizeof(data)) if weight else None


def _calls_only(kind: type, data: bytes) -> bool:
    """Whether some bytes make an object with the class itself, from plain data."""
    # A validator may make a string of what an application's own code returned, each time anew.
    try:
        source = _PLAIN.loads_typed(("msgpack", data))
    except ValueError:
        return False
    return bool(source[0] == kind.__module__ and source[1] == kind.__name__)


def _refused(code: int, data: bytes) -> Any:
    raise ValueError("not plain data")


_PLAIN = JsonPlusSerializer(__unpack_ext_hook__=_refused)


def weight_of(values: list[Any]) -> int:
    """About how many bytes plain data takes; 0 for anything of which a copy might differ."""
    seen: set[int] = set()
    weight = 1
    for _ in range(DEEPEST):
        nested: list[Any] = []
        for value in values:
            kind = type(value)
            weight += _SMALL
            if kind is str:
                if len(value) > _SMALL:
                    weight += getsizeof(value)
            elif kind is dict or kind is list:
                weight += getsizeof(value)
                # A part that is there twice would be two in a copy, one of which does not change.
                if id(value) in seen:
                    return 0
                seen.add(id(value))
                if value:
                    nested += (*value, *value.values()) if kind is dict else value
            # NaN equals itself only where it is the same object, as it would be in two copies.
            elif kind not in ATOMS or value != value:
                return 0
            elif kind is bytes:
                weight += len(value)
        if not nested:
            return weight
        values = nested
    return 0


def _copied(value: Any) -> Any:
    """A list or dict of plain data, and all lists and dicts in it, once more."""
    made = value.copy()
    for key, item in made.items() if type(made) is dict else enumerate(made):
        if type(item) is dict or type(item) is list:
            made[key] = _copied(item)
    return made
