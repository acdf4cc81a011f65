"""What the demo claims, each claim as a function that looks for itself.

A claim reads the database (through the models or the saver) and the journal, and answers whether it
held. Nothing here knows what the demo printed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import StateSnapshot
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from ckpt_orm import SQLAlchemySaver
from ckpt_orm.cli.demo_agent import Agent, Entry, Journal, config_of
from ckpt_orm.errors import CheckpointError
from ckpt_orm.models import Checkpoint, CheckpointBlob, CheckpointWrite

#: What a process that was killed reports; Windows knows no signals and reports 1.
KILLED = -getattr(signal, "SIGKILL", -1)


@dataclass
class Evidence:
    """The database and the journal, and what was seen on the way.

    Args:
        engine: where the thread is stored.
        agent: the graph, to read states with.
        journal: what the tasks really did.
        thread: the thread's id.
        exit_code: how the first process ended.
        booked: the state at the end of the second process.
        fork_point: the id of the checkpoint the fork was made from.
    """

    engine: Engine
    agent: Agent
    journal: Journal
    thread: str
    exit_code: int | None = None
    booked: StateSnapshot | None = None
    fork_point: str | None = None

    def counts(self) -> dict[str, int]:
        """The rows of the thread, per table."""
        with Session(self.engine) as session:
            return {
                model.__tablename__: session.scalar(
                    select(func.count()).select_from(model).where(model.thread_id == self.thread)
                )
                or 0
                for model in (Checkpoint, CheckpointBlob, CheckpointWrite)
            }

    def chain(self, head: str) -> list[Checkpoint]:
        """The root graph's checkpoints from `head` to its oldest ancestor."""
        rows = select(Checkpoint).where(
            Checkpoint.thread_id == self.thread, Checkpoint.checkpoint_ns == ""
        )
        with Session(self.engine) as session:
            by_id = {row.checkpoint_id: row for row in session.scalars(rows)}
        chain: list[Checkpoint] = []
        key: str | None = head
        while key in by_id:
            chain.append(by_id.pop(key))
            key = chain[-1].parent_checkpoint_id
        return chain

    def booking(self) -> list[Entry]:
        """The journal of the two processes, without the fork's."""
        return [entry for entry in self.journal.read() if entry.worker in ("first", "second")]

    def workers(self, task: str, event: str) -> list[str]:
        """Who began or finished a task, in order."""
        return [e.worker for e in self.booking() if (e.task, e.event) == (task, event)]


def killed_in_flight(seen: Evidence) -> bool:
    """The exit code is that of SIGKILL, and the journal has a task that began and never ended."""
    unfinished = "first" not in seen.workers("confirm_seat", "done")
    return (
        seen.exit_code == KILLED
        and seen.workers("confirm_seat", "began")[:1] == ["first"]
        and unfinished
    )


def nothing_twice(seen: Evidence) -> bool:
    """In the journal every task is done exactly once, and none begins after it was done."""
    done: set[str] = set()
    begun: set[str] = set()
    for entry in seen.booking():
        if entry.task in done:
            return False
        (done if entry.event == "done" else begun).add(entry.task)
    return bool(done) and done == begun


def charged_once(seen: Evidence) -> bool:
    """One charge in the journal, by the first process; its receipt is in the final answer."""
    charges = [e for e in seen.booking() if (e.task, e.event) == ("charge_card", "done")]
    if [charge.worker for charge in charges] != ["first"] or seen.booked is None:
        return False
    return charges[0].receipt in str(seen.booked.values["messages"][-1].content)


def subgraph_went_on(seen: Evidence) -> bool:
    """The subgraph's own checkpoints are by both processes, its first step by the first alone."""
    rows = (
        select(Checkpoint)
        .where(Checkpoint.thread_id == seen.thread, Checkpoint.checkpoint_ns != "")
        .order_by(Checkpoint.checkpoint_id)
    )
    with Session(seen.engine) as session:
        writers = [row.metadata_["worker"] for row in session.scalars(rows)]
    return (
        [who for who, _ in groupby(writers)] == ["first", "second"]
        and seen.workers("hold_seat", "began") == ["first"]
        and seen.workers("confirm_seat", "began") == ["first", "second"]
    )


def asked_first(seen: Evidence) -> bool:
    """Questions and answers are stored, and in the journal the approval precedes the charge."""
    events = [(entry.task, entry.event) for entry in seen.booking()]
    approved, charged = ("approval", "done"), ("charge_card", "began")
    if not {approved, charged} <= set(events):
        return False
    return answers_stored(seen) and events.index(approved) < events.index(charged)


def answers_stored(seen: Evidence) -> bool:
    """Every task with a row for its question has one for the answer, and there is one at least."""
    tasks = select(CheckpointWrite.task_id).where(CheckpointWrite.thread_id == seen.thread)
    with Session(seen.engine) as session:
        asked = session.scalars(tasks.where(CheckpointWrite.channel == "__interrupt__")).all()
        heard = session.scalars(tasks.where(CheckpointWrite.channel == "__resume__")).all()
    return bool(asked) and set(asked) <= set(heard)


def one_chain(seen: Evidence) -> bool:
    """From the last checkpoint, parents lead through both processes to the input."""
    if seen.booked is None:
        return False
    chain = seen.chain(id_of(seen.booked))
    writers = [who for who, _ in groupby(row.metadata_["worker"] for row in chain)]
    return writers == ["second", "first"] and chain[-1].metadata_["source"] == "input"


def each_call_answered(seen: Evidence) -> bool:
    """The ids of the tool calls and of the tools' answers are the same list."""
    if seen.booked is None:
        return False
    messages = seen.agent.get_state(seen.booked.config).values.get("messages", [])
    calls = [c["id"] for m in messages if isinstance(m, AIMessage) for c in m.tool_calls]
    return bool(calls) and calls == [m.tool_call_id for m in messages if isinstance(m, ToolMessage)]


def forked(seen: Evidence) -> bool:
    """The thread's head descends from the fork point by an update, and the fork bought nothing."""
    chain = seen.chain(id_of(seen.agent.get_state(config_of(seen.thread))))
    updates = [r.parent_checkpoint_id for r in chain if r.metadata_["source"] == "update"]
    bought = {e.task for e in seen.journal.read() if e.worker == "fork"} & {
        "charge_card",
        "hold_seat",
    }
    return updates == [seen.fork_point] and not bought


def first_branch_unchanged(seen: Evidence) -> bool:
    """The second process's last checkpoint still reads as it did before the fork."""
    return seen.booked is not None and seen.agent.get_state(seen.booked.config) == seen.booked


def both_colours_agree(seen: Evidence) -> bool:
    """`get_state` and `aget_state` are equal, and the saver lists all the checkpoints there are."""
    config = config_of(seen.thread)
    saver = cast(SQLAlchemySaver, seen.agent.checkpointer)
    listed = sum(1 for _ in saver.list({"configurable": {"thread_id": seen.thread}}))
    state = asyncio.run(seen.agent.aget_state(config))
    return state == seen.agent.get_state(config) and listed == seen.counts()["checkpoints"] > 0


def id_of(state: StateSnapshot) -> str:
    """The id of a state's checkpoint, "" where it has none."""
    return str(state.config["configurable"].get("checkpoint_id", ""))


CLAIMS: tuple[tuple[str, Callable[[Evidence], bool]], ...] = (
    ("a human was asked before money was spent; question and answer are stored", asked_first),
    ("SIGKILL ended process 1 while a task was running", killed_in_flight),
    ("no task that had finished ran again", nothing_twice),
    ("the card was charged once: process 2's answer has process 1's receipt", charged_once),
    ("the subgraph went on at its second step", subgraph_went_on),
    ("the checkpoints of both processes are one chain", one_chain),
    ("every tool call has exactly one answer", each_call_answered),
    ("the fork continued an old checkpoint and bought nothing", forked),
    ("the first branch reads as it did before the fork", first_branch_unchanged),
    ("sync and async read the same, and list() finds every row", both_colours_agree),
)


def verify(seen: Evidence) -> list[tuple[str, bool]]:
    """Every claim in words, and whether it held; one whose rows cannot be read did not."""
    return [(words, _held(claim, seen)) for words, claim in CLAIMS]


def _held(claim: Callable[[Evidence], bool], seen: Evidence) -> bool:
    try:
        return claim(seen)
    except CheckpointError:
        return False
