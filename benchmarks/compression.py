"""`python -m benchmarks.compression`: what compressing saves and costs, and append logs beside it.

Our saver, each time on a database of its own: values stored whole or as logs, by LangGraph's
serializer or by one that compresses. There are two kinds of threads: one whose list of messages
grows, and those whose large value is another one at each step, of which logs have nothing to share.
All are compared with the first way, whole and not compressed. They are called in turn, in random
order; a table for each database is printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import postgres_database, postgres_server
from sqlalchemy import URL, make_url

from benchmarks.contestants import Contestant
from benchmarks.conversation import Conversation, message, timed, words
from benchmarks.sampling import OFFICIAL, OURS, Rounds, Samples, spread
from ckpt_orm import SQLAlchemySaver
from ckpt_orm.compression import compressed

#: What is compared, the first one with all others.
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"growth": "whole"},
    "whole, zstd": {"growth": "whole", "serde": compressed()},
    "logs": {"growth": "append"},
    "logs, zstd": {"growth": "append", "serde": compressed()},
}

WHOLE = ["whole", "whole, zstd"]


def _records(number: int, size: int) -> list[dict[str, Any]]:
    """What a query of a database returns, as a tool hands it on."""
    made = random.Random(number)
    return [
        {"id": made.randrange(10**9), "name": words(made.randrange(10**9), 20), "at": made.random()}
        for _ in range(size // 60)
    ]


def _numbers(made: random.Random, size: int) -> list[float]:
    return [made.random() for _ in range(size // 9)]


#: Values of about so many bytes, another one for each number.
VALUES: dict[str, Callable[[int, int], Any]] = {
    "messages": lambda number, size: [
        message(number * 10_000 + item) for item in range(size // 770)
    ],
    "records": _records,
    "random numbers": lambda number, size: _numbers(random.Random(number), size),
}


def growing(savers: dict[str, Contestant], steps: int, rounds: int) -> dict[str, Samples]:
    """The puts of the last fifth of a conversation, and the loads of its end."""
    lines = {name: Conversation("grows", found.saver) for name, found in savers.items()}
    taken = Rounds(7)
    puts = {name: line.put for name, line in lines.items()}
    taken.take(puts, 0, warm_up=steps - steps // 5)
    samples = {"put": taken.take(puts, steps // 5, warm_up=0)}
    gets = {name: line.get_tuple for name, line in lines.items()}
    return samples | {"get": taken.take(gets, rounds)}


def changing(
    savers: dict[str, Contestant], kind: str, size: int, rounds: int
) -> dict[str, Samples]:
    """Puts of a value that is another one each time, and the load after each."""
    lines = {name: Conversation(f"{kind} {size}", found.saver) for name, found in savers.items()}
    taken, puts, gets = Rounds(7), Samples(), Samples()
    for number in range(rounds + 2):
        value = VALUES[kind](number, size)
        counted = number >= 2
        save = {name: _saved(line, value) for name, line in lines.items()}
        taken.once(save, puts if counted else {})
        load = {name: _loaded(line, value) for name, line in lines.items()}
        taken.once(load, gets if counted else {})
    return {"put": puts, "get": gets}


def _saved(line: Conversation, value: Any) -> Callable[[], float]:
    line.step += 1
    made = line.checkpoint({"value": value}, ["value"])
    return lambda: line.save(*made)


def _loaded(line: Conversation, value: Any) -> Callable[[], float]:
    def load() -> float:
        found: list[Any] = []
        took = timed(lambda: found.append(line.saver.get_tuple(line.latest)))
        assert found[0].checkpoint["channel_values"]["value"] == value
        return took

    return load


def told(what: str, stored: dict[str, int], samples: dict[str, Samples]) -> Iterator[str]:
    """A line of the table for each way."""
    for name in stored:
        cells = [what, name, f"{stored[name] / 1e6:.2f} MB"]
        cells += [_cell(samples[call], name) for call in ("put", "get")]
        yield f"| {' | '.join(cells)} |"


def _cell(samples: Samples, name: str) -> str:
    own, first = samples[name], samples[next(iter(WAYS))]
    median = statistics.median(own)
    low, high = spread({OURS: own, OFFICIAL: first}) or (0.0, 0.0)
    ratio = median / statistics.median(first)
    return f"{median * 1e3:.2f} ms | {ratio:.2f} ({low:.2f}-{high:.2f})"


def measure(
    new_database: Callable[[ExitStack], URL], steps: int, sizes: list[int], rounds: int
) -> None:
    """Print a database's table."""
    print("| what | stored | size | put | ratio | get | ratio |\n|---|---|---|---|---|---|---|")
    with savers_on(new_database, list(WAYS)) as savers:
        samples = growing(savers, steps, rounds)
        _print(f"a list that grows to {steps} messages", savers, samples)
    for kind in VALUES:
        for size in sizes:
            with savers_on(new_database, WHOLE) as savers:
                samples = changing(savers, kind, size, rounds)
                _print(f"{kind}, {size / 1000:.0f} KB, all new", savers, samples)


def _print(what: str, savers: dict[str, Contestant], samples: dict[str, Samples]) -> None:
    stored = {name: found.bytes_stored() for name, found in savers.items()}
    print("\n".join(told(what, stored, samples)), flush=True)


@contextmanager
def savers_on(
    new_database: Callable[[ExitStack], URL], ways: list[str]
) -> Iterator[dict[str, Contestant]]:
    """A saver for each way, on a new database."""
    with ExitStack() as stack:
        found = {}
        for name in ways:
            url = new_database(stack)
            saver = stack.enter_context(SQLAlchemySaver.from_url(url, **WAYS[name]))
            saver.setup()
            found[name] = Contestant(name, saver, url)
        yield found


def _file(stack: ExitStack) -> URL:
    return make_url(f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/a.db")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16_000, 900_000])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    options = parser.parse_args(arguments)
    given = options.steps, options.sizes, options.rounds
    for database in options.databases:
        print(f"\n{database}\n")
        if database == "sqlite":
            measure(_file, *given)
            continue
        with postgres_server(fsync=True) as server:
            measure(lambda stack: stack.enter_context(postgres_database(server)), *given)


if __name__ == "__main__":
    main()
