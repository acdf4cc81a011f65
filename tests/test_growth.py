"""Append logs: every version reads back exactly, and costs about what it grew."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, NamedTuple

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
    planning,
    renewed,
)
from ckpt_orm.growth.likeness import common_back, common_front, runs
from ckpt_orm.growth.units import header_of

MESSAGES = Channel("thread", "", "messages")


class Row(NamedTuple):
    data: bytes
    tip: bytes


#: The rows of a chain by where they start; the tip of the last one is the chain's.
Chain = dict[int, Row]


def ends_of(rows: Chain) -> tuple[int, bytes] | None:
    """How long a chain is, and its tip."""
    last = max(rows, default=None)
    return None if last is None else (last + len(rows[last].data), rows[last].tip)


@dataclass
class Database:
    """What the tables of append logs promise, in dictionaries."""

    versions: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    chains: dict[bytes, Chain] = field(default_factory=dict)
    written: int = 0

    def write(self, version: str, tag: str, grown: Grown) -> bool:
        """Whether the chain was as expected; nothing is written where it was not."""
        rows = self.chains.get(grown.manifest.chain, {})
        end = ends_of(rows)
        if (end and end[1]) != grown.expects:
            return False
        assert grown.data
        if grown.folds:
            assert grown.start in rows, "a fold begins where a row begins"
            rows = {start: row for start, row in rows.items() if start < grown.start}
        else:
            assert grown.start == (end[0] if end else 0)
        self.chains[grown.manifest.chain] = {**rows, grown.start: Row(grown.data, grown.end.tip)}
        self.versions[version] = f"{tag}+log", grown.manifest.encode()
        self.written += len(grown.data) + len(grown.manifest.encode())
        return True

    def read(self, version: str, how: str = "reads") -> tuple[bytes, Known]:
        tag, blob = self.versions[version]
        if not tag.endswith("+log"):
            return blob, Known.whole(version, tag, blob)
        manifest = Manifest.decode(blob)
        chain = self.chains[manifest.chain]
        rows = {start: row for start, row in chain.items() if start < manifest.reach.stop}
        payload = assemble(manifest, ((start, rows[start].data) for start in sorted(rows)))
        length, tip = {
            "reads": ends_of(rows),
            "reads with the end": ends_of(chain),
            "reads without the end": None,
        }[how] or (None, None)
        known = Known.read(
            version, tag[:-4], payload, manifest, sorted(rows), length=length, tip=tip
        )
        return payload, known


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
        bases = self.memory.recall(MESSAGES, parent)
        grown = plan(tag, payload, bases, fold=self.fold)
        the_short_way_leads_where_the_long_one_does(tag, payload, bases)
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

    def get(self, version: str, how: str = "reads") -> bytes:
        payload, known = self.database.read(version, how)
        self.memory.remember(MESSAGES, known)
        return payload


def the_short_way_leads_where_the_long_one_does(
    tag: str, payload: bytes, bases: Sequence[Known]
) -> None:
    for base in bases:
        if base.tag != tag or not base.manifest or not base.end:
            continue
        shared = [planning._body(base, header_of(tag, payload))] if base.begins(payload) else None
        if shared is None and base.payload is not None:
            shared = runs(tag, base.payload, payload, planning._most_pieces(len(payload)))
        if shared is not None:
            found = planning.continued(payload, base, base.manifest, base.end, shared)
            pieces = planning.pieces_of(payload, base.manifest, shared)
            assert found in (None, planning.placed(pieces, base.end.length))


def message(number: int, size: int = 600) -> msgpack.ExtType:
    words = random.Random(number)
    text = "".join(words.choices("abcdefghij klmnop", k=size))
    return msgpack.ExtType(5, msgpack.packb(["messages", "Human", {"content": text, "id": number}]))


def packed(value: Any) -> bytes:
    found: bytes = msgpack.packb(value)
    return found


# Histories


KINDS = ["append", "append", "append", "edit", "remove", "trim", "insert"]
KINDS += ["reverse", "nest", "dict", "type", "shrink", "same"]

#: A change and its seed, the process, its parent, how the parent is known, whether it is undone
#: without the process being told.
steps_of_histories = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2**32),
        st.integers(0, 2),
        st.sampled_from(["newest", "newest", "newest", "older"]),
        st.sampled_from(["remembers", "reads", "reads with the end", "reads without the end"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


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
    if rng.random() < 0.3:  # of another type and length, so of another first byte
        new = rng.choice([seed, "x" * rng.randrange(900), {"a": new}])
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
@given(steps_of_histories, st.sampled_from([None, 2, 16]), st.sampled_from([0, 20_000, 10**8]))
def test_every_version_reads_back_exactly(steps: Any, fold: int | None, payload_bytes: int) -> None:
    database = Database()
    processes = [Process(database, fold, payload_bytes=payload_bytes) for _ in range(3)]
    values: dict[str, Any] = {"0": [message(i, 400) for i in range(30)]}
    processes[0].put("0", packed(values["0"]))
    for number, (kind, seed, who, which, how, rolled_back) in enumerate(steps, 1):
        process = processes[who]
        parent = str(seed % number) if which == "older" else max(values, key=int)
        if parent not in values:
            continue
        if how != "remembers":
            process.get(parent, how)
        before = dict(database.chains)
        value = changed(values[parent], kind, seed)
        process.put(str(number), packed(value), parent)
        if rolled_back:
            database.chains = before
            del database.versions[str(number)]
        else:
            values[str(number)] = value
        for version, expected in values.items():
            assert database.read(version)[0] == packed(expected)


def test_histories_come_to_every_kind_of_plan() -> None:
    """What the property above relies on: that its steps append, fold, lose races and start anew."""
    rng, database = random.Random(1), Database()
    processes = [Process(database, fold=4) for _ in range(2)]
    value, folds = [message(i, 400) for i in range(30)], 0
    for number in range(200):
        process = rng.choice(processes)
        if number and rng.random() < 0.6:
            process.get(str(number - 1))
        rows = sum(len(chain) for chain in database.chains.values())
        process.put(str(number), packed(value), str(number - 1))
        folds += sum(len(chain) for chain in database.chains.values()) < rows
        kind = rng.choice(["append", "append", "append", "edit", "trim", "insert", "remove"])
        value = changed(value, kind, number)
    assert {"append", "new", "lost"} <= {kind for process in processes for kind in process.plans}
    assert folds > 5


# Manifests and rows


def span(start: int, size: int) -> Span:
    return Span(start, start + size)


pieces = st.lists(
    st.binary(min_size=1, max_size=80)
    | st.builds(
        lambda start, size: Span(start, start + size), st.integers(0, 2**62), st.integers(1, 2**40)
    ),
    max_size=30,
)


def manifest_of(parts: list[Any], loose: int = 0) -> Manifest:
    size = sum(part.stop - part.start if isinstance(part, Span) else len(part) for part in parts)
    return Manifest(b"c" * 16, size, loose, tuple(parts))


@given(pieces, st.integers(0, 2**63 - 1))
def test_a_manifest_comes_back(parts: list[Any], loose: int) -> None:
    manifest = manifest_of(parts, loose)
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.encode()[:16] == manifest.chain


@given(st.binary(max_size=60))
def test_bytes_that_are_no_manifest_are_a_value_error(junk: bytes) -> None:
    try:
        found = Manifest.decode(b"c" * 16 + junk)
    except ValueError:
        return
    assert Manifest.decode(found.encode()) == found


@pytest.mark.parametrize(
    "flat",
    [
        None,
        {},
        "size",
        [],
        [3],
        [3, 0],
        [3, 0, b"ab"],
        [3, 0, b"abcd"],
        [3, 0, 0, 4],
        [3, 0, 0],
        [3, 0, 0, 3, 9],
        [3, 0, b"abc", b""],
        [3, 0, b"abc", 0, 0],
        [3, 0, "abc"],
        [3, 0, [0, 3]],
        [3, 0, -1, 3],
        [3, 0, 3, -3, 0, 6],
        [3, 0, 0, 3.0],
        [3.0, 0, 0, 3],
        [True, 0, 0, 1],
        [1, False, 0, 1],
        [1, 0, False, 1],
        [1, 0, 0, True],
        [3, -1, b"abc"],
        [3, None, b"abc"],
        [3, 2**63, b"abc"],
        [1, 0, 2**63 - 1, 1],
        [-3, 0],
    ],
    ids=repr,
)
def test_a_malformed_manifest_is_refused(flat: Any) -> None:
    with pytest.raises(ValueError, match="manifest"):
        Manifest.decode(b"c" * 16 + packed(flat))


def test_every_cut_or_lengthened_manifest_is_refused() -> None:
    whole = manifest_of([b"abc", Span(5, 5000), Span(2, 3)], loose=5000).encode()
    for blob in [*(whole[:stop] for stop in range(len(whole))), whole + b"\0"]:
        with pytest.raises(ValueError, match="manifest"):
            Manifest.decode(blob)


def test_rows_beyond_the_spans_do_no_harm() -> None:
    manifest = manifest_of([b"<", Span(3, 8), Span(12, 14), b">", Span(0, 1)])
    rows = [(0, b"01"), (2, b"2345"), (6, b"67"), (8, b"8"), (12, b"cdef"), (99, b"z")]
    assert assemble(manifest, rows) == b"<34567cd>0"
    assert manifest.reach == Span(0, 14)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0, b"0123")],
        [(5, b"567")],
        [(0, b"0123"), (5, b"567")],
        [(0, b"01234"), (4, b"4567")],
        [(0, b"0123"), (4, b"4567"), (4, b"4567")],
        [(4, b"4567"), (0, b"0123")],
        [(100, b"0123")],
    ],
)
def test_a_stretch_that_is_missing_or_there_twice_is_refused(rows: list[tuple[int, bytes]]) -> None:
    with pytest.raises(ValueError, match="chain"):
        assemble(manifest_of([Span(3, 7)]), rows)


# Likeness


@given(
    st.lists(st.sampled_from([b"a", b"b", b"a" * 70, b"ab" * 50]), max_size=9).map(b"".join),
    st.data(),
)
def test_what_is_common_is_all_that_is_common(old: bytes, data: st.DataObject) -> None:
    new = old[data.draw(st.integers(0, len(old))) :] + data.draw(st.sampled_from([b"", b"c", old]))
    most = min(len(old), len(new))
    naive = next((n for n in range(most) if old[n] != new[n]), most)
    assert common_front(old, 0, new, 0, most) == naive
    naive = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
    assert common_back(old, len(old), new, len(new), most) == naive


def shares(old: Any, new: Any, tag: str = "msgpack") -> int:
    """How many bytes of `new` are not taken from `old`."""
    before, after = packed(old), packed(new)
    found = runs(tag, before, after, 200)
    reached = 0
    for run in found:
        assert run.new >= reached
        assert after[run.new : run.new + run.size] == before[run.old : run.old + run.size]
        reached = run.new + run.size
    return len(after) - sum(run.size for run in found)


ITEMS = [message(i) for i in range(200)]
NEW = [message(i) for i in range(1000, 1010)]
LONG = [message(i, 9000) for i in range(40)]


@pytest.mark.parametrize(
    ("old", "new", "fresh"),
    [
        (ITEMS[:15], ITEMS[:16], 1),  # the header grows from one byte to three
        (ITEMS, [*ITEMS[5:], NEW[0]], 1),
        (ITEMS, [*ITEMS[:50], NEW[0], *ITEMS[51:150], NEW[1], *ITEMS[151:]], 2),
        (ITEMS, [*ITEMS[:50], *ITEMS[60:150], NEW[1], *ITEMS[150:]], 1),
        (ITEMS, ITEMS[100:] + ITEMS[:100], 0),
        (ITEMS, [*ITEMS[150:], NEW[0], *ITEMS[50:100], *ITEMS[:40]], 1),
        ({"a": 1, "m": ITEMS, "z": 1}, {"a": 70000, "m": [*ITEMS, NEW[0]], "z": "w" * 40}, 1),
        ([ITEMS[:90], ITEMS[90:]], [[*ITEMS[3:90], NEW[0]], [*ITEMS[99:], NEW[1]]], 2),
        (msgpack.ExtType(5, packed(ITEMS)), msgpack.ExtType(5, packed([*ITEMS[1:], *NEW])), 10),
        ([[[ITEMS]]], [[[[*ITEMS[1:], NEW[0]]]], "more"], 1),
        (LONG, [*LONG[:9], *LONG[10:20], NEW[0], *LONG[21:]], 1),
        (["x" * 30_000, *ITEMS], [*ITEMS, "x" * 30_000], 0),
    ],
)  # fmt: skip
def test_only_what_is_new_is_new(old: Any, new: Any, fresh: int) -> None:
    assert shares(old, new) <= 800 * fresh + 100


def test_more_items_than_units_are_found_again() -> None:
    many = [message(i, 200) for i in range(9000)]
    assert shares(many, [*many[5:3000], NEW[0], *many[3001:], *NEW]) < 800 * 11 + 100


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.sampled_from(["msgpack", "bytes"]))
def test_whatever_the_bytes_runs_are_true(old: bytes, new: bytes, tag: str) -> None:
    for run in runs(tag, old + new, new[1000:] + old, 50):
        assert (new[1000:] + old)[run.new :][: run.size] == (old + new)[run.old :][: run.size]


@pytest.mark.parametrize("depth", [900, 50_000])
def test_containers_nested_without_end_are_not_followed_down(depth: int) -> None:
    before, after = (b"\x91" * depth + packed(["x" * 5000, end]) for end in ("a" * 90, "b" * 80))
    assert sum(run.size for run in runs("msgpack", before, after, 50)) > depth + 5000


# When to store how


def decided(*payloads: bytes, tag: str = "msgpack") -> list[str]:
    process = Process(Database())
    for number, payload in enumerate(payloads):
        process.put(str(number), payload, str(number - 1), tag)
    return process.plans


def noise(seed: int, size: int) -> bytes:
    """A payload of `size` bytes like no other."""
    header = 3 if size < 2**16 + 3 else 5
    return packed(random.Random(seed).randbytes(size - header))


def test_small_values_stay_whole() -> None:
    small = [packed("x" * (size - 3)) for size in range(THRESHOLD - 300, THRESHOLD, 100)]
    assert set(decided(*small)) == {"whole"}


def test_between_the_bounds_a_chain_starts_once_sharing_is_seen() -> None:
    grows = [packed(ITEMS[: 20 + n]) for n in range(4)]
    assert decided(*grows) == ["whole", "new", "append", "append"]
    assert decided(*(noise(n, 20_000) for n in range(4))) == ["whole"] * 4


def test_a_large_value_starts_a_chain_at_once() -> None:
    assert decided(noise(1, LARGE - 1)) == ["whole"]
    assert decided(noise(1, LARGE)) == ["new"]
    assert decided(noise(1, 9000), noise(2, LARGE)) == ["whole", "new"]  # too small to tell
    assert decided(noise(1, 20_000), noise(2, LARGE)) == ["whole", "whole"]
    assert decided(packed(ITEMS), packed([*ITEMS, NEW[0]])) == ["new", "append"]


def test_a_large_value_that_is_another_each_time_ends_up_whole() -> None:
    assert decided(*(noise(n, 2 * LARGE) for n in range(5))) == ["new", *["whole"] * 4]


def test_a_value_that_begins_to_grow_starts_a_chain() -> None:
    grows = [packed([message(50 + n), *ITEMS[: 150 + n]]) for n in range(2)]
    assert decided(noise(1, 2 * LARGE), noise(2, 2 * LARGE), *grows)[1:] == [
        "whole",
        "whole",
        "new",
    ]


def test_what_is_encrypted_or_compressed_stays_whole() -> None:
    grows = [packed(ITEMS[: 150 + n]) for n in range(3)]
    assert decided(*grows, tag="msgpack+aes") == ["whole"] * 3


def test_other_formats_share_what_they_begin_with() -> None:
    assert decided(*(b"x" * size for size in (9000, 9500, 9900)), tag="json")[1:] == [
        "new",
        "append",
    ]


def test_a_base_of_another_tag_is_none() -> None:
    base = Known.whole("1", "json", packed(ITEMS[:50]))
    assert plan("msgpack", packed(ITEMS[:51]), [base], fold=None) is None


def test_an_append_is_seen_without_the_payload() -> None:
    before, after = packed(ITEMS), packed([*ITEMS, NEW[0]])
    base = renewed(before).known("1", "msgpack", before).without_payload()
    assert base.payload is None
    grown = plan("msgpack", after, [base], fold=None)
    assert grown is not None
    assert grown.expects == base.end.tip
    assert len(grown.data) < 800
    edited = plan("msgpack", packed([NEW[0], *ITEMS]), [base], fold=None)
    assert edited is not None
    assert edited.expects is None, "what was there cannot be compared, so nothing is shared"


def test_of_short_changes_the_last_is_appended_the_others_stay_in_the_manifest() -> None:
    value = {f"key{n}": "value" * 20 for n in range(500)}
    before = packed(value)
    base = renewed(before).known("1", "msgpack", before)
    after = packed(value | {"key250": "THE ONE", "key400": "ANOTHER"})
    grown = plan("msgpack", after, [base], fold=16)
    assert grown is not None
    assert b"ANOTHER" in grown.data
    assert b"THE ONE" in grown.manifest.encode()
    assert len(grown.data) + len(grown.manifest.encode()) < 120


@pytest.mark.parametrize("fold", [None, 16])
def test_a_value_that_stays_the_same_adds_next_to_nothing_and_few_rows(fold: int | None) -> None:
    """A row decides each race, so there is one of a byte; a chain of many is begun anew."""
    database, payload = Database(), packed(ITEMS[:20])
    process = Process(database, fold)
    for number in range(2000):
        process.put(str(number), payload, str(number - 1))
    assert database.written < len(payload) * 8 + 2000 * 45
    assert max(len(chain) for chain in database.chains.values()) < 650
    assert database.read("1999")[0] == payload


def test_literals_that_add_up_move_to_the_chain() -> None:
    database = Database()
    process = Process(database)
    value = [*ITEMS]
    for number in range(100):
        process.put(str(number), packed(value), str(number - 1))
        value.append(number)
    assert process.plans == ["new", *["append"] * 99]
    assert len(database.versions["99"][1]) < 120


# Races


def two_appends(same_length: bool) -> tuple[Database, list[Process], list[bytes]]:
    database = Database()
    processes = [Process(database) for _ in range(2)]
    processes[0].put("1", packed(ITEMS))
    processes[1].get("1")
    other = message(7777) if same_length else message(7777, 90)
    return database, processes, [packed([*ITEMS, message(8888)]), packed([*ITEMS, other])]


@pytest.mark.parametrize("same_length", [True, False])
def test_a_rolled_back_append_is_not_built_upon(same_length: bool) -> None:
    """The other process's append has the length of the lost one: only the tip tells them apart."""
    database, (first, second), payloads = two_appends(same_length)
    assert (len(payloads[0]) == len(payloads[1])) is same_length
    kept = dict(database.chains)
    first.put("2a", payloads[0], "1")
    del database.versions["2a"]
    database.chains = kept
    second.put("2b", payloads[1], "1")
    assert second.plans == ["append"]
    first.put("3", packed([*ITEMS, message(8888), message(9999)]), "2a")
    assert first.plans == ["new", "append", "lost"]
    assert database.read("3")[0] == packed([*ITEMS, message(8888), message(9999)])
    assert database.read("2b")[0] == payloads[1]


def test_a_tip_stands_for_all_of_a_chain_and_not_for_its_last_row() -> None:
    database, (first, second), payloads = two_appends(same_length=True)
    kept = dict(database.chains)
    first.put("2a", payloads[0], "1")
    first.put("3a", packed([*ITEMS, message(8888), message(9999)]), "2a")
    database.chains = kept
    second.put("2b", payloads[1], "1")
    second.put("3b", packed([*ITEMS, message(7777), message(9999)]), "2b")
    first.put("4", packed([*ITEMS, message(8888), message(9999), message(1)]), "3a")
    assert first.plans[-1] == "lost"
    assert database.read("4")[0] == packed([*ITEMS, message(8888), message(9999), message(1)])


def test_of_two_forks_one_appends_and_one_starts_anew() -> None:
    database, (first, second), payloads = two_appends(same_length=True)
    first.put("2a", payloads[0], "1")
    second.put("2b", payloads[1], "1")
    assert (first.plans[-1], second.plans[-1]) == ("append", "lost")
    assert [database.read("2a")[0], database.read("2b")[0]] == payloads


def test_a_fork_by_the_process_that_went_on_does_not_try_in_vain() -> None:
    process = Process(Database())
    process.put("1", packed(ITEMS))
    process.put("2", packed([*ITEMS, NEW[0]]), "1")
    process.put("2b", packed([*ITEMS, NEW[1]]), "1")
    assert process.plans == ["new", "append", "new"]


@pytest.mark.parametrize(
    ("how", "plans"), [("reads", ["lost"]), ("reads with the end", ["append"])]
)
def test_a_reader_of_an_older_version_appends_at_the_chains_end(how: str, plans: list[str]) -> None:
    database = Database()
    writer, reader = Process(database), Process(database)
    writer.put("1", packed(ITEMS))
    writer.put("2", packed([*ITEMS, NEW[0]]), "1")
    reader.get("1", how)
    reader.put("2b", packed([*ITEMS, NEW[1]]), "1")
    assert reader.plans == plans
    assert database.read("2b")[0] == packed([*ITEMS, NEW[1]])


def test_without_the_end_of_a_chain_nothing_is_appended_but_growth_is_seen() -> None:
    database = Database()
    writer, reader = Process(database), Process(database)
    for number in range(2):
        writer.put(str(number), packed(ITEMS[: 20 + number]), str(number - 1))
    reader.get("1", "reads without the end")
    reader.put("2", packed(ITEMS[:23]), "1")
    assert reader.plans == ["new"]


# Folding


@pytest.mark.parametrize("reads", [False, True])
def test_every_so_many_rows_become_one(reads: bool) -> None:
    database = Database()
    most = 0
    process = Process(database, fold=16)
    for number in range(170):
        if reads and number:
            process = Process(database, fold=16)
            process.get(str(number - 1))
        process.put(str(number), packed(ITEMS[: 20 + number]), str(number - 1))
        most = max([most, *map(len, database.chains.values())])
    (chain,) = database.chains.values()
    sizes = [len(chain[start].data) for start in sorted(chain)]
    assert len(sizes) == 1 + 10 + 168 % 16
    assert min(sizes[1:11]) > 15 * 600
    assert most <= 1 + 10 + 15
    assert database.written < 2.2 * len(packed(ITEMS[:190])) + 170 * 60


def test_rows_are_folded_as_far_as_the_payload_has_them() -> None:
    database = Database()
    process = Process(database, fold=8)
    value = [message(i) for i in range(50)]
    for number in range(60):
        process.put(str(number), packed(value), str(number - 1))
        value = [*value, message(100 + number)]
        if number % 20 == 19:
            value[-3] = message(500 + number)  # what two appends ago was written is used no more
    assert process.plans == ["whole", "new", *["append"] * 58]
    (chain,) = database.chains.values()
    assert len(chain) < 1 + 7 + 3 * 7
    assert max(len(row.data) for start, row in chain.items() if start) > 7 * 600


def test_nothing_is_folded_where_rows_are_not_slow() -> None:
    database = Database()
    process = Process(database, fold=None)
    for number in range(60):
        process.put(str(number), packed(ITEMS[: 120 + number]), str(number - 1))
    (chain,) = database.chains.values()
    assert len(chain) == 60


# What a step costs

STEPS = 2000


def costs(values: Iterator[Any], fold: int | None = 16) -> list[int]:
    """How many bytes each step writes; some of the versions are read back."""
    database = Database()
    process = Process(database, fold)
    written = []
    for number, value in enumerate(values):
        before, payload = database.written, packed(value)
        process.put(str(number), payload, str(number - 1))
        written.append(database.written - before)
        if number % 100 == 99:
            assert database.read(str(number))[0] == payload
        if process.plans[-1] != "whole":
            manifest = process.memory.recall(MESSAGES)[0].manifest
            assert manifest
            length = max(
                start + len(row.data) for start, row in database.chains[manifest.chain].items()
            )
            assert len(manifest.pieces) <= max(16, isqrt(len(payload) // 20))
            assert length <= 2 * len(payload) + 64 * 1024
    return written


def mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers)


def test_an_append_costs_what_is_appended() -> None:
    items = [message(i, 300) for i in range(STEPS)]
    written = costs(items[: number + 1] for number in range(STEPS))
    size = len(packed(items[0]))
    assert mean(written[-500:]) < 2.5 * size  # once, once more in a fold, and the manifest
    assert mean(written[-500:]) < 1.1 * mean(written[500:1000])
    assert max(written[500:]) < 20 * size


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_what_is_dropped_at_the_front_where_all_else_is_the_same(gone: int) -> None:
    """And something appended, so that what both share is the end of the one, as after an append."""
    process, items = Process(Database()), ["a" * 5, "b" * 40, *("c" * 300 for _ in range(40))]
    for number in range(3):
        items = [*items, f"{number}" * 300]
        process.put(str(number), packed(items))
    items = [*items[gone:], "d" * 300]
    process.put("dropped", packed(items))
    assert process.plans[-1] == "append"
    assert process.database.read("dropped")[0] == packed(items)


def test_a_sliding_window_costs_a_few_times_what_is_appended() -> None:
    items = [message(i, 300) for i in range(STEPS)]
    written = costs(items[max(0, number - 200) : number + 1] for number in range(STEPS))
    size = len(packed(items[0]))
    assert mean(written[-500:]) < 4 * size
    assert mean(written[-500:]) < 1.3 * mean(written[500:1000])


def test_edits_of_a_dict_cost_a_small_part_of_it() -> None:
    def edited() -> Iterator[dict[str, str]]:
        rng, value = random.Random(1), {f"key{n}": "value" * 20 for n in range(1000)}
        for number in range(STEPS):
            value = value | {f"key{rng.randrange(1000)}": f"edited {number} " * 3}
            yield value

    written = costs(edited())
    whole = written[0]
    assert mean(written[1:]) < whole / 20
    assert mean(written[-500:]) < 1.3 * mean(written[1:501])


# Memory


def known(version: str, size: int = 10_000) -> Known:
    return Known.whole(version, "msgpack", noise(int(version), size))


def test_the_newest_come_first_and_the_version_asked_for_before_them() -> None:
    memory = Memory(versions=3)
    for version in "1234":
        memory.remember(MESSAGES, known(version))
    memory.remember(MESSAGES, known("3"))
    assert [found.version for found in memory.recall(MESSAGES)] == ["3", "4", "2"]
    assert [found.version for found in memory.recall(MESSAGES, "2")] == ["2", "3", "4"]
    assert [found.payload is None for found in memory.recall(MESSAGES)] == [False, True, True]
    assert memory.payload_bytes == 10_000


def test_payloads_are_kept_within_their_budget_the_latest_used_longest() -> None:
    memory = Memory(payload_bytes=25_000)
    channels = [Channel("t", "", name) for name in "abc"]
    for channel in channels[:2]:
        memory.remember(channel, known("1"))
    memory.recall(channels[0])
    memory.remember(channels[2], known("1"))
    kept = [memory.recall(channel)[0].payload is not None for channel in channels]
    assert kept == [True, False, True]
    assert memory.payload_bytes == 20_000
    assert memory.recall(channels[1])[0].begins(known("1").payload or b"")


def test_a_payload_over_the_budget_is_known_by_its_digest() -> None:
    memory = Memory(payload_bytes=5_000)
    memory.remember(MESSAGES, known("1"))
    assert memory.recall(MESSAGES)[0].payload is None
    assert memory.payload_bytes == 0


def test_channels_are_forgotten_beyond_their_number() -> None:
    memory = Memory(channels=10)
    for number in range(30):
        memory.remember(Channel(f"t{number}", "", "c"), known("1"))
    assert sum(bool(memory.recall(Channel(f"t{n}", "", "c"))) for n in range(30)) == 10
    assert memory.payload_bytes == 100_000


def test_a_thread_is_forgotten_with_all_its_namespaces() -> None:
    memory = Memory()
    channels = [Channel("t", "", "a"), Channel("t", "sub", "a"), Channel("u", "", "a")]
    for channel in channels:
        memory.remember(channel, known("1"))
    memory.forget("t")
    assert [bool(memory.recall(channel)) for channel in channels] == [False, False, True]
    assert memory.payload_bytes == 10_000


def test_what_is_too_small_to_be_shared_with_is_not_kept() -> None:
    memory = Memory()
    memory.remember(MESSAGES, known("1", 500))
    assert not memory.recall(MESSAGES)


def test_threads_of_a_process_share_a_memory() -> None:
    memory = Memory(payload_bytes=100_000, channels=20)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(500):
            channel = Channel(f"t{rng.randrange(8)}", "", f"c{rng.randrange(4)}")
            memory.recall(channel)
            memory.remember(channel, known(str(rng.randrange(5))))
            if rng.random() < 0.1:
                memory.forget(channel.thread_id)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    channels = [Channel(f"t{t}", "", f"c{c}") for t in range(8) for c in range(4)]
    kept = [found for channel in channels for found in memory.recall(channel) if found.payload]
    assert memory.payload_bytes == sum(found.size for found in kept) <= 100_000
