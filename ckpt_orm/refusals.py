"""REFUSED: what a serde cannot hold is told by name, and of metadata everything else is kept.

    refusal      the error: which channel, what kind of thing in it, and what to do
    Remains      copies of metadata, in which only what cannot be held is replaced by its type

Nothing here runs before a serde has refused a value. Things are told by their types, since an error
shows no stored value; a key of a dict is one too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pickle import PicklingError
from typing import Any

from langgraph.checkpoint.serde.types import SendProtocol

from ckpt_orm.documents import FreeNames, fits_text
from ckpt_orm.errors import NotSerializable

#: How serdes say that they cannot hold a value. Anything else is a failure of the serde itself,
#: such as that of a cipher whose keys are elsewhere.
REFUSALS = (TypeError, ValueError, AttributeError, RecursionError, PicklingError)

#: How deep is looked. LangGraph's serde nests 254 levels.
DEEPEST = 200

#: How many of the things around it are named.
NEAR = 3

#: How many things in one value are looked into before the rest is told by its type.
MOST = 1_000

#: What a serde does with a value, raising where it cannot.
Dumps = Callable[[Any], object]


def refusal(where: str, value: object, dumps: Dumps) -> NotSerializable:
    """The error for a value that `dumps` has refused; `where` says in words what it was for."""
    try:
        found, around = _innermost(value, dumps)
        problem, remedy = _why(found, around, dumps)
        place = "".join(f", in a {_name(type(outer))}" for outer in around[: -NEAR - 1 : -1])
    except Exception:  # a class of its own, or one that a node is changing
        problem, remedy, place = _unknown(value), LEAVE_OUT, ""
    return NotSerializable(where, problem + place, remedy)


LEAVE_OUT = "leave it out, or give the saver a serde that can"


def _innermost(value: object, dumps: Dumps) -> tuple[Any, list[Any]]:
    """The smallest thing that is refused on its own, and what it is in."""
    around: list[Any] = []
    while len(around) < DEEPEST and not any(value is outer for outer in around):
        refused = [part for part in _parts(value) if not _holds(dumps, part)]
        if not refused:
            break
        around.append(value)
        value = refused[0]
    return value, around


def _parts(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if hasattr(type(value), "model_fields"):  # a pydantic model, such as a message
        return list(vars(value).values())
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return [value.arg] if isinstance(value, SendProtocol) else ()


def _why(value: Any, around: list[Any], dumps: Dumps) -> tuple[str, str]:
    """What is wrong with a thing, and what to do about it."""
    if any(value is outer for outer in around):
        around.clear()
        return f"a {_name(type(value))} that contains itself", "refer to it by an id"
    if len(around) >= DEEPEST:
        around.clear()
        return f"more than {DEEPEST} things in each other", "keep them side by side in a list"
    if type(value) is int:
        return "an int of more than 64 bits", "keep it as a str"
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, str) and not fits_text(key):
                return "a key with a lone surrogate, in a dict", "replace it, which is no text"
            if not _holds(dumps, {key: None}):
                return f"a key of type {_name(type(key))}, in a dict", "use a str as the key"
    return _unknown(value), LEAVE_OUT


def _unknown(value: object) -> str:
    return f"an object of type {_name(type(value))}"


def _name(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _holds(dumps: Dumps, value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


class Remains:
    """Copies a value that was refused, all but what cannot be held. It never raises.

    A surrogate in a key becomes "?", as the serde has it everywhere else; an int that is too long
    becomes its text; anything else, as what contains itself, the name of its type. Keys that would
    be the same then are numbered.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps, self._left = dumps, MOST
        self._around: list[object] = []

    def of(self, value: Any) -> Any:
        """A copy that can be held, or the value itself where it can."""
        if self._fits(value):
            return value
        is_inside = any(value is outer for outer in self._around)
        if is_inside or len(self._around) >= DEEPEST or not self._left:
            return _label(value)
        self._left -= 1
        self._around.append(value)
        try:
            return self._copy(value)
        except Exception:  # whatever a class of its own makes of it
            return _label(value)
        finally:
            self._around.pop()

    def _fits(self, value: Any) -> bool:
        """Whether a value can be held where it is, so deep in others."""
        for _ in self._around:
            value = [value]
        return _holds(self._dumps, value)

    def _copy(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._entries(value)
        for base in (list, tuple, set, frozenset):
            if isinstance(value, base):
                return base(map(self.of, value))
        return str(value) if type(value) is int else _label(value)

    def _entries(self, value: dict[Any, Any]) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        free = FreeNames(value)
        for key, item in value.items():
            name = self._key(key)
            copied[key if name == key else free.of(name)] = self.of(item)
        return copied

    def _key(self, key: Any) -> Any:
        if _holds(self._dumps, {key: None}):
            return key
        return key.encode(errors="replace").decode() if isinstance(key, str) else _label(key)


def _label(value: object) -> str:
    return f"<{type(value).__qualname__}>"
