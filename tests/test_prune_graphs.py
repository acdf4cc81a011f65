"""Pruning real threads: every checkpoint that survives gives the state that it gave before."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from backends import BACKENDS, Called
from graphs import Deltas, OneDelta, asking, counting, deltas, state, surviving, thread, update
from langgraph.types import Command
from typing_extensions import TypedDict

#: One of each dialect and colour; the way a connection is held makes no difference to a state.
pytestmark = pytest.mark.parametrize(
    "backend",
    [b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")],
    ids=lambda backend: backend.name,
)


class PlainBefore(TypedDict, total=False):
    """`graphs.Deltas`, before its channels became delta channels."""

    log: Annotated[list[Any], operator.add]
    plain: Annotated[list[Any], operator.add]


def pruned(saver: Called, graph: Any, name: str) -> dict[Any, Any]:
    """Prune a thread; what survives must be what it was. Its states by place."""
    head = state(saver, graph, thread(name))
    before = surviving(saver, graph, name)
    for _ in range(2):
        saver.prune([name])
        after = surviving(saver, graph, name)
        assert after == {place: before[place] for place in after}
        found = state(saver, graph, thread(name))
        assert (found.values, found.next, found.config) == (head.values, head.next, head.config)
        assert [task.interrupts for task in found.tasks] == [t.interrupts for t in head.tasks]
    return after


@pytest.mark.parametrize("kind", [OneDelta, Deltas], ids=["one", "two"])
def test_a_loop_over_delta_channels(saver: Called, kind: Any) -> None:
    graph = deltas(saver, rounds=5, kind=kind)
    for _ in range(2):
        saver.run(graph, {"log": ["in"], "seen": {"in": 1}}, thread("t"))
    before = len(list(saver.list(thread("t"))))
    after = pruned(saver, graph, "t")
    log = state(saver, graph, thread("t")).values["log"]
    first, second = ([f"{n}{i}" for i in range(k, k + 5) for n in "ab"] for k in (0, 5))
    assert log == ["in", *first, "in", *second]
    if kind is OneDelta:
        assert 1 < len(after) < before / 2, "the ancestors stay as far as the nearest snapshot"
    saver.run(graph, {"log": ["more"]}, thread("t"))
    assert state(saver, graph, thread("t")).values["log"][: len(log)] == log
    pruned(saver, graph, "t")


def test_forks_keep_what_they_share(saver: Called) -> None:
    graph = deltas(saver, rounds=4)
    saver.run(graph, {"log": ["in"]}, thread("t"))
    places = [saved.config for saved in saver.list(thread("t"))]
    forked = update(saver, graph, places[6], {"log": ["fork"]}, "counted")
    saver.run(graph, None, forked)
    update(saver, graph, places[3], {"log": ["dead end"]}, "a")
    pruned(saver, graph, "t")
    saver.delete_for_runs([])
    pruned_again = surviving(saver, graph, "t")
    saver.copy_thread("t", "copy")
    copied = surviving(saver, graph, "copy")
    assert copied == pruned_again


@pytest.mark.parametrize("lasting", [False, True], ids=["per-call", "lasting"])
def test_subgraphs(saver: Called, lasting: bool) -> None:
    graph = deltas(saver, rounds=2, inner=counting(True if lasting else None))
    for _ in range(3):
        saver.run(graph, {"log": ["in"]}, thread("t"))
    after = pruned(saver, graph, "t")
    namespaces = {ns for ns, _ in after}
    assert ("inner" in namespaces) == lasting
    assert not any(ns.startswith("inner:") for ns in namespaces)
    seen = state(saver, graph, thread("t")).values["log"]
    saver.run(graph, {"log": ["in"]}, thread("t"))
    assert state(saver, graph, thread("t")).values["log"][: len(seen)] == seen


def test_interrupted_parallel_nodes_are_resumed_once_each(saver: Called) -> None:
    effects: list[str] = []
    graph = asking(saver, effects)
    saver.run(graph, {"log": ["in"]}, thread("t"))
    for _ in range(2):
        for answered, name in enumerate("xyz"):
            head = state(saver, graph, thread("t"))
            waiting = {i.value: i.id for task in head.tasks for i in task.interrupts}
            assert sorted(waiting) == list("xyz")[answered:]
            saver.prune(["t"])
            saver.run(graph, Command(resume={waiting[name]: "yes"}), thread("t"))
            assert effects == [f"{n}=yes" for n in "xyz"[: answered + 1]]
            saver.prune(["t"])
        values = state(saver, graph, thread("t")).values
        assert values["log"][-3:] == ["x=yes", "y=yes", "z=yes"]
        assert values["count"] == len(values["log"])
        effects.clear()
        saver.run(graph, {"log": ["again"]}, thread("t"))


def test_an_interrupted_subgraph_stays_until_it_is_resumed(saver: Called) -> None:
    effects: list[str] = []
    graph = deltas(saver, rounds=2, inner=asking(None, effects))
    saver.run(graph, {"log": ["in"]}, thread("t"))
    pruned(saver, graph, "t")
    head = state(saver, graph, thread("t"))
    assert head.next == ("inner",)
    waiting = [i.id for task in head.tasks for i in task.interrupts]
    assert len(waiting) == 3
    saver.run(graph, Command(resume={waiting[0]: "yes"}), thread("t"))
    saver.prune(["t"])
    saver.run(graph, Command(resume=dict.fromkeys(waiting[1:], "yes")), thread("t"))
    assert sorted(effects) == ["x=yes", "y=yes", "z=yes"]
    assert state(saver, graph, thread("t")).next == ()
    after = pruned(saver, graph, "t")
    assert {ns for ns, _ in after} == {""}


def test_a_thread_that_was_plain_before(saver: Called) -> None:
    plain = counting(saver.saver, PlainBefore)
    graph = counting(saver.saver)
    for _ in range(2):
        saver.run(plain, {"log": ["plain"]}, thread("t"))
    for _ in range(2):
        saver.run(graph, {"log": ["delta"]}, thread("t"))
    pruned(saver, graph, "t")
    saver.run(plain, {"plain": [0]}, thread("t"))
    pruned(saver, plain, "t")
