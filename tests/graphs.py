"""Small LangGraph graphs, and what can be seen of their threads in either colour.

A graph is compiled with `saver.saver`; the functions below call it in the colour of `saver`. With
`in_memory` the same calls tell what LangGraph's own InMemorySaver makes of them.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Annotated, Any

from backends import Called
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


def in_memory(loop: asyncio.AbstractEventLoop | None) -> Called:
    """The model: LangGraph's own saver, called in the same colour."""
    return Called(InMemorySaver(), loop, None)


def thread(name: str, **configurable: Any) -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": name, **configurable}}


# --- what a graph says ---


def state(saver: Called, graph: Any, config: Any, **options: Any) -> Any:
    """`graph.get_state`."""
    if saver.loop is None:
        return graph.get_state(config, **options)
    return saver.loop.run_until_complete(graph.aget_state(config, **options))


def update(saver: Called, graph: Any, config: Any, values: Any, as_node: str | None = None) -> Any:
    """`graph.update_state`."""
    if saver.loop is None:
        return graph.update_state(config, values, as_node=as_node)
    return saver.loop.run_until_complete(graph.aupdate_state(config, values, as_node=as_node))


def states(saver: Called, graph: Any, config: Any) -> list[Any]:
    """`graph.get_state_history`, newest first."""
    if saver.loop is None:
        return list(graph.get_state_history(config))

    async def collect() -> list[Any]:
        return [found async for found in graph.aget_state_history(config)]

    return saver.loop.run_until_complete(collect())


def told(found: Any) -> Any:
    """What a state says, without the ids that differ between two runs."""
    return (
        found.values,
        found.next,
        [(task.name, str(task.error), [i.value for i in task.interrupts]) for task in found.tasks],
        {name: found.metadata.get(name) for name in ("source", "step")},
    )


def history(saver: Called, graph: Any, config: Any) -> list[Any]:
    """All that a thread's history says."""
    return [told(found) for found in states(saver, graph, config)]


def surviving(saver: Called, graph: Any, name: str) -> dict[Any, Any]:
    """The values and pending tasks at each checkpoint of a thread, in all namespaces."""
    found = {}
    for saved in list(saver.list(thread(name))):
        place = saved.config["configurable"]
        seen = state(saver, graph, saved.config)
        found[place["checkpoint_ns"], place["checkpoint_id"]] = (seen.values, seen.next)
    return found


# --- graphs ---


def appended(log: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """A DeltaChannel's reducer: writes go to the end, in their order."""
    return [*log, *(item for write in writes for item in write)]


def merged(seen: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A DeltaChannel's reducer: later writes win."""
    return {name: item for part in (seen, *writes) for name, item in part.items()}


class Deltas(TypedDict, total=False):
    """Two delta channels of different cadence beside plain ones."""

    log: Annotated[list[Any], DeltaChannel(appended, snapshot_frequency=3)]
    seen: Annotated[dict[str, Any], DeltaChannel(merged, snapshot_frequency=5)]
    plain: Annotated[list[Any], operator.add]
    count: int


class OneDelta(TypedDict, total=False):
    """One delta channel; the others are plain."""

    log: Annotated[list[Any], DeltaChannel(appended, snapshot_frequency=5)]
    seen: Annotated[dict[str, Any], operator.or_]
    plain: Annotated[list[Any], operator.add]
    count: int


def deltas(saver: Called, rounds: int = 3, inner: Any = None, kind: Any = Deltas) -> Any:
    """A loop of `rounds`, in which two nodes write in parallel; a subgraph at the end if given."""

    def work(name: str) -> Any:
        def node(state: Any) -> Any:
            n = state.get("count", 0)
            return {"log": [f"{name}{n}"], "seen": {f"{name}{n % 2}": n}, "plain": [n]}

        return node

    def counted(state: Any) -> Any:
        return {"count": state.get("count", 0) + 1}

    def onwards(state: Any) -> Any:
        if state["count"] % rounds:
            return ["a", "b"]
        return ["inner"] if inner else [END]

    builder = StateGraph(kind)
    builder.add_node("counted", counted)
    for name in "ab":
        builder.add_node(name, work(name))
        builder.add_edge(START, name)
        # Not a barrier, `add_edge(["a", "b"], …)`: LangGraph hands its live set to saves that run
        # in the background, so a checkpoint that is stored late holds what came after it.
        builder.add_edge(name, "counted")
    if inner is not None:
        builder.add_node("inner", inner)
    builder.add_conditional_edges(
        "counted", onwards, ["a", "b", END, *(["inner"] if inner else [])]
    )
    return builder.compile(checkpointer=saver.saver)


def asking(saver: Called | None, effects: list[str]) -> Any:
    """Three parallel nodes, each of which asks, and then has one effect; a subgraph for None."""

    def ask(name: str) -> Any:
        def node(state: Any) -> Any:
            answer = interrupt(name)
            effects.append(f"{name}={answer}")
            return {"log": [f"{name}={answer}"]}

        return node

    def after(state: Any) -> Any:
        return {"count": len(state["log"])}

    builder = StateGraph(Deltas)
    builder.add_node("after", after)
    for name in "xyz":
        builder.add_node(name, ask(name))
        builder.add_edge(START, name)
        builder.add_edge(name, "after")
    return builder.compile(checkpointer=saver and saver.saver)


def counting(checkpointer: Any, kind: Any = Deltas) -> Any:
    """A subgraph that appends to a delta channel of its own."""

    def step(state: Any) -> Any:
        return {"log": ["inner"], "plain": [len(state.get("log", []))]}

    builder = StateGraph(kind)
    builder.add_node("one", step)
    builder.add_node("two", step)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=checkpointer)
