"""A thread of a conversation, step by step, as LangGraph saves it.

A step appends messages of about 600 characters to a list, changes two of six small channels, and
calls what the engine calls. Every payload is made by LangGraph's own serializer. A checkpoint is
what the engine makes of a graph of two nodes that take turns: of their own channels, one has been
used up by the node that ran, and the other makes the next node run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6

#: Characters of a message.
LENGTH = 600

#: The nodes of the graph, which take turns.
NODES = ("agent", "tools")

#: The node whose task writes.
TASK_PATH = "~__pregel_pull, agent"


def _vocabulary() -> list[str]:
    """Made-up words of two to nine letters, always the same."""
    made = random.Random(0)
    return ["".join(made.choices("eaiontsrhldcumpf", k=made.randint(2, 9))) for _ in range(4000)]


VOCABULARY = _vocabulary()

#: A few words make up much of the text, as in prose, so that it compresses as prose does: Postgres'
#: own compression makes half of a conversation.
FREQUENCIES = list(accumulate(rank**-0.8 for rank in range(1, len(VOCABULARY) + 1)))


def words(seed: int, length: int = LENGTH) -> str:
    """Text of so many characters, the same for the same seed."""
    chosen = random.Random(seed).choices(VOCABULARY, cum_weights=FREQUENCIES, k=length // 3)
    return " ".join(chosen)[:length]


def message(number: int) -> Any:
    """The message of that number: people and models take turns."""
    kind = HumanMessage if number % 2 else AIMessage
    return kind(words(number), id=f"message-{number}")


def timed(call: Callable[..., Any], *args: Any) -> float:
    """The seconds a call takes."""
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin


@dataclass
class Conversation:
    """A thread that grows by some messages a step.

    Each method does one thing and returns the seconds it took; what a call is given is made before
    the clock starts.
    """

    thread_id: str
    saver: Any
    messages_per_step: int = 1
    messages: list[Any] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    tasks: int = 0

    def __post_init__(self) -> None:
        self.config = self.latest

    @property
    def latest(self) -> dict[str, Any]:
        """The config that names the thread, and no checkpoint."""
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}

    def advance(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """The next checkpoint, its metadata and new_versions."""
        self.step += 1
        first = (self.step - 1) * self.messages_per_step + 1
        self.messages += [message(first + i) for i in range(self.messages_per_step)]
        changed = ["messages", "turn", "summary"]
        if self.step == 1:
            changed += ["user", "language", "flags", "score"]
        values = {
            "messages": list(self.messages),
            "turn": self.step,
            "summary": f"turn {self.step}",
            "user": "u-1",
            "language": "en",
            "flags": {"beta": True},
            "score": 0.5,
        }
        return self.checkpoint(values, changed)

    def checkpoint(
        self, values: dict[str, Any], changed: list[str]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """A checkpoint of these values, of which some have changed."""
        ran, runs = NODES[(self.step + 1) % 2], NODES[self.step % 2]
        if not self.versions:
            self._begin(ran)
        self.seen[ran] = {f"branch:to:{ran}": self.versions[f"branch:to:{ran}"]}
        version = self.saver.get_next_version(max(self.versions.values()), None)
        turns = [f"branch:to:{node}" for node in (ran, runs)]
        new = dict.fromkeys([*changed, *turns], version)
        self.versions |= new
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=self.step)),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values | {f"branch:to:{runs}": None},
            "channel_versions": dict(self.versions),
            "versions_seen": dict(self.seen),
            "updated_channels": sorted([*changed, f"branch:to:{runs}"]),
        }
        return checkpoint, {"source": "loop", "step": self.step, "parents": {}}, new

    def _begin(self, node: str) -> None:
        """What the engine has noted by the time that the first node runs."""
        first = self.saver.get_next_version(None, None)
        self.seen = {"__input__": {}, "__start__": {"__start__": first}}
        second = self.saver.get_next_version(first, None)
        self.versions = {"__start__": second, f"branch:to:{node}": second}

    def task_writes(self) -> tuple[list[tuple[str, Any]], str]:
        """Three writes of a task, and the id of that task."""
        self.tasks += 1
        writes = [("messages", self.messages[-1]), ("turn", self.step), ("branch:to:tools", None)]
        return writes, str(uuid6(clock_seq=self.tasks))

    def put(self) -> float:
        """Save the next checkpoint."""
        return self.save(*self.advance())

    def save(
        self, checkpoint: dict[str, Any], metadata: dict[str, Any], new: dict[str, str]
    ) -> float:
        """Save a checkpoint as the thread's latest."""
        begin = time.perf_counter()
        self.config = self.saver.put(self.config, checkpoint, metadata, new)
        return time.perf_counter() - begin

    def put_writes(self) -> float:
        """Save three writes of a task."""
        writes, task = self.task_writes()
        return timed(self.saver.put_writes, self.config, writes, task, TASK_PATH)

    def get_tuple(self) -> float:
        """Load the latest checkpoint."""
        begin = time.perf_counter()
        found = self.saver.get_tuple(self.latest)
        took = time.perf_counter() - begin
        assert len(found.checkpoint["channel_values"]["messages"]) == len(self.messages)
        return took

    def list(self, limit: int) -> float:
        """List the latest checkpoints."""
        begin = time.perf_counter()
        found = list(self.saver.list(self.latest, limit=limit))
        took = time.perf_counter() - begin
        assert len(found) == min(limit, self.step)
        return took
