"""What JSON can hold, and the one rule for what it cannot.

A document is stored as JSON only where every value comes back from Postgres' JSONB, and from
SQLite's JSON text, as the same value of the same type. Anything else is *packed*: replaced by
`{"__ckpt_orm__": [tag, base64]}`, the payload that the saver's serde made of it. That covers NUL
and lone surrogates in strings, NaN and infinities, floats that JSONB rewrites (1e16 becomes an
integer, -0.0 loses its sign), keys that are not strings, UUIDs, datetimes and objects, and what is
nested too deeply. Subclasses of JSON's own types become what `json.dumps` makes of them, as keys
too; tuples become lists. A mapping with a key that JSON cannot hold is packed whole; at the top of
a document, such an entry is kept under `__ckpt_orm_entries__`, so that it hides no other one. What
the serde cannot hold either is for the one who packs: see `refusals`.

The project encodes and decodes JSON itself: an engine's `json_serializer` never sees a document.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ckpt_orm.errors import CheckpointError

#: The key that marks a packed value; a mapping that uses it for itself is packed whole.
PACKED = "__ckpt_orm__"

#: The key under which a document keeps its entries whose own key JSON cannot hold.
ENTRIES = "__ckpt_orm_entries__"

#: The largest integer that is stored as a JSON number; longer ones are left to the serde.
MAX_INT_BITS = 1024

#: How deep JSON nests, whatever Python writes it: 3.13 would ten times as deep as others can read.
DEEPEST = 500

#: From how many things on one level on it is asked whether they are the same ones.
MANY = 1_000

#: What a subclass of a JSON scalar is without its own methods, as `json.dumps` sees it.
_BARE: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}

#: Made once: `json.dumps` makes one for each call that is not its default. It is given nothing that
#: contains itself or nests too deeply, which would end it where the stack ends, or the memory.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)

#: Turns a value into the (tag, payload) that stands for it.
Pack = Callable[[Any], tuple[str, bytes]]
#: The reverse of a `Pack`.
Unpack = Callable[[tuple[str, bytes]], Any]


def fits_text(value: str) -> bool:
    """Whether a string is legal in both databases: no NUL, no lone surrogate."""
    if "\x00" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def fits_float(value: float) -> bool:
    """Whether a float's JSON text comes back from JSONB as the same float."""
    text = repr(value)
    return math.isfinite(value) and "e" not in text and text != "-0.0"


def fits(value: object) -> bool:
    """Whether a value is a JSON scalar of exact type that comes back as it was."""
    kind = type(value)
    if kind is str:
        text: str = value  # type: ignore[assignment]
        return "\x00" not in text if text.isascii() else fits_text(text)
    if kind is int:
        return value.bit_length() <= MAX_INT_BITS  # type: ignore[attr-defined, no-any-return]
    if kind is float:
        return fits_float(value)  # type: ignore[arg-type]
    return value is None or kind is bool


def packed(value: object, pack: Pack) -> dict[str, list[str]]:
    """The stand-in for a value that JSON cannot hold."""
    tag, payload = pack(value)
    return {PACKED: [tag, b64encode(payload).decode()]}


def jsonable(value: Any, pack: Pack, depth: int = DEEPEST) -> Any:
    """A copy of `value` that JSON can hold, by the rule of this file.

    Raises:
        RecursionError: for what nests deeper than `depth`.
    """
    if fits(value):
        return value
    if not depth:
        raise RecursionError
    if isinstance(value, dict):
        if all(_fits_key(key) for key in value):
            return {str.__str__(k): jsonable(item, pack, depth - 1) for k, item in value.items()}
    elif isinstance(value, (list, tuple)):
        return [jsonable(item, pack, depth - 1) for item in value]
    else:
        for base, bare in _BARE.items():
            if isinstance(value, base) and type(value) is not base:
                return jsonable(bare(value), pack)
    return packed(value, pack)


def plain(document: Mapping[Any, Any], pack: Pack) -> dict[str, Any]:
    """A copy of a mapping that JSON can hold, and whose own keys stay searchable."""
    entries = {
        str.__str__(key): _jsonable(item, pack) for key, item in document.items() if _fits_key(key)
    }
    if len(entries) < len(document):
        entries[ENTRIES] = [
            {"key": packed(key, pack), "value": _jsonable(item, pack)}
            for key, item in document.items()
            if not _fits_key(key)
        ]
    return entries


def _jsonable(value: Any, pack: Pack) -> Any:
    """`jsonable`; what contains itself, is too deep, or cannot be looked into is packed whole."""
    try:
        if isinstance(value, _CONTAINERS):
            _refuse_endless(value)
        return jsonable(value, pack)
    except CheckpointError:
        raise
    except Exception:
        return packed(value, pack)


def dump(document: Mapping[Any, Any], pack: Pack, **ready: Any) -> str:
    """The JSON text of a mapping, `ready` being entries as JSON holds them; `load` reverses it."""
    text = exact(document, ready)
    if text is None:
        text = encode(plain({**document, **dict.fromkeys(ready)}, pack) | ready)
    return text


def exact(document: Mapping[Any, Any], ready: Mapping[str, Any]) -> str | None:
    """The JSON text of a mapping where it holds all of it, None where something must be packed.

    The rule of this file without making a copy first; what is in strings is told by the text.
    """
    rest = document
    if ready:
        rest = {name: value for name, value in document.items() if name not in ready}
    try:
        _check(rest)
        text = _ENCODER.encode({**document, **ready})
    except Exception:  # whatever a value that JSON cannot hold makes of it
        return None
    if not fits_text(text):
        return None
    # Looked for in two steps: versions, full of zeros, would be compared at each of them.
    return None if "\\" in text and "\\u0000" in text else text


def _check(document: Mapping[Any, Any]) -> None:
    """Refuse what JSON does not hold, but for what is in strings, which its text will tell.

    Level by level, so that what is endless is refused on the level that is too deep.
    """
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        inside: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict and _NAMES.issuperset(map(type, value)) and _RESERVED.isdisjoint(value):
                value = value.values()
            elif kind is not list:
                if kind is not str and not fits(value):
                    raise TypeError(kind.__name__)
                continue
            if not _WORDS.issuperset(map(type, value)):
                inside += value
        if not inside:
            return
        if len(inside) > MANY and _has_twice(inside):
            _refuse_endless(document)  # of which each level may hold more than the one before
        level = inside
    raise RecursionError


def _refuse_endless(value: Any) -> None:
    """Refuse what contains itself or nests too deeply, in one look at each thing in it.

    Raises:
        RecursionError: for such a thing.
    """
    parts: dict[int, list[Any]] = {}
    depths: dict[int, int] = {}
    around = [value]
    while around:
        outer = around[-1]
        found = parts.get(id(outer))
        if found is None and (found := _containers_in(outer)):
            parts[id(outer)] = found
            if any(id(part) in parts and id(part) not in depths for part in found):
                raise RecursionError
            around += [part for part in found if id(part) not in depths]
            continue
        around.pop()
        depths[id(outer)] = 1 + max((depths[id(part)] for part in found), default=0)
        if depths[id(outer)] > DEEPEST:
            raise RecursionError


def _containers_in(value: Any) -> list[Any]:
    return _containers_of(dict.values(value) if isinstance(value, dict) else value)


def _containers_of(parts: Iterable[Any]) -> list[Any]:
    return [part for part in parts if isinstance(part, _CONTAINERS)]


def _has_twice(parts: Iterable[Any]) -> bool:
    """Whether one container is there twice, as it is on some level of what is endless."""
    ids = list(map(id, _containers_of(parts)))
    return len(set(ids)) < len(ids)


#: What JSON may be made of that holds something.
_CONTAINERS = (dict, list, tuple)


#: The type of names, and the types of what JSON holds whatever the value.
_NAMES, _WORDS = frozenset({str}), frozenset({str, bool, type(None)})

#: Names with a meaning of their own.
_RESERVED = frozenset({PACKED, ENTRIES})


def load(text: str, unpack: Unpack) -> dict[str, Any]:
    """The mapping that `dump` made `text` of; also reads documents that others wrote.

    Raises:
        ValueError: for a text that is none.
    """
    if PACKED not in text:
        return mapping_of(text)

    def revive(found: dict[str, Any]) -> Any:
        return _unpacked(found[PACKED], unpack) if found.keys() == {PACKED} else found

    document = mapping_of(text, object_hook=revive)
    entries = document.pop(ENTRIES, ())
    free = FreeNames(document)
    for entry in entries:
        # One that had a surrogate, which has become "?", may be that of another entry.
        document[free.of(_as_key(entry["key"]))] = entry["value"]
    return document


def mapping_of(text: str, **hooks: Any) -> dict[Any, Any]:
    """The mapping that is a JSON text.

    Raises:
        ValueError: for a text that is none.
    """
    found = json.loads(text, **hooks)
    if not isinstance(found, dict):
        raise ValueError("the text is no JSON object")
    return found


def _as_key(value: Any) -> Any:
    """What was a key: as a value of its own, msgpack makes a list of a tuple."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_as_key, value))
    # What a serde makes of a type that it does not know, or no longer.
    return tuple(map(_as_key, value.items())) if isinstance(value, dict) else value


class FreeNames:
    """Names that are not taken yet: one that is gets a number, in time for thousands of the same.

    Args:
        taken: the names that are.
    """

    def __init__(self, taken: Iterable[Any]) -> None:
        self._taken = set(taken)
        self._numbers: Counter[Any] = Counter()

    def of(self, name: Any) -> Any:
        """The name, or the next one that is free; taken from now on."""
        found = name
        while found in self._taken:
            self._numbers[name] += 1
            found = f"{name}{self._numbers[name] + 1}"
        self._taken.add(found)
        return found


def encode(jsonable: Any) -> str:
    """Compact JSON text of what `plain` or `jsonable` returned."""
    return _ENCODER.encode(jsonable)


def contains(document: Any, part: Any) -> bool:
    """Whether decoded JSON contains `part` as Postgres' `document @> part` decides it.

    An object contains an object whose every entry it contains; an array one whose every element
    some element of its own contains, in any order; scalars are equal and of one type, 5 and 5.0
    being one number. Used as an SQL function on SQLite, so that both dialects give the same answer.
    """
    if isinstance(part, dict):
        return isinstance(document, dict) and all(
            key in document and contains(document[key], item) for key, item in part.items()
        )
    if isinstance(part, list):
        return isinstance(document, list) and all(
            any(contains(found, item) for found in document) for item in part
        )
    if isinstance(part, bool) or isinstance(document, bool):
        return part is document
    return (type(part) is type(document) and part == document) or _same_number(document, part)


def contains_text(document: str, part: str) -> bool:
    """`contains` of two JSON texts; a document that is none is let through to whoever reads it.

    He says which one it is. An error of a function is told by SQLite without its reason.
    """
    try:
        whole = json.loads(document)
    except ValueError:
        return True
    return contains(whole, json.loads(part))


def _same_number(one: Any, other: Any) -> bool:
    return isinstance(one, (int, float)) and isinstance(other, (int, float)) and one == other


def _fits_key(key: object) -> bool:
    return isinstance(key, str) and key not in (PACKED, ENTRIES) and fits_text(key)


def _unpacked(stored: list[str], unpack: Unpack) -> Any:
    tag, payload = stored
    return unpack((tag, b64decode(payload)))
