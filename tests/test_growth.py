"""Append logs: every version reads back exactly, and costs about what it grew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_orm.growth import (
    LARGE,
    THRESHOLD,
    Channel,
    Grown,
    Known,
    Manifest,
    Memory,
    Span,
    assemble,
    plan,
    renewed,
)
from ckpt_orm.growth.likeness import common_back, common_front, runs

MESSAGES = Channel("thread", "", "messages")


@dataclass
class Chain:
    tip: bytes
    length: int
    rows: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Database:
    """What the tables of append logs promise, in dictionaries."""

    versions: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    chains: dict[bytes, Chain] = field(default_factory=dict)
    written: int = 0

    def write(self, version: str, tag: str, grown: Grown) -> bool:
        """Whether the chain was as expected; nothing is written where it was not."""
        chain = self.chains.get(grown.manifest.chain)
        if (chain.tip if chain else None) != grown.expects:
            return False
        chain = self.chains.setdefault(grown.manifest.chain, Chain(b"", 0))
        if grown.folds:
            assert grown.start in chain.rows, "a fold begins where a row begins"
            chain.rows = {start: data for start, data in chain.rows.items() if start < grown.start}
        else:
            assert grown.start == chain.length
        if grown.data:
            assert grown.start not in chain.rows
            chain.rows[grown.start] = grown.data
        chain.tip, chain.length = grown.end.tip, grown.end.length
        assert sum(map(len, chain.rows.values())) == chain.length
        self.versions[version] = f"{tag}+log", grown.manifest.encode()
        self.written += len(grown.data) + len(grown.manifest.encode())
        return True

    def read(self, version: str, *, with_chain: bool = True) -> tuple[bytes, Known]:
        tag, blob = self.versions[version]
        if not tag.endswith("+log"):
            return blob, Known.whole(version, tag, blob)
        manifest = Manifest.decode(blob)
        chain = self.chains[manifest.chain]
        first, last = manifest.reach
        rows = sorted(
            (start, data)
            for start, data in chain.rows.items()
            if start + len(data) > first and start < last
        )
        payload = assemble(manifest, rows)
        end = {"length": chain.length, "tip": chain.tip} if with_chain else {}
        starts = [start for start, _ in rows]
        return payload, Known.read(version, tag[:-4], payload, manifest, starts, **end)


class Process:
    """Stores and reads as a saver does."""

    def __init__(self, database: Database, fold: int | None = 16, **bounds: int) -> None:
        self.database = database
        self.fold = fold
        self.memory = Memory(**bounds)
        self.plans: list[str] = []

    def put(
        self, version: str, payload: bytes, parent: str | None = None, tag: str = "msgpack"
    ) -> None:
        grown = plan(tag, payload, self.memory.recall(MESSAGES, parent), fold=self.fold)
        if grown is None:
            self.plans.append("whole")
            self.database.versions[version] = tag, payload
            self.database.written += len(payload)
            self.memory.remember(MESSAGES, Known.whole(version, tag, payload))
            return
        self.plans.append("append" if grown.expects else "new")
        if not self.database.write(version, tag, grown):
            self.plans[-1] = "lost"
            grown = renewed(payload)
            assert self.database.write(version, tag, grown)
        self.memory.remember(MESSAGES, grown.known(version, tag, payload))

    def get(self, version: str, *, with_chain: bool = True) -> bytes:
        payload, known = self.database.read(version, with_chain=with_chain)
        self.memory.remember(MESSAGES, known)
        return payload


def message(number: int, size: int = 600) -> msgpack.ExtType:
    words = random.Random(number)
    text = "".join(words.choices("abcdefghij klmnop", k=size))
    return msgpack.ExtType(5, msgpack.packb(["messages", "Human", {"content": text, "id": number}]))


def packed(value: Any) -> bytes:
    found: bytes = msgpack.packb(value)
    return found


# Histories


@st.composite
def histories(draw: st.DrawFn) -> Iterator[Any]:
    """Changes of a value, each with who stores it and from which earlier version."""
    change = st.tuples(
        st.sampled_from(
            "append append append edit remove trim insert reverse nest dict type shrink same".split()
        ),
        st.integers(0, 2**32),
    )
    step = st.tuples(
        change,
        st.integers(0, 2),  # the process
        st.sampled_from(["newest", "newest", "newest", "older"]),
        st.sampled_from(["remembers", "reads", "reads without the chain"]),
        st.booleans(),  # whether the transaction is rolled back, unknown to the process
    )
    return draw(st.lists(step, min_size=1, max_size=40))


def changed(value: Any, kind: str, seed: int) -> Any:
    """A later value: a list of messages, or a dict with one in it."""
    rng = random.Random(seed)
    if kind == "type":
        return (
            [message(seed + i, 300) for i in range(20)]
            if rng.random() < 0.5
            else "x" * rng.randrange(9000)
        )
    if kind == "dict":
        found = dict(value) if isinstance(value, dict) else {"messages": value, "step": 0}
        return found | {
            "step": rng.randrange(10**9),
            f"key{rng.randrange(5)}": rng.randbytes(rng.choice([5, 500])),
        }
    if isinstance(value, dict):
        return value | {"messages": changed(value["messages"], kind, seed)}
    items = list(value) if isinstance(value, list) else [value]
    at = rng.randrange(len(items) + 1)
    new = message(seed, rng.choice([3, 40, 600, 5000]))
    if kind == "append":
        return [
            *items,
            *(message(seed + i, rng.choice([3, 600])) for i in range(rng.choice([1, 1, 2, 20]))),
        ]
    if kind == "nest":
        return [*items[:at], [items[at:], new]]
    if kind == "reverse":
        return items[::-1]
    if kind == "shrink":
        return items[: max(1, len(items) // 4)]
    if kind == "trim":
        return [*items[1:], new]
    if kind == "insert":
        return [*items[:at], new, *items[at:]]
    if kind == "edit":
        return [*items[:at], new, *items[at + 1 :]]
    if kind == "remove":
        return [*items[:at], *items[at + 1 :]]
    return items


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.sampled_from([None, 2, 16]), st.sampled_from([0, 20_000, 10**8]))
def test_every_version_reads_back_exactly(steps: Any, fold: int | None, payload_bytes: int) -> None:
    database = Database()
    processes = [Process(database, fold, payload_bytes=payload_bytes) for _ in range(3)]
    values: dict[str, Any] = {"0": [message(i, 400) for i in range(30)]}
    processes[0].put("0", packed(values["0"]))
    for number, ((kind, seed), who, which, how, rolled_back) in enumerate(steps, 1):
        process = processes[who]
        parent = str(seed % number) if which == "older" else max(values, key=int)
        if parent not in values:
            continue
        if how != "remembers":
            process.get(parent, with_chain=how == "reads")
        before = {name: Chain(c.tip, c.length, dict(c.rows)) for name, c in database.chains.items()}
        value = changed(values[parent], kind, seed)
        process.put(str(number), packed(value), parent)
        if rolled_back:
            database.chains = before
            del database.versions[str(number)]
        else:
            values[str(number)] = value
        for version, expected in values.items():
            assert database.read(version)[0] == packed(expected)
