"""The demo's agent, and the process it runs in.

The model is a script: a function of the conversation that answers with tool calls, as a language
model would, so the demo needs neither network nor key. All else is LangGraph as an application uses
it: a tool-calling loop, tools in parallel, a subgraph, an `interrupt` before money is spent.

A task that does something writes a line to the journal when it begins and one when it is done. The
journal is the outside world: it keeps what a killed process really did, whatever the database says.
What the outside world answers (the human, the airline) comes in on stdin, a line each.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt
from langsmith import tracing_context

from ckpt_orm import SQLAlchemySaver

#: The environment variable that brings the URL, so that no password is in the list of processes.
URL = "CKPT_ORM_DEMO_URL"
REQUEST = "Book me a trip to Lisbon."
BUDGET = 600
FARES = {"TP 571": 410, "night train": 120}
ROOMS = {"Alfama": 140, "hostel": 40}
APPROVED = "approve"
WAITING = "waiting for the human"
REFUSED = "refused by the human"


class Trip(TypedDict):
    """The state of the agent: what was said, and how much may be spent."""

    messages: Annotated[list[AnyMessage], add_messages]
    budget: int


class Order(TypedDict):
    """What a tool's node is sent: the call to answer."""

    call: ToolCall


class Ticket(Order):
    """The state of the subgraph that buys the ticket, for one call."""

    steps: Annotated[list[str], operator.add]
    messages: list[AnyMessage]


class Node(Protocol):
    """A node that answers one call."""

    def __call__(self, state: Order) -> dict[str, Any]:
        """The update of the agent's state."""


Agent = CompiledStateGraph[Trip, None, Trip, Trip]


@dataclass(frozen=True)
class Entry:
    """One line of the journal: the task "began" in a worker, or is "done"."""

    worker: str
    task: str
    event: str
    receipt: str = ""


class Journal:
    """An append-only file of entries, one JSON line each."""

    def __init__(self, path: Path, worker: str) -> None:
        self.path = path
        self.worker = worker

    def write(self, task: str, event: str, receipt: str = "") -> None:
        """Append one entry, in one system call."""
        with self.path.open("ab", buffering=0) as file:
            entry = Entry(self.worker, task, event, receipt)
            file.write(json.dumps(asdict(entry)).encode() + b"\n")

    @contextmanager
    def task(self, name: str, receipt: str = "") -> Iterator[None]:
        """Note that a task begins and, unless it fails or is killed, that it is done."""
        self.write(name, "began")
        yield
        self.write(name, "done", receipt)

    def read(self) -> list[Entry]:
        """Every entry so far, whichever process wrote it."""
        if not self.path.exists():
            return []
        return [Entry(**json.loads(line)) for line in self.path.read_text().splitlines()]


def config_of(thread: str, worker: str = "") -> RunnableConfig:
    """A run on a thread; `metadata` is stored with each checkpoint, so a row tells who wrote it."""
    return {"configurable": {"thread_id": thread}, "metadata": {"worker": worker}}


# The model


def scripted(messages: list[AnyMessage], budget: int) -> AIMessage:
    """What the model answers: the tools it wants next, or the last word."""
    answers = {m.name: str(m.content) for m in messages if isinstance(m, ToolMessage)}
    if "search_fares" not in answers:
        return calling({"search_fares": {}, "search_rooms": {}})
    if "quote" not in answers:
        fare, room = best(answers["search_fares"], answers["search_rooms"], budget)
        return calling({"quote": {"fare": fare, "room": room}})
    if "charge_card" not in answers:
        price = json.loads(answers["quote"])["total"]
        return calling({"charge_card": {"amount": price}, "issue_ticket": {}})
    if answers["charge_card"] == REFUSED:
        return AIMessage("Nothing was booked.")
    return AIMessage(f"{answers['charge_card']}; {answers['issue_ticket']}.")


def calling(tools: dict[str, dict[str, Any]]) -> AIMessage:
    """An answer that calls tools, in parallel where they are several."""
    calls = [ToolCall(name=name, args=args, id=uuid4().hex) for name, args in tools.items()]
    return AIMessage("", tool_calls=calls)


def best(fares: str, rooms: str, budget: int) -> tuple[str, str]:
    """The dearest fare and room that the budget allows."""
    offers = [
        (price + rent, fare, room)
        for fare, price in json.loads(fares).items()
        for room, rent in json.loads(rooms).items()
    ]
    _, fare, room = max(offer for offer in offers if offer[0] <= budget)
    return fare, room


# The tools: what each answers to its call


def search_fares(call: ToolCall) -> str:
    """Fares to Lisbon."""
    return json.dumps(FARES)


def search_rooms(call: ToolCall) -> str:
    """Rooms in Lisbon."""
    return json.dumps(ROOMS)


def quote(call: ToolCall) -> str:
    """The price of a trip."""
    fare, room = call["args"]["fare"], call["args"]["room"]
    return json.dumps({"fare": fare, "room": room, "total": FARES[fare] + ROOMS[room]})


def answered(call: ToolCall, content: str) -> dict[str, Any]:
    """The update of the state with which a tool call is answered."""
    return {"messages": [ToolMessage(content, name=call["name"], tool_call_id=call["id"])]}


# The graph


def build(saver: BaseCheckpointSaver[str], journal: Journal) -> Agent:
    """The agent: model -> tools in parallel -> model …, with an approval before money is spent."""

    def model(state: Trip) -> dict[str, Any]:
        turn = 1 + sum(isinstance(message, AIMessage) for message in state["messages"])
        with journal.task(f"model {turn}"):
            return {"messages": [scripted(state["messages"], state["budget"])]}

    def approval(state: Trip) -> Command[str]:
        with journal.task("approval"):
            calls = calls_of(state)
            amount = next(c["args"]["amount"] for c in calls if c["name"] == "charge_card")
            if interrupt(f"Spend {amount} EUR of {state['budget']}?") == APPROVED:
                return Command(goto=sends(calls))
            refused = [answered(call, REFUSED)["messages"][0] for call in calls]
            return Command(goto="model", update={"messages": refused})

    builder = StateGraph(Trip)
    builder.add_node("model", model)
    builder.add_node("approval", approval, destinations=("charge_card", "issue_ticket", "model"))
    for tool in (search_fares, search_rooms, quote):
        builder.add_node(tool.__name__, plain(tool, journal))
    builder.add_node("charge_card", charging(journal))
    builder.add_node("issue_ticket", ticketing(journal))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route)
    for name in ("search_fares", "search_rooms", "quote", "charge_card", "issue_ticket"):
        builder.add_edge(name, "model")
    return builder.compile(checkpointer=saver, name="agent")


def calls_of(state: Trip) -> list[ToolCall]:
    """The tool calls of the model's last answer."""
    return cast(AIMessage, state["messages"][-1]).tool_calls


def route(state: Trip) -> str | list[Send]:
    """Where a model's answer leads: to the end, to the human, or to its tools in parallel."""
    calls = calls_of(state)
    if any(call["name"] == "charge_card" for call in calls):
        return "approval"
    return sends(calls) or END


def sends(calls: list[ToolCall]) -> list[Send]:
    """The tasks of the next superstep: each call to the node of its name, in parallel."""
    return [Send(call["name"], Order(call=call)) for call in calls]


def plain(tool: Callable[[ToolCall], str], journal: Journal) -> Node:
    """A node that answers a tool call with what the tool returns."""

    def node(state: Order) -> dict[str, Any]:
        with journal.task(tool.__name__):
            return answered(state["call"], tool(state["call"]))

    return node


def charging(journal: Journal) -> Node:
    """The node that must never run twice: each run charges the card and gives a new receipt."""

    def charge_card(state: Order) -> dict[str, Any]:
        amount, receipt = state["call"]["args"]["amount"], uuid4().hex[:8]
        with journal.task("charge_card", receipt):
            return answered(state["call"], f"{amount} EUR charged, receipt {receipt}")

    return charge_card


def ticketing(journal: Journal) -> CompiledStateGraph[Ticket, None, Order, Ticket]:
    """The subgraph: hold a seat, then wait for the airline to confirm it."""

    def hold_seat(state: Ticket) -> dict[str, Any]:
        with journal.task("hold_seat"):
            return {"steps": ["seat held"]}

    def confirm_seat(state: Ticket) -> dict[str, Any]:
        with journal.task("confirm_seat"):
            answer = heard()
            held = ", ".join(state["steps"])
            return {"steps": [answer], **answered(state["call"], f"{held}, {answer}")}

    builder = StateGraph(Ticket, input_schema=Order)
    builder.add_node("hold_seat", hold_seat)
    builder.add_node("confirm_seat", confirm_seat)
    builder.add_edge(START, "hold_seat")
    builder.add_edge("hold_seat", "confirm_seat")
    builder.add_edge("confirm_seat", END)
    return builder.compile(name="issue_ticket")


# The process


def heard() -> str:
    """The next thing the outside world says; it hangs up when the demo itself ends."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the outside world hung up")
    return line.strip()


def start(agent: Agent, config: RunnableConfig, journal: Journal) -> None:
    """What the first process does: run to the interrupt, hear the human, go on."""
    agent.invoke(Trip(messages=[HumanMessage(REQUEST)], budget=BUDGET), config)
    with journal.task(WAITING):
        answer = heard()
    agent.invoke(Command(resume=answer), config)


def resume(agent: Agent, config: RunnableConfig, journal: Journal) -> None:
    """What the second process does, which knows the thread's id and nothing else."""
    asyncio.run(agent.ainvoke(None, config))


def main(worker: str, thread: str, journal: str) -> None:
    """Run the agent as the worker named "first" or "second"."""
    with tracing_context(enabled=False), SQLAlchemySaver.from_url(os.environ[URL]) as saver:
        log = Journal(Path(journal), worker)
        work = {"first": start, "second": resume}[worker]
        work(build(saver, log), config_of(thread, worker), log)


if __name__ == "__main__":
    main(*sys.argv[1:])
