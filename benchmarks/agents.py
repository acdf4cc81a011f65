"""W5: a LangGraph agent of two nodes that loops, invoked again and again on one thread.

The floor is the same graph with LangGraph's in-memory saver: what the loop itself costs. And the
same agent on many threads in turn, as a server runs it that has run for long: each thread is read
anew, and whatever a saver remembers is of other threads as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import cycle
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
    graph: Any,
    thread: str,
    durability: str,
    loop: asyncio.AbstractEventLoop | None,
    messages: int = 1,
) -> Callable[[], float]:
    """A call that runs the graph once more on the thread, and returns the seconds it took.

    The first run gets so many messages, and each one after that gets one.
    """
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 100}
    runs = 0

    def call() -> float:
        nonlocal runs
        number = 1 if runs else messages
        said = [HumanMessage(words(runs + at), id=f"user-{runs}-{at}") for at in range(number)]
        asked = {"messages": said, "turn": 0}
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
            what = f"agents, {scale.agents} threads of {scale.agent_messages} messages in turn"
            yield times("W5", what, arena.database, _in_turn(contestants, scale, colour), colour)


def _in_turn(contestants: dict[str, Contestant], scale: Scale, colour: str) -> Samples:
    """Each thread's agent is invoked once, then each one again."""

    def call_of(contestant: Contestant) -> Callable[[], float]:
        graph = loop_of(colour, scale.supersteps, contestant.saver)
        names = [f"turn-{number}" for number in range(scale.agents)]
        calls = [
            invoked(graph, name, "async", contestant.loop, scale.agent_messages) for name in names
        ]
        for call in calls:
            call()
        turns = cycle(calls)
        return lambda: next(turns)()

    calls = {name: call_of(contestant) for name, contestant in contestants.items()}
    return Rounds(scale.seed).take(calls, scale.agents * scale.turns, warm_up=scale.agents)


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
