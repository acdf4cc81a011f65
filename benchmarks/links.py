"""W8: a Postgres server a link away, where it is round trips that count, and they are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.contestants import Arena
from benchmarks.conversation import Conversation
from benchmarks.proxy import Link, link
from benchmarks.results import Row, counts, times
from benchmarks.sampling import Rounds
from benchmarks.scale import Scale

#: The calls whose round trips are counted, as methods of a conversation.
CALLS = ("get_tuple", "put", "put_writes")

#: Calls after which every driver has prepared what it prepares.
WARM_UP = 8


def measure(arena: Arena, scale: Scale) -> Iterator[Row]:
    """Two rows for each call and colour: its time, and its round trips."""
    if arena.server is None or arena.database != "postgres":
        return
    with link(arena.server, scale.link_ms / 1000) as far:
        for colour in ("sync", "async"):
            yield from _measure(arena, scale, colour, far)


def _measure(arena: Arena, scale: Scale, colour: str, far: Link) -> Iterator[Row]:
    with arena.contestants(colour, through=far.url) as contestants:
        threads = {n: Conversation("far", found.called) for n, found in contestants.items()}
        rounds = Rounds(scale.seed)
        for thread in threads.values():
            thread.put()
        for method in CALLS:
            calls = {name: getattr(thread, method) for name, thread in threads.items()}
            rounds.take(calls, 0, WARM_UP)
            samples = rounds.take(calls, scale.link_rounds, warm_up=0)
            turns = {name: _turns(call, far, scale.link_rounds) for name, call in calls.items()}
            label = f"{method} over {scale.link_ms} ms"
            yield times("W8", label, arena.database, samples, colour)
            yield counts("W8", f"{method}, round trips", arena.database, "", turns, colour)


def _turns(call: Callable[[], float], far: Link, rounds: int) -> float:
    """The round trips of a call."""
    before = far.turns
    for _ in range(rounds):
        call()
    return (far.turns - before) / rounds
