"""Pending writes: which of two stays, in what order they come back, and when they may be stored."""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypedDict

import pytest
from backends import ASYNC_BACKENDS, Called, named
from builders import checkpoint, config, id_of, put, values_of, version
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from ckpt_orm.parcels import FEW

ERROR, INTERRUPT, RESUME = "__error__", "__interrupt__", "__resume__"


def writes_of(saver: Called, config: Any) -> list[tuple[str, str, Any]]:
    """The pending writes of a checkpoint, the same in `get_tuple` and in `list`."""
    found: list[tuple[str, str, Any]] = saver.get_tuple(config).pending_writes
    (listed,) = saver.list(config)
    assert listed.pending_writes == found
    return found


def test_a_special_channel_is_replaced_and_any_other_write_stays(saver: Called) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [(ERROR, "old"), ("x", "old"), ("y", None)], "T")
    saver.put_writes(stored, [(ERROR, "new"), ("x", "new"), ("y", "new"), ("z", "new")], "T")
    assert writes_of(saver, stored) == [
        ("T", ERROR, "new"),
        ("T", "x", "old"),
        ("T", "y", None),
        ("T", "z", "new"),
    ]


def test_the_rule_holds_for_each_row_not_for_the_batch(saver: Called) -> None:
    """A failed task sends what it had written, its error, and channels of both kinds together."""
    stored = put(saver, "t", {})
    saver.put_writes(stored, [("x", 1), (ERROR, ValueError("old")), ("__unknown__", 1)], "T")
    saver.put_writes(stored, [("x", 2), (ERROR, "new"), ("__unknown__", 2)], "T")
    saver.put_writes(stored, [(ERROR, "newest")], "T")
    saver.put_writes(stored, [("x", 3)], "U")
    assert writes_of(saver, stored) == [
        ("T", ERROR, "newest"),
        ("T", "x", 1),
        ("T", "__unknown__", 1),
        ("U", "x", 3),
    ]


def test_writes_of_an_iterator_are_all_stored(saver: Called) -> None:
    """The engine gives a sequence; who calls a saver may have none."""
    stored = put(saver, "t", {})
    saver.put_writes(stored, ((name, 1) for name in "ab"), "T")
    assert writes_of(saver, stored) == [("T", "a", 1), ("T", "b", 1)]


def test_of_a_special_channel_twice_in_a_batch_the_last_counts(saver: Called) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [(ERROR, "first"), ("x", 1), (ERROR, "last")], "T")
    assert writes_of(saver, stored) == [("T", ERROR, "last"), ("T", "x", 1)]


def test_an_interrupt_and_its_resume_are_both_kept(saver: Called) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [(INTERRUPT, ["ask"])], "T")
    saver.put_writes(stored, [(RESUME, ["yes"])], "T")
    assert writes_of(saver, stored) == [("T", RESUME, ["yes"]), ("T", INTERRUPT, ["ask"])]
    assert WRITES_IDX_MAP[RESUME] < WRITES_IDX_MAP[INTERRUPT] < 0


def test_values_of_writes(saver: Called) -> None:
    stored = put(saver, "t", {})
    values = [None, b"", "", "a\x00b", [], {"k": [1, 2]}, 2**63, float("inf"), b"\x00\xff'\\x"]
    saver.put_writes(stored, [("c", value) for value in values], "T")
    assert [value for _, _, value in writes_of(saver, stored)] == values


def test_order_is_by_path_task_and_position(saver: Called) -> None:
    """By code point: a locale would have "_a" before "B", and "a" between "B" and "C"."""
    stored = put(saver, "t", {"seed": [0]})
    paths = ["~~1", "_a", "a", "Z", "B", "~~0, 10", "~~0, 9", ""]
    tasks = [(path, f"task{number}") for number, path in enumerate(paths)]
    calls = [
        lambda saver, task=task, path=path: saver.put_writes(
            stored, [("c", [path, 0]), ("c", [path, 1])], task, path
        )
        for path, task in random.Random(3).sample(tasks, len(tasks))
    ]
    for first in range(0, len(calls), 3):
        saver.at_once(*calls[first : first + 3])
    expected = [
        (task, "c", [path, position])
        for path, task in sorted(tasks, key=lambda at: writes_sort_key(*at))
        for position in (0, 1)
    ]
    assert writes_of(saver, stored) == expected
    child = put(saver, "t", {"seed": [0]}, stored, new=[])
    history = saver.get_delta_channel_history(config=child, channels=["c"])
    assert history["c"]["writes"] == expected


def test_ten_writes_of_a_task_are_in_order_of_number(saver: Called) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [("c", number) for number in range(12)], "T")
    assert [value for _, _, value in writes_of(saver, stored)] == list(range(12))


#: Fewer rows than travel as parameters of their own, as many, and more.
NUMBERS = (1, FEW // 2, FEW, FEW + 1, 3 * FEW)


@pytest.mark.parametrize("number", NUMBERS)
def test_any_number_of_writes_is_stored(saver: Called, number: int) -> None:
    first = put(saver, "t", {})
    writes = [(f"c{n}", b"" if n % 2 else {"n": n, "None": None}) for n in range(number)]
    for again in (False, True):
        special: Any = [(INTERRUPT, again)]
        saver.put_writes(first, [*writes, *special][-number:], "task", "~path")
        saver.put_writes(first, [*special, *writes], "other")
    assert writes_of(saver, first) == [
        ("other", INTERRUPT, True),
        *(("other", *write) for write in writes),
        ("task", INTERRUPT, True),
        *(("task", *write) for write in [*writes, *special][-number:-1]),
    ]


@pytest.mark.parametrize("number", NUMBERS)
def test_any_number_of_channels_is_stored(saver: Called, number: int) -> None:
    """Some are whole and some are logs, whose chains begin with one checkpoint and then go on."""
    values: dict[str, Any] = {f"empty{n}": [] for n in range(number)}
    at: Any = None
    for step in range(4):
        for n in range(number):
            values[f"log{n}"] = [f"{n}:{i:0100d}" for i in range(200 + step)]
        at = put(saver, "t", values, at, {"step": step})
        assert values_of(saver, at) == values
    for found in saver.list(config("t")):
        values = found.checkpoint["channel_values"]
        assert {len(values[f"log{n}"]) for n in range(number)} == {200 + found.metadata["step"]}


def test_writes_may_come_before_their_checkpoint(saver: Called) -> None:
    found = checkpoint({"a": [1]}, {"a": version()})
    saver.put_writes(config("t", id=found["id"]), [("c", 1)], "T")
    assert saver.get_tuple(config("t")) is None
    stored = saver.put(config("t"), found, {}, found["channel_versions"])
    assert writes_of(saver, stored) == [("T", "c", 1)]


def test_empty_batches_and_a_missing_namespace(saver: Called) -> None:
    stored = put(saver, "t", {})
    saver.put_writes(stored, [], "T")
    assert writes_of(saver, stored) == []
    saver.put_writes(config("t", ns=None, id=id_of(stored)), [("c", 1)], "T")
    assert writes_of(saver, stored) == [("T", "c", 1)]


def test_putting_a_checkpoint_twice_changes_nothing(saver: Called) -> None:
    parent = put(saver, "t", {"a": [1]})
    found = checkpoint({"a": [2]}, {"a": version()})
    first = saver.put(parent, found, {"step": 1}, found["channel_versions"])
    before = saver.get_tuple(first)
    assert saver.put(parent, found, {"step": 1}, found["channel_versions"]) == first
    assert saver.put(config("t"), found, {"step": 1}, {}) == first
    assert saver.get_tuple(first) == before
    assert before.parent_config == parent
    assert len(list(saver.list(config("t")))) == 2


def test_eight_puts_of_one_checkpoint_at_once(saver: Called) -> None:
    found = checkpoint({"a": [2]}, {"a": version()})
    calls = [lambda s: s.put(config("t"), found, {"step": 1}, found["channel_versions"])] * 8
    assert len({id_of(stored) for stored in saver.at_once(*calls)}) == 1
    (stored,) = saver.list(config("t"))
    assert stored.checkpoint["channel_values"] == {"a": [2]}


@named(ASYNC_BACKENDS)
def test_a_value_that_changes_meanwhile_is_stored_as_it_was_at_the_start(saver: Called) -> None:
    """The engine goes on with its live objects while a checkpoint is saved in the background."""
    live = [1]
    found = checkpoint({"live": live}, {"live": version()})

    async def main() -> None:
        saving = saver.saver.aput(config("t"), found, {}, found["channel_versions"])
        live.append(2)
        task = asyncio.ensure_future(saving)
        await asyncio.sleep(0)
        live.append(3)
        found["channel_values"]["late"] = 1
        writing = saver.saver.aput_writes(config("t", id=found["id"]), [("c", live)], "T")
        other = asyncio.ensure_future(writing)
        await asyncio.sleep(0)
        live.append(4)
        await asyncio.gather(task, other)

    assert saver.loop is not None
    saver.loop.run_until_complete(main())
    stored = saver.get_tuple(config("t"))
    assert stored.checkpoint["channel_values"] == {"live": [1, 2]}
    assert stored.pending_writes == [("T", "c", [1, 2, 3])]


class State(TypedDict, total=False):
    answer: str


def test_a_run_that_is_interrupted_goes_on(saver: Called) -> None:
    calls: list[str] = []

    def ask(state: State) -> State:
        calls.append("ask")
        return {"answer": interrupt("sure?")}

    def fails_once(state: State) -> None:
        calls.append("fails_once")
        if calls.count("fails_once") == 1:
            raise OSError("not yet")

    builder = StateGraph(State)
    builder.add_node(ask)
    builder.add_node(fails_once)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "fails_once")
    builder.add_edge("fails_once", END)
    graph = builder.compile(checkpointer=saver.saver)
    result = saver.run(graph, {}, config("t", ns=None))
    assert [i.value for i in result["__interrupt__"]] == ["sure?"]
    (waiting,) = saver.list(config("t"), limit=1)
    assert [channel for _, channel, _ in waiting.pending_writes] == [INTERRUPT]
    try:
        saver.run(graph, Command(resume="yes"), config("t", ns=None))
    except OSError:
        (failed,) = saver.list(config("t"), limit=1)
        assert [channel for _, channel, _ in failed.pending_writes] == [ERROR]
    assert saver.run(graph, None, config("t", ns=None)) == {"answer": "yes"}
    assert calls == ["ask", "ask", "fails_once", "fails_once"]
