"""How much is measured: enough to tell, or just enough to see that everything runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """How often, and on how large a state.

    Attributes:
        steps: lengths of the conversations of W1, W3 and W4.
        messages_per_step: messages of 600 characters that a step appends.
        short_threads: conversations of six messages, for what is small.
        rounds: samples of a single call.
        history: the longest conversation whose whole history is listed.
        supersteps, invokes: of the agent of W5.
        agents, agent_messages, turns: threads that agents of W5 run on in turn, the messages that
            each begins with, and how often each runs.
        callers, caller_steps, crowd_rounds: of W6.
        items, changes: messages (or keys) in a value of W7, and how often it changes.
        link_rounds: samples of a call over the link of W8.
        link_ms: what a round trip over that link takes, in milliseconds.
        seed: of the order within the rounds.
    """

    steps: tuple[int, ...] = (50, 200, 500, 2000)
    messages_per_step: int = 1
    short_threads: int = 30
    rounds: int = 40
    history: int = 200
    supersteps: int = 10
    invokes: int = 20
    agents: int = 30
    agent_messages: int = 200
    turns: int = 2
    callers: int = 16
    caller_steps: int = 6
    crowd_rounds: int = 11
    items: int = 1130
    changes: int = 12
    link_rounds: int = 15
    link_ms: int = 20
    seed: int = 7


SMOKE = Scale(
    steps=(12, 24),
    short_threads=2,
    rounds=4,
    history=24,
    supersteps=2,
    invokes=1,
    agents=2,
    agent_messages=20,
    turns=1,
    callers=4,
    caller_steps=2,
    crowd_rounds=2,
    items=40,
    changes=3,
    link_rounds=2,
    link_ms=2,
)
