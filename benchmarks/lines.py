"""W1-W4: what the calls of one conversation cost as it grows, and what it leaves on the disk.

A short thread of six messages is what most threads are; long ones show what grows with the length.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.contestants import Arena, Contestant
from benchmarks.conversation import Conversation
from benchmarks.floor import BareConversation
from benchmarks.results import Curve, Row, counts, times
from benchmarks.sampling import FLOOR, Rounds, Samples
from benchmarks.scale import Scale

#: Steps of a short thread.
SHORT = 6

#: Calls of what is slow enough to tell from a few.
FEW = 7

#: The longest conversation that the floor takes part in, whose ratios say all it has to say.
FLOOR_STEPS = 500

#: The longest conversation of which twenty checkpoints are listed: each has the whole list.
LIST_STEPS = 500

#: Points of a curve.
POINTS = 25

Threads = dict[str, Conversation]


def measure(arena: Arena, scale: Scale, cases: Sequence[str]) -> Iterator[Row]:
    """The rows of those of W1 to W4 that are asked for."""
    grown: dict[int, dict[str, float]] = {}
    with arena.contestants(floor=True) as contestants:
        _warm_up(contestants, scale)
        yield from (row for row in _short(arena, contestants, scale) if row.case in cases)
        for steps in scale.steps if {"W1", "W3", "W4"} & set(cases) else ():
            threads = _threads(contestants, f"steps-{steps}", scale)
            if steps > FLOOR_STEPS:
                threads.pop(FLOOR)
            before = _stored(contestants)
            samples = put_all(threads, steps, Rounds(scale.seed))
            after = _stored(contestants)
            stored = {name: after[name] - before[name] for name in threads}
            grown[steps] = {name: found / steps for name, found in stored.items()}
            if "W1" in cases:
                yield from _puts(arena.database, steps, samples)
                yield counts(
                    "W1", f"bytes stored, {steps:,} steps", arena.database, "bytes", stored
                )
            yield from (row for row in _reads(arena, threads, scale) if row.case in cases)
        if "W1" in cases:
            yield from _growth(arena.database, grown)


def put_all(threads: Threads, steps: int, rounds: Rounds) -> Samples:
    """Every conversation, so many steps on."""
    samples: Samples = {}
    calls = {name: thread.put for name, thread in threads.items()}
    for _ in range(steps):
        rounds.once(calls, samples)
    return samples


def _threads(contestants: dict[str, Contestant], thread: str, scale: Scale) -> Threads:
    """The same conversation with each contestant."""
    return {
        name: (BareConversation if name == FLOOR else Conversation)(
            thread, contestant.called, scale.messages_per_step
        )
        for name, contestant in contestants.items()
    }


def _warm_up(contestants: dict[str, Contestant], scale: Scale) -> None:
    """Each call often enough that every driver has prepared what it prepares."""
    for thread in _threads(contestants, "warm", scale).values():
        for call in (*[thread.put] * 8, *[thread.put_writes] * 8, *[thread.get_tuple] * 8):
            call()


def _short(arena: Arena, contestants: dict[str, Contestant], scale: Scale) -> list[Row]:
    """Many short threads: W1, W2 and W3 where little is stored."""
    puts: Samples = {}
    rounds = Rounds(scale.seed)
    for number in range(scale.short_threads):
        threads = _threads(contestants, f"short-{number}", scale)
        for name, taken in put_all(threads, SHORT, rounds).items():
            puts.setdefault(name, []).extend(taken)
    reads = rounds.take({n: thread.get_tuple for n, thread in threads.items()}, scale.rounds)
    writes = rounds.take({n: thread.put_writes for n, thread in threads.items()}, scale.rounds)
    return [
        times("W1", f"put, {SHORT} messages", arena.database, puts),
        times("W2", "put_writes(3)", arena.database, writes),
        times("W3", "get_tuple, small", arena.database, reads),
    ]


def _puts(database: str, steps: int, samples: Samples) -> Iterator[Row]:
    curves = {name: _curve(taken) for name, taken in samples.items()}
    yield times("W1", f"put, {steps:,} steps", database, samples, curves=curves)
    last = {name: taken[steps * 4 // 5 :] for name, taken in samples.items()}
    yield times("W1", f"put, last 20 % of {steps:,} steps", database, last)


def _curve(taken: list[float]) -> Curve:
    """Medians of stretches of a run, in milliseconds, by the step each stretch ends at."""
    width = max(1, len(taken) // POINTS)
    return [
        (start + width, statistics.median(taken[start : start + width]) * 1000)
        for start in range(0, len(taken) - width + 1, width)
    ]


def _reads(arena: Arena, threads: Threads, scale: Scale) -> Iterator[Row]:
    steps = next(iter(threads.values())).step
    rounds = Rounds(scale.seed)
    # What takes longer needs fewer samples to tell.
    number = min(scale.rounds, max(FEW, scale.rounds * 500 // steps))
    samples = rounds.take({name: thread.get_tuple for name, thread in threads.items()}, number)
    yield times("W3", f"get_tuple, {steps:,} steps", arena.database, samples)
    if steps <= LIST_STEPS:
        samples = rounds.take(_lists(threads, 20), min(number, FEW))
        yield times("W4", f"list(20), {steps:,} steps", arena.database, samples)
    if 20 < steps <= scale.history:
        samples = rounds.take(_lists(threads, steps), min(number, FEW))
        yield times("W4", f"history of {steps}", arena.database, samples)


def _lists(threads: Threads, limit: int) -> dict[str, Callable[[], float]]:
    return {
        name: lambda thread=thread: thread.list(limit)
        for name, thread in threads.items()
        if name != FLOOR
    }


def _stored(contestants: dict[str, Contestant]) -> dict[str, float]:
    return {name: contestant.bytes_stored() for name, contestant in contestants.items()}


def _growth(database: str, grown: dict[int, dict[str, float]]) -> Iterator[Row]:
    """How many times the bytes a step costs have become, from one length to a longer one."""
    if len(grown) < 2:
        return
    longest = max(grown)
    base = 500 if 500 in grown and longest > 500 else min(grown)
    found = {name: grown[longest][name] / grown[base][name] for name in grown[longest]}
    what = f"growth of bytes per step, {base:,} to {longest:,} steps"
    yield counts("W1", what, database, "times", found)
