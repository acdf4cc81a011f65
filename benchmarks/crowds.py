"""W6: sixteen callers at once, each on a thread of its own, on one saver.

A caller puts some checkpoints, each with the writes of a task, and loads the last one. Counted is
how many calls a second all of them get through; here a ratio above 1 is better.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from benchmarks.contestants import Arena, Contestant
from benchmarks.conversation import TASK_PATH, Conversation
from benchmarks.floor import BareConversation
from benchmarks.results import Row
from benchmarks.sampling import FLOOR, Rounds, Samples, figure, ratio, spread
from benchmarks.scale import Scale

#: What a caller does: (checkpoint, metadata, new_versions, writes, task id) for each step.
Script = list[tuple[Any, ...]]


def script(saver: Any, thread: str, steps: int) -> tuple[dict[str, Any], Script]:
    """Where a caller starts, and what it will do, made before the clock starts."""
    line = Conversation(thread, saver)
    return line.latest, [(*line.advance(), *line.task_writes()) for _ in range(steps)]


def follow(saver: Any, latest: dict[str, Any], steps: Script) -> None:
    """What a caller in a thread does."""
    config = latest
    for checkpoint, metadata, new, writes, task in steps:
        config = saver.put(config, checkpoint, metadata, new)
        saver.put_writes(config, writes, task, TASK_PATH)
    assert saver.get_tuple(latest).checkpoint["id"] == config["configurable"]["checkpoint_id"]


async def afollow(saver: Any, latest: dict[str, Any], steps: Script) -> None:
    """What a caller in a task does."""
    config = latest
    for checkpoint, metadata, new, writes, task in steps:
        config = await saver.aput(config, checkpoint, metadata, new)
        await saver.aput_writes(config, writes, task, TASK_PATH)
    found = await saver.aget_tuple(latest)
    assert found.checkpoint["id"] == config["configurable"]["checkpoint_id"]


def bare_script(floor: Any, thread: str, steps: int) -> Script:
    """What a caller of the floor will do, serialized before the clock starts."""
    line = BareConversation(thread, floor)
    found = []
    for _ in range(steps):
        checkpoint, metadata, _ = line.advance()
        found.append((line.cells(checkpoint, metadata), line.rows()))
    return found


def bare_follow(floor: Any, thread: str, steps: Script) -> None:
    """What a caller of the floor does."""
    for cells, rows in steps:
        floor.put(cells)
        floor.put_writes(rows)
    floor.get(thread)


def bare_crowd(floor: Any, scale: Scale, pool: ThreadPoolExecutor) -> Callable[[], float]:
    """`crowd` without a saver: on Postgres each caller has a connection of its own."""
    numbers, floors = count(), [floor.beside() for _ in range(scale.callers)]

    def call() -> float:
        threads = [f"caller-{next(numbers)}" for _ in floors]
        scripts = [bare_script(floor, thread, scale.caller_steps) for thread in threads]
        begin = time.perf_counter()
        list(pool.map(bare_follow, floors, threads, scripts))
        return time.perf_counter() - begin

    return call


def crowd(contestant: Contestant, scale: Scale, pool: ThreadPoolExecutor) -> Callable[[], float]:
    """A call that lets all callers loose, on new threads each time, and returns the seconds."""
    numbers = count()
    saver, loop = contestant.saver, contestant.loop

    async def all_tasks(scripts: list[Any]) -> None:
        await asyncio.gather(*(afollow(saver, *given) for given in scripts))

    def call() -> float:
        threads = [f"caller-{next(numbers)}" for _ in range(scale.callers)]
        scripts = [script(saver, thread, scale.caller_steps) for thread in threads]
        begin = time.perf_counter()
        if loop is None:
            list(pool.map(lambda given: follow(saver, *given), scripts))
        else:
            loop.run_until_complete(all_tasks(scripts))
        return time.perf_counter() - begin

    return call


def measure(arena: Arena, scale: Scale) -> Iterator[Row]:
    """One row for each colour."""
    for colour in ("sync", "async"):
        with (
            arena.contestants(colour, floor=colour == "sync") as contestants,
            ThreadPoolExecutor(scale.callers) as pool,
        ):
            calls = {
                name: bare_crowd(contestant.saver, scale, pool)
                if name == FLOOR
                else crowd(contestant, scale, pool)
                for name, contestant in contestants.items()
            }
            samples = Rounds(scale.seed).take(calls, scale.crowd_rounds)
        yield _throughput(arena.database, scale, colour, samples)


def _throughput(database: str, scale: Scale, colour: str, samples: Samples) -> Row:
    calls = scale.callers * (2 * scale.caller_steps + 1)
    rates = {name: [calls / took for took in taken] for name, taken in samples.items()}
    return Row(
        "W6",
        f"{scale.callers} callers at once",
        database,
        colour,
        "calls/s",
        {name: figure(found) for name, found in rates.items()},
        ratio(rates),
        spread(rates),
    )
