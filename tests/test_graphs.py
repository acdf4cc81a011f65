"""LangGraph at work on every backend: results and histories are those with InMemorySaver."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from backends import Backend, Called
from graphs import asking, counting, deltas, history, in_memory, state, states, thread, update
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from typing_extensions import TypedDict

from ckpt_orm import SQLAlchemySaver


@dataclass
class Point:
    """A type of the application's own."""

    x: int
    y: str


class Plain(TypedDict, total=False):
    """Channels with and without a reducer."""

    items: Annotated[list[Any], operator.add]
    last: Any


def fan_out(saver: Called, fails: list[str]) -> Any:
    """Three parallel tasks by Send, of which "q" fails as often as `fails` says; then one more."""

    def each(state: Any) -> Any:
        if state["item"] in fails:
            fails.remove(state["item"])
            raise ConnectionError(state["item"])
        return {"items": [state["item"]]}

    def join(state: Plain) -> Any:
        return {"last": Point(len(state["items"]), "y")}

    builder = StateGraph(Plain)
    builder.add_node("each", each)
    builder.add_node("join", join)
    builder.add_conditional_edges(
        START, lambda state: [Send("each", {"item": item}) for item in "pqr"], ["each"]
    )
    builder.add_edge("each", "join")
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver.saver)


def both(saver: Called, play: Callable[[Called], Any]) -> Any:
    """What a scene shows with this saver, which must be what it shows with InMemorySaver."""
    shown = play(saver)
    assert shown == play(in_memory(saver.loop))
    return shown


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_loop_at_every_durability(saver: Called, durability: str) -> None:
    def play(saver: Called) -> Any:
        graph = deltas(saver, rounds=4)
        shown = []
        for _ in range(2):
            question = {"log": ["in"], "seen": {"in": 1}}
            shown.append(saver.run(graph, question, thread("t"), durability=durability))
        return shown, history(saver, graph, thread("t"))

    both(saver, play)


@pytest.mark.parametrize("lasting", [False, True], ids=["per-call", "lasting"])
def test_subgraphs(saver: Called, lasting: bool) -> None:
    def play(saver: Called) -> Any:
        graph = deltas(saver, rounds=2, inner=counting(True if lasting else None))
        shown = [saver.run(graph, {"log": ["in"]}, thread("t")) for _ in range(2)]
        inner = state(saver, graph, thread("t", checkpoint_ns="inner")) if lasting else None
        return shown, history(saver, graph, thread("t")), inner and inner.values

    both(saver, play)


def test_interrupts_are_resumed_one_by_one_and_together(saver: Called) -> None:
    def play(saver: Called) -> Any:
        effects: list[str] = []
        graph = asking(saver, effects)
        shown = [saver.run(graph, {"log": ["in"]}, thread("t")).keys()]
        waiting = {
            i.value: i.id
            for found in state(saver, graph, thread("t")).tasks
            for i in found.interrupts
        }
        for names in ["y", "xz"]:
            answers = {waiting[name]: name.upper() for name in names}
            shown.append(saver.run(graph, Command(resume=answers), thread("t")).get("log"))
        return shown, sorted(effects), history(saver, graph, thread("t"))

    both(saver, play)


def test_a_failed_task_is_retried_from_pending_writes(saver: Called) -> None:
    def play(saver: Called) -> Any:
        fails = ["q"]
        graph = fan_out(saver, fails)
        with pytest.raises(ConnectionError):
            saver.run(graph, {"items": []}, thread("t"), durability="sync")
        failed = state(saver, graph, thread("t"))
        result = saver.run(graph, None, thread("t"))
        # Of the tasks beside the one that failed, the async loop cancels those that still run.
        return failed.tasks[1].error is not None, result, fails

    shown = both(saver, play)
    assert shown[0]
    assert shown[1]["last"] == Point(3, "y")


def test_time_travel(saver: Called) -> None:
    def play(saver: Called) -> Any:
        graph = deltas(saver, rounds=4)
        saver.run(graph, {"log": ["in"], "seen": {}}, thread("t"))
        middle = states(saver, graph, thread("t"))[5]
        shown = [saver.run(graph, None, middle.config)]
        fork = update(saver, graph, middle.config, {"log": ["fork"], "count": 1}, "counted")
        shown.append(saver.run(graph, None, fork))
        shown.append(state(saver, graph, middle.config).values)
        # Metadata of a fork counts on from the branch it left.
        return shown, [found[0] for found in history(saver, graph, thread("t"))]

    both(saver, play)


def test_the_functional_api_remembers(saver: Called) -> None:
    def play(saver: Called) -> Any:
        done: list[int] = []

        @task
        def double(n: int) -> int:
            done.append(n)
            return 2 * n

        @entrypoint(checkpointer=saver.saver)
        def total(ns: list[int], *, previous: Any = None) -> Any:
            doubled = [future.result() for future in [double(n) for n in ns]]
            found = {"sum": sum(doubled), "before": previous and previous["sum"]}
            return entrypoint.final(value=found, save=found)

        if saver.loop is None:
            shown = [total.invoke(ns, thread("t")) for ns in ([1, 2], [3], [])]
        else:
            shown = [
                saver.run(asynchronous(saver, done), ns, thread("t")) for ns in ([1, 2], [3], [])
            ]
        return shown, sorted(done)

    def asynchronous(saver: Called, done: list[int]) -> Any:
        @task
        async def double(n: int) -> int:
            done.append(n)
            return 2 * n

        @entrypoint(checkpointer=saver.saver)
        async def total(ns: list[int], *, previous: Any = None) -> Any:
            doubled = [await future for future in [double(n) for n in ns]]
            found = {"sum": sum(doubled), "before": previous and previous["sum"]}
            return entrypoint.final(value=found, save=found)

        return total

    shown, done = both(saver, play)
    assert shown[1] == {"sum": 6, "before": 6}
    assert done == [1, 2, 3]


def test_strict_msgpack_reads_the_types_a_graph_names(
    saver: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Typed(TypedDict, total=False):
        point: Point
        count: int

    # What LANGGRAPH_STRICT_MSGPACK=true sets when LangGraph is imported.
    for module in ("_internal._serde", "checkpoint.serde._msgpack"):
        monkeypatch.setattr(f"langgraph.{module}.STRICT_MSGPACK_ENABLED", True)
    builder = StateGraph(Typed)
    builder.add_node("move", lambda state: {"point": Point(state["point"].x + 1, "moved")})
    builder.add_edge(START, "move")
    graph = builder.compile(checkpointer=saver.saver)
    saver.run(graph, {"point": Point(1, "given")}, thread("t"))
    assert saver.run(graph, {"count": 1}, thread("t"))["point"] == Point(3, "moved")
    assert state(saver, graph, thread("t")).values["point"] == Point(3, "moved")


def test_a_pool_of_one_connection_serves_parallel_nodes(backend: Backend, ready_url: URL) -> None:
    url, pool = ready_url.set(drivername=backend.driver), {"pool_size": 1, "max_overflow": 0}
    if backend.is_async and url.get_dialect().is_async:
        engine: Any = create_async_engine(url, **pool)
    else:
        engine = create_engine(url, **pool)
    loop = asyncio.new_event_loop() if backend.is_async else None
    saver = Called(SQLAlchemySaver(engine), loop, None)
    try:
        graph = deltas(saver, rounds=5, inner=counting(None))
        found = saver.run(graph, {"log": ["in"]}, thread("t"))
        assert len(found["log"]) > 10
        assert history(saver, graph, thread("t"))[0][0] == found
        assert engine.pool.checkedout() == 0
    finally:
        if loop is not None:
            if hasattr(engine, "sync_engine"):
                loop.run_until_complete(engine.dispose())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        if not hasattr(engine, "sync_engine"):
            engine.dispose()


def test_sixteen_threads_with_a_thread_id_each(database_url: URL) -> None:
    with SQLAlchemySaver.from_url(database_url) as shared:
        shared.setup()
        saver = Called(shared, None, None)
        graph = deltas(saver, rounds=3)

        def converse(number: int) -> Any:
            for turn in range(2):
                found = graph.invoke({"log": [f"{number}.{turn}"]}, thread(f"t{number}"))
            return found["log"]

        with ThreadPoolExecutor(16) as pool:
            logs = list(pool.map(converse, range(16)))
        rounds = [[f"{name}{n}" for n in range(k, k + 3) for name in "ab"] for k in (0, 3)]
        for number, log in enumerate(logs):
            assert log == [f"{number}.0", *rounds[0], f"{number}.1", *rounds[1]]
            assert graph.get_state(thread(f"t{number}")).values["log"] == log
