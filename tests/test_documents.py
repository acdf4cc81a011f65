"""A document is encoded in one go where JSON holds all of it, and comes out as value by value."""

from __future__ import annotations

import enum
import subprocess
import sys
import tracemalloc
from collections import OrderedDict, namedtuple
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckpt_orm import documents

Pair = namedtuple("Pair", "one two")


class Colour(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Half(float):
    """A float by another name."""


def pack(value: Any) -> tuple[str, bytes]:
    return type(value).__name__, repr(value).encode("utf-8", "backslashreplace")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, 2**1024, -(2**1024), 2**1023, 10**309]),
    st.floats(),
    st.sampled_from([1e16, -0.0, 1e-7, 5.0, Half(0.5), Half(1e16)]),
    st.text(),
    st.sampled_from(["\x00", "\ud800", "\\u0000", "é", documents.PACKED, documents.ENTRIES]),
    st.sampled_from([Colour.RED, Number.ONE, Decimal(1), datetime(2026, 1, 1), b"x", {1}]),
)
KEYS = st.one_of(
    st.text(max_size=3),
    st.sampled_from([documents.PACKED, documents.ENTRIES, "\x00", "\ud800", Colour.RED]),
    st.sampled_from([1, 1.5, None, True, Number.ONE, Decimal(1), (1,)]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@example({"a": 1, "b": [True, None, 0.5, "x"], "c": {"d": {}}})
@example({"a": 1e16})
@example({"a": {1: 2}})
def test_in_one_go_as_value_by_value(document: dict[Any, Any]) -> None:
    apart = documents.encode(documents.plain(document, pack))
    assert documents.dump(document, pack) == apart


def test_what_json_holds_goes_in_one() -> None:
    document = {"v": 4, "seen": {"node": {"a": "1"}}, "x": 0.5, "é": [None, True, -7]}
    assert documents.exact(document, {}) == documents.encode(document)


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def test_json_is_no_deeper_than_every_python_reads() -> None:
    document = {"deep": nested(documents.DEEPEST - 2)}
    text = documents.dump(document, pack)
    assert documents.PACKED not in text
    assert documents.load(text, lambda payload: payload) == document


@pytest.mark.parametrize("innermost", [1, 1e16])
def test_what_is_deeper_is_packed_whole(innermost: float) -> None:
    """Also by a Python that would write it: 3.13 nests ten times as deep as others read."""
    value = nested(documents.DEEPEST + 1)
    document = documents.plain({"deep": value, "x": innermost}, lambda value: ("tag", b""))
    assert documents.PACKED in document["deep"]
    text = documents.dump({"deep": value, "x": innermost}, lambda value: ("tag", b""))
    assert documents.load(text, lambda payload: "packed")["deep"] == "packed"


def endless(**beside: Any) -> dict[str, Any]:
    value: dict[str, Any] = dict(beside)
    value["self"] = value
    return value


def with_parents(width: int) -> list[Any]:
    root: list[Any] = []
    root += [{"parent": root, "number": number} for number in range(width)]
    return root


def whole(value: Any) -> tuple[str, bytes]:
    return "tag", value if isinstance(value, bytes) else b"whole"


@pytest.mark.parametrize(
    "value",
    [endless(), endless(text="x" * 1_000_000), endless(data=b"x" * 1_000_000), with_parents(3_000)],
    ids=["alone", "with text", "with bytes", "with parents"],
)
def test_what_contains_itself_is_packed_whole_and_takes_no_memory(value: Any) -> None:
    """Each turn through it would make another text, until Python's own limit or the memory ends."""
    tracemalloc.start()
    try:
        text = documents.dump({"m": value, "fine": 1}, whole)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert documents.load(text, lambda payload: payload) == {"m": ("tag", b"whole"), "fine": 1}
    assert peak < 4_000_000


def test_what_is_there_many_times_is_written_as_often() -> None:
    once: Any = {"a": [1, "x"]}
    document = {"list": [[once] * 1_500, [once] * 1_500], "again": once}
    text = documents.dump(document, pack)
    assert documents.PACKED not in text
    assert documents.load(text, lambda payload: payload) == document


WITHOUT_LIMIT = """
import sys
from ckpt_orm import documents

sys.setrecursionlimit(10_000_000)
deep = []
for _ in range(300_000):
    deep = [deep]
endless = []
endless.append(endless)
for value in (deep, endless):
    text = documents.dump({"m": value}, lambda value: ("tag", b""))
    assert documents.load(text, lambda payload: "packed") == {"m": "packed"}
endless.clear()
while deep:  # piece by piece, as Python's own way to forget it is deep too
    deep = deep.pop()
"""


def test_it_ends_no_process_that_has_set_python_no_limit() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_LIMIT], check=True, timeout=60)
