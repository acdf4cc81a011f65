"""ONCE: what is worked out when it is first asked for, and then stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):
    """A property that keeps its value in the object's `__dict__`, as `cached_property` does.

    That one holds a lock meanwhile until Python 3.12, one for all objects: a process that is forked
    at that moment would wait for it for ever. Here two threads may work it out at the same time,
    which must do no harm.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, of: object, owner: type) -> T: ...
    def __get__(self, of: object | None, owner: type) -> once[T] | T:
        if of is None:
            return self
        value = self._function(of)
        vars(of)[self._name] = value
        return value
