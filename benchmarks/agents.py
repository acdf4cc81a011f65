"""W5: a LangGraph agent of two nodes that loops, invoked again and again on one thread.

The floor is the same graph with LangGraph's in-memory saver: what the loop itself costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from benchmarks.contestants import Arena, Contestant
from benchmarks.conversation import words
from benchmarks.results import Row, times
from benchmarks.sampling import FLOOR, Rounds, Samples
from benchmarks.scale import Scale

DURABILITIES = ("async", "sync", "exit")


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    turn: int
    notes: dict[str, str]


def agent(state: State) -> dict[str, Any]:
    """A model that has something to say."""
    number = len(state["messages"])
    said = AIMessage(words(number), id=f"agent-{number}")
    return {"messages": [said], "turn": state["turn"] + 1, "notes": {"last": said.id}}


def tools(state: State) -> dict[str, Any]:
    """A tool that answers."""
    number = len(state["messages"])
    said = HumanMessage(words(number), id=f"tools-{number}")
    return {"messages": [said], "turn": state["turn"] + 1}


async def aagent(state: State) -> dict[str, Any]:
    return agent(state)


async def atools(state: State) -> dict[str, Any]:
    return tools(state)


def loop_of(colour: str, supersteps: int, saver: Any) -> Any:
    """The compiled graph; a run ends after so many supersteps."""
    builder = StateGraph(State)
    builder.add_node("agent", agent if colour == "sync" else aagent)
    builder.add_node("tools", tools if colour == "sync" else atools)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tools")
    builder.add_conditional_edges(
        "tools", lambda state: END if state["turn"] % supersteps == 0 else "agent"
    )
    return builder.compile(checkpointer=saver)


def invoked(
    graph: Any, thread: str, durability: str, loop: asyncio.AbstractEventLoop | None
) -> Callable[[], float]:
    """A call that runs the graph once more on the thread, and returns the seconds it took."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 100}
    runs = 0

    def call() -> float:
        nonlocal runs
        asked = {"messages": [HumanMessage(words(runs), id=f"user-{runs}")], "turn": 0}
        runs += 1
        begin = time.perf_counter()
        if loop is None:
            graph.invoke(asked, config, durability=durability)
        else:
            loop.run_until_complete(graph.ainvoke(asked, config, durability=durability))
        return time.perf_counter() - begin

    return call


def measure(arena: Arena, scale: Scale) -> Iterator[Row]:
    """One row for each colour and durability."""
    for colour in ("sync", "async"):
        with arena.contestants(colour) as contestants:
            for durability in DURABILITIES:
                samples = _samples(contestants, scale, colour, durability)
                what = f"agent loop, durability={durability}"
                yield times("W5", what, arena.database, samples, colour)


def _samples(
    contestants: dict[str, Contestant], scale: Scale, colour: str, durability: str
) -> Samples:
    loop = next(iter(contestants.values())).loop
    savers = {name: contestant.saver for name, contestant in contestants.items()}
    savers[FLOOR] = InMemorySaver()
    graphs = {name: loop_of(colour, scale.supersteps, saver) for name, saver in savers.items()}

    def calls(thread: str) -> dict[str, Callable[[], float]]:
        name_of = f"{thread}-{durability}"
        return {name: invoked(graph, name_of, durability, loop) for name, graph in graphs.items()}

    rounds = Rounds(scale.seed)
    rounds.take(calls("warm"), 0, warm_up=1)
    return rounds.take(calls("agent"), scale.invokes, warm_up=0)
