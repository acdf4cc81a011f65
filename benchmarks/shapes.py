"""W7: other ways for a large value to change than by a message at its end.

Each shape is a value of about 0.87 MB (1,130 messages) and a change to it. Measured are the put
after a change, and the bytes that the change newly stored, as a part of the value's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks.contestants import Arena, Contestant
from benchmarks.conversation import Conversation, message, words
from benchmarks.results import Row, counts, times
from benchmarks.sampling import Rounds, Samples
from benchmarks.scale import Scale

#: A value of so many items, and the next value: of the last one, the number of the change and the
#: number of items there were in the beginning.
Shape = tuple[Callable[[int], Any], Callable[[Any, int, int], Any]]


def _messages(items: int) -> list[Any]:
    return [message(number) for number in range(items)]


def _append(value: list[Any], change: int, items: int) -> list[Any]:
    return [*value, message(items + change)]


def _edit(value: list[Any], change: int, items: int) -> list[Any]:
    middle = len(value) // 2 + change
    return [*value[:middle], message(items + change), *value[middle + 1 :]]


def _remove(value: list[Any], change: int, items: int) -> list[Any]:
    middle = len(value) // 2
    return value[:middle] + value[middle + 1 :]


def _slide(value: list[Any], change: int, items: int) -> list[Any]:
    return [*value[1:], message(items + change)]


def _change_key(value: dict[str, str], change: int, items: int) -> dict[str, str]:
    return value | {f"key-{items // 2 + change}": words(items + change)}


def _append_inside(value: dict[str, Any], change: int, items: int) -> dict[str, Any]:
    return value | {"messages": _append(value["messages"], change, items)}


SHAPES: dict[str, Shape] = {
    "append": (_messages, _append),
    "edit in the middle": (_messages, _edit),
    "remove from the middle": (_messages, _remove),
    "sliding window": (_messages, _slide),
    "one key of a dict": (
        lambda items: {f"key-{number}": words(number) for number in range(items)},
        _change_key,
    ),
    "list inside a dict": (
        lambda items: {"topic": "weather", "messages": _messages(items), "open": True},
        _append_inside,
    ),
    "string that grows": (
        lambda items: words(0, items * 600),
        lambda value, change, items: value + words(items + change),
    ),
}


class Changing:
    """A thread whose one large value changes at each step."""

    def __init__(self, saver: Any, shape: str, items: int) -> None:
        initial, self._change = SHAPES[shape]
        self._items, self._line = items, Conversation(shape, saver)
        self.value = initial(items)

    def put(self) -> float:
        """Save the value as it is."""
        self._line.step += 1
        values = {"value": copy.copy(self.value), "turn": self._line.step}
        return self._line.save(*self._line.checkpoint(values, list(values)))

    def change_and_put(self) -> float:
        """Change the value, and save it; the seconds of the latter."""
        self.value = self._change(self.value, self._line.step, self._items)
        return self.put()

    def check(self) -> None:
        """What is stored is the value."""
        found = self._line.saver.get_tuple(self._line.latest)
        assert found.checkpoint["channel_values"]["value"] == self.value


def measure(arena: Arena, scale: Scale) -> Iterator[Row]:
    """Two rows for each shape: the time of a put, and the bytes a change stored."""
    with arena.contestants() as contestants:
        for shape in SHAPES:
            samples, stored = _measure(contestants, shape, scale)
            yield times("W7", f"put, {shape}", arena.database, samples)
            what = f"newly stored, {shape}"
            yield counts("W7", what, arena.database, "% of the value", stored)


def _measure(
    contestants: dict[str, Contestant], shape: str, scale: Scale
) -> tuple[Samples, dict[str, float]]:
    threads = {
        name: Changing(contestant.called, shape, scale.items)
        for name, contestant in contestants.items()
    }
    rounds = Rounds(scale.seed)
    rounds.once({name: thread.put for name, thread in threads.items()}, {})
    calls = {name: thread.change_and_put for name, thread in threads.items()}
    rounds.take(calls, 0)  # the warm-up alone
    before = {name: contestant.bytes_stored() for name, contestant in contestants.items()}
    samples = rounds.take(calls, scale.changes, warm_up=0)
    newly = {
        name: (contestant.bytes_stored() - before[name]) / scale.changes
        for name, contestant in contestants.items()
    }
    for thread in threads.values():
        thread.check()
    size = len(JsonPlusSerializer().dumps_typed(next(iter(threads.values())).value)[1])
    return samples, {name: 100 * count / size for name, count in newly.items()}
