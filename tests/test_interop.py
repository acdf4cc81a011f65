"""Reading both ways: the official PostgresSaver and ours on one database, taking turns on threads.

The tables are born by either of them. What one has written the other reads as the same tuples,
tells as the same states, and goes on from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from backends import Called
from builders import put
from graphs import asking, counting, deltas, state, states, thread, told, update
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt
from psycopg import Connection
from psycopg.rows import DictRow, dict_row
from sqlalchemy import URL, create_engine, text
from typing_extensions import TypedDict

from ckpt_orm import SQLAlchemySaver
from ckpt_orm.compression import compressed

Pair = tuple[Called, Called]


@pytest.fixture(params=["official tables", "our tables"])
def savers(request: pytest.FixtureRequest, postgres_url: URL) -> Iterator[Pair]:
    """The official saver and ours, on tables made by the one or the other."""
    # `autocommit` and `dict_row` as the official saver's own `from_conn_string` has them.
    conninfo = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with (
        Connection[DictRow].connect(conninfo, autocommit=True, row_factory=dict_row) as conn,
        SQLAlchemySaver.from_url(postgres_url) as ours,
    ):
        official = PostgresSaver(conn)
        for saver in (official, ours) if request.param == "official tables" else (ours, official):
            saver.setup()
        yield Called(official, None, None), Called(ours, None, None)


@pytest.fixture(params=["official writes", "ours writes"])
def turns(request: pytest.FixtureRequest, savers: Pair) -> Pair:
    """Who writes first, and who reads and goes on."""
    official, ours = savers
    return (official, ours) if request.param == "official writes" else (ours, official)


class Everything(TypedDict, total=False):
    """Channels of all kinds."""

    messages: Annotated[list[AnyMessage], add_messages]
    number: int
    truth: bool
    real: float
    text: str
    nothing: None
    shape: dict[str, Any]
    items: Annotated[list[Any], operator.add]


def everything(saver: Called) -> Any:
    """Messages, scalars, a fan-out by Send, an interrupt at the end of the second superstep."""

    def answer(state: Everything) -> Any:
        turn = len(state["messages"])
        return {
            "messages": [AIMessage(f"answer {turn}", id=f"a{turn}")],
            "number": turn,
            "truth": turn % 2 == 0,
            "real": turn + 0.5,
            "text": "зеркало 🪞",
            "nothing": None,
            "shape": {"a": (1, {2}), "b": b"\x00"},
        }

    def fan(state: Everything) -> Any:
        return [Send("each", {"item": item}) for item in ("p", "q")]

    def each(state: Any) -> Any:
        return {"items": [state["item"]]}

    def ask(state: Everything) -> Any:
        return {"items": [interrupt({"question": len(state["items"])})]}

    builder = StateGraph(Everything)
    builder.add_node("answer", answer)
    builder.add_node("each", each)
    builder.add_node("ask", ask)
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", fan, ["each"])
    builder.add_edge("each", "ask")
    return builder.compile(checkpointer=saver.saver)


def same_everywhere(one: Called, other: Called, make: Any, name: str = "t") -> list[Any]:
    """A thread as both savers tell it, tuple by tuple and state by state."""
    found = list(one.list(thread(name)))
    assert list(other.list(thread(name))) == found != []
    for saved in found:
        read = other.get_tuple(saved.config)
        assert read == saved
        assert repr(read.checkpoint["channel_values"]) == repr(saved.checkpoint["channel_values"])
        assert repr(read.pending_writes) == repr(saved.pending_writes)
    history = [told(state) for state in states(one, make(one), thread(name))]
    assert [told(state) for state in states(other, make(other), thread(name))] == history
    return history


def test_messages_scalars_sends_and_interrupts(turns: Pair) -> None:
    first, second = turns
    question = {"messages": [HumanMessage("hello", id="h")], "items": [], "number": 1}
    everything(first).invoke(question, thread("t"))
    same_everywhere(first, second, everything)
    graph = everything(second)
    assert graph.get_state(thread("t")).tasks[0].interrupts[0].value == {"question": 2}
    graph.invoke(Command(resume="yes"), thread("t"))
    update(second, graph, thread("t"), {"items": ["edited"]}, "each")
    same_everywhere(first, second, everything)
    done = everything(first).invoke(Command(resume="again"), thread("t"))
    assert done["items"] == ["p", "q", "yes", "edited", "again"]
    same_everywhere(first, second, everything)


def test_delta_channels(turns: Pair) -> None:
    first, second = turns
    deltas(first, rounds=4).invoke({"log": ["in"], "seen": {"in": 1}}, thread("t"))
    same_everywhere(first, second, deltas)
    # The official saver holds its lock while it lists: nothing else may be asked meanwhile.
    for saved in list(second.list(thread("t"))):
        for channels in (["log"], ["log", "seen"]):
            found = [
                saver.get_delta_channel_history(config=saved.config, channels=channels)
                for saver in turns
            ]
            assert repr(found[0]) == repr(found[1])
    deltas(second, rounds=4).invoke({"log": ["in"]}, thread("t"))
    same_everywhere(first, second, deltas)
    log = state(first, deltas(first), thread("t")).values["log"]
    assert log == ["in", *[f"{n}{i}" for i in range(4) for n in "ab"], "in"] + [
        f"{n}{i}" for i in range(4, 8) for n in "ab"
    ]


@pytest.mark.parametrize("lasting", [False, True], ids=["per-call", "lasting"])
def test_subgraphs(turns: Pair, lasting: bool) -> None:
    def make(saver: Called) -> Any:
        return deltas(saver, rounds=2, inner=counting(True if lasting else None))

    for saver in (*turns, *turns):
        make(saver).invoke({"log": ["in"]}, thread("t"))
        same_everywhere(*turns, make)


def test_interrupts_are_resumed_by_the_other(turns: Pair) -> None:
    effects: list[str] = []

    def make(saver: Called) -> Any:
        return asking(saver, effects)

    first, second = turns
    make(first).invoke({"log": ["in"]}, thread("t"))
    waiting = {
        i.value: i.id for task in make(second).get_state(thread("t")).tasks for i in task.interrupts
    }
    for saver, name in [(second, "x"), (first, "y"), (second, "z")]:
        make(saver).invoke(Command(resume={waiting[name]: "yes"}), thread("t"))
        same_everywhere(first, second, make)
    assert effects == ["x=yes", "y=yes", "z=yes"]


def test_a_fork_by_the_other(turns: Pair) -> None:
    first, second = turns
    deltas(first, rounds=3).invoke({"log": ["in"]}, thread("t"))
    graph = deltas(second, rounds=3)
    middle = states(second, graph, thread("t"))[4]
    fork = update(second, graph, middle.config, {"log": ["fork"]}, "counted")
    graph.invoke(None, fork)
    same_everywhere(first, second, deltas)
    replayed = deltas(first, rounds=3).invoke(None, middle.config)
    assert replayed["log"][: len(middle.values["log"])] == middle.values["log"]
    same_everywhere(first, second, deltas)


def test_what_the_other_deletes_or_prunes(savers: Pair) -> None:
    official, ours = savers
    for name, saver in [("a", official), ("b", ours)]:
        everything(saver).invoke({"messages": [HumanMessage("hi", id="h")]}, thread(name))
    head = ours.get_tuple(thread("a"))
    official.prune(["b"])
    ours.prune(["a"])
    for name in "ab":
        assert len(same_everywhere(official, ours, everything, name)) == 1
    assert ours.get_tuple(thread("a")) == head._replace(parent_config=None)
    ours.delete_thread("a")
    official.delete_thread("b")
    assert list(ours.list(None)) == list(official.list(None)) == []


def test_a_serde_that_compresses_is_one_for_both(turns: Pair, postgres_url: URL) -> None:
    first, _ = turns
    values = {"list": ["a text that is long enough, and says it often"] * 200, "word": "x"}
    for saver in turns:
        saver.saver.serde = compressed()
    stored = put(first, "t", values)
    first.put_writes(stored, [("w", values["list"])], "task")
    for saver in turns:
        found = saver.get_tuple(stored)
        assert found.checkpoint["channel_values"] == values
        assert found.pending_writes == [("task", "w", values["list"])]
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        tags = connection.scalars(text("SELECT type FROM checkpoint_blobs WHERE channel = 'list'"))
        assert tags.all() == ["msgpack+zstd"]
    engine.dispose()
