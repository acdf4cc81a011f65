"""What is measured: one thread of a conversation, step by step, as LangGraph saves it.

A step appends one message of about 600 characters to a list, changes two of six small channels, and
calls what the engine calls. Every payload is made by LangGraph's own serializer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6

#: Seconds of each call, by operation.
Samples = dict[str, list[float]]


@dataclass
class Conversation:
    """A thread that grows by a message a step."""

    thread_id: str
    saver: Any
    messages: list[Any] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    step: int = 0

    def __post_init__(self) -> None:
        self.config = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}

    def advance(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """The next checkpoint, its metadata and new_versions, made outside of what is measured."""
        self.step += 1
        kind = HumanMessage if self.step % 2 else AIMessage
        words = random.Random(self.step).choices(
            ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"], k=105
        )
        self.messages.append(kind(" ".join(words)[:600], id=f"message-{self.step}"))
        changed = ["messages", "turn", "summary"]
        if self.step == 1:
            changed += ["user", "language", "flags", "score"]
        version = self.saver.get_next_version(max(self.versions.values(), default=None), None)
        new = dict.fromkeys(changed, version)
        self.versions |= new
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=self.step)),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {
                "messages": list(self.messages),
                "turn": self.step,
                "summary": f"turn {self.step}",
                "user": "u-1",
                "language": "en",
                "flags": {"beta": True},
                "score": 0.5,
            },
            "channel_versions": dict(self.versions),
            "versions_seen": {"agent": dict(self.versions), "tools": dict(self.versions)},
            "updated_channels": sorted(changed),
        }
        metadata = {"source": "loop", "step": self.step, "parents": {}}
        return checkpoint, metadata, new

    def put(self) -> float:
        """Save the next checkpoint; the seconds it took."""
        checkpoint, metadata, new = self.advance()
        begin = time.perf_counter()
        self.config = self.saver.put(self.config, checkpoint, metadata, new)
        return time.perf_counter() - begin

    def put_writes(self) -> float:
        """Save three writes of a task; the seconds it took."""
        writes = [("messages", self.messages[-1]), ("turn", self.step), ("branch:to:tools", None)]
        begin = time.perf_counter()
        self.saver.put_writes(self.config, writes, str(uuid6(clock_seq=1)), "~__pregel_pull, agent")
        return time.perf_counter() - begin

    def get_tuple(self) -> float:
        """Load the latest checkpoint; the seconds it took."""
        latest = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}
        begin = time.perf_counter()
        found = self.saver.get_tuple(latest)
        took = time.perf_counter() - begin
        assert len(found.checkpoint["channel_values"]["messages"]) == len(self.messages)
        return took

    def list(self, limit: int) -> float:
        """List the latest checkpoints; the seconds it took."""
        config = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}
        begin = time.perf_counter()
        found = list(self.saver.list(config, limit=limit))
        took = time.perf_counter() - begin
        assert len(found) == min(limit, self.step)
        return took


def conversation(steps: int, every: int, savers: dict[str, Any]) -> dict[str, Samples]:
    """Both savers through the same conversation, in random order at each step."""
    threads = {name: Conversation(f"steps-{steps}", saver) for name, saver in savers.items()}
    samples: dict[str, Samples] = {name: {} for name in savers}
    order = list(threads)
    for step in range(1, steps + 1):
        random.shuffle(order)
        for name in order:
            _note(samples[name], "put", threads[name].put)
            if step > steps * 0.8:
                samples[name].setdefault("put, last 20 %", []).append(samples[name]["put"][-1])
            if step % every == 0:
                _note(samples[name], "put_writes(3)", threads[name].put_writes)
                _note(samples[name], "get_tuple", threads[name].get_tuple)
    for _ in range(7):
        random.shuffle(order)
        for name in order:
            _note(samples[name], "list(20)", lambda name=name: threads[name].list(20))
    return samples


def _note(samples: Samples, operation: str, call: Callable[[], float]) -> None:
    samples.setdefault(operation, []).append(call())
