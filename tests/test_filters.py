"""Metadata filters: Postgres' containment, on both dialects, for every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from backends import Called
from builders import config, id_of, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import URL, Engine, create_engine, text

from ckpt_orm import documents

STORED: dict[str, Any] = {
    "flag": True,
    "n": 5,
    "s": "5",
    "f": 1.5,
    "none": None,
    "d": {"a": 1, "b": {"c": 2}},
    "tags": ["x", "y"],
    "e": {},
    "l": [],
}
ODD_KEYS = [
    "a.b", 'a"b', "a'b", "$", "$.n", "a[0]", "ключ", "'; drop table checkpoints; --", "", " ", "%s",
    ":n", "%(n)s", "{n}", "a\\b", "?", "*", "a\nb", "__ckpt_orm__", "__ckpt_orm_entries__", "🦜",
    "k\x00",
]  # fmt: skip

MATCHING: list[dict[str, Any]] = [
    {},
    {"flag": True},
    {"n": 5},
    {"n": 5.0},
    {"f": 1.5},
    {"none": None},
    {"d": {"a": 1}},
    {"d": {"b": {"c": 2}}},
    {"d": {"b": {"c": 2}, "a": 1}},
    {"d": {}},
    {"tags": ["y"]},
    {"tags": ["y", "x"]},
    {"tags": ["x", "x"]},
    {"tags": []},
    {"e": {}},
    {"l": []},
    {"flag": True, "n": 5, "s": "5"},
]
OTHERS: list[dict[str, Any]] = [
    {"flag": 1},
    {"flag": "true"},
    {"flag": False},
    {"n": "5"},
    {"n": True},
    {"n": 6},
    {"n": [5]},
    {"s": 5},
    {"missing": None},
    {"none": False},
    {"none": "null"},
    {"d": {"a": 2}},
    {"d": {"c": 2}},
    {"d": []},
    {"tags": ["z"]},
    {"tags": ["x", "z"]},
    {"tags": "x"},
    {"tags": {}},
    {"e": []},
    {"l": {}},
    {"l": [1]},
    {"flag": True, "n": 6},
]


def found(saver: Called, filter: dict[str, Any] | None) -> list[str]:
    return [id_of(item.config) for item in saver.list(None, filter=filter)]


def test_what_a_filter_matches(saver: Called) -> None:
    stored = id_of(put(saver, "t1", {}, metadata=STORED))
    empty = id_of(put(saver, "t2", {}, metadata={}))
    assert found(saver, {}) == found(saver, None) == [empty, stored]
    for filter in MATCHING[1:]:
        assert found(saver, filter) == [stored], filter
    for filter in OTHERS:
        assert found(saver, filter) == [], filter


def test_every_key_is_taken_literally(saver: Called) -> None:
    """Each has a value of its own, so that none is found in place of another."""
    of_key = {
        key: id_of(put(saver, "t", {}, metadata={key: number, "n": -1}))
        for number, key in enumerate(ODD_KEYS)
    }
    together = id_of(put(saver, "all", {}, metadata=dict.fromkeys(ODD_KEYS, "all")))
    for number, key in enumerate(ODD_KEYS):
        assert found(saver, {key: number}) == [of_key[key]], key
        assert found(saver, {key: number + 1}) == [], key
        assert found(saver, {key: "all"}) == [together], key
    assert len(list(saver.list(None))) == len(ODD_KEYS) + 1


def test_keys_that_are_no_strings(saver: Called) -> None:
    stored = id_of(put(saver, "t", {}, metadata={1: "one", None: "nothing", "1": "text"}))
    assert found(saver, {1: "one"}) == found(saver, {None: "nothing"}) == [stored]
    assert found(saver, {"1": "text"}) == [stored]
    assert found(saver, {"1": "one"}) == found(saver, {1: "text"}) == []
    assert found(saver, {"one": 1}) == []


def test_a_filter_with_a_thread_and_a_namespace(saver: Called) -> None:
    wanted = id_of(put(saver, "t", {}, metadata={"k": 1}, ns="sub"))
    put(saver, "t", {}, metadata={"k": 1})
    put(saver, "t", {}, metadata={"k": 2}, ns="sub")
    put(saver, "u", {}, metadata={"k": 1}, ns="sub")
    listed = saver.list(config("t", "sub"), filter={"k": 1})
    assert [id_of(item.config) for item in listed] == [wanted]


def test_more_matches_than_a_page(saver: Called) -> None:
    """With others in between, so that a page is filled from many rows."""
    ids = [id_of(put(saver, "t", {}, metadata={"odd": n % 2 == 1})) for n in range(130)]
    assert found(saver, {"odd": True}) == ids[::-1][::2]
    assert len(list(saver.list(None, filter={"odd": False}, limit=51))) == 51


# --- the same decision as Postgres ---

TEXTS = st.one_of(
    st.sampled_from([*ODD_KEYS, "a", "b", "c", "1", "true", "null"]), st.text(max_size=3)
).filter(documents.fits_text)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([0.0, 1.0, 2.0, 0.5, 2.0**53, 2**53 + 1]),
    st.floats().filter(documents.fits_float),
    TEXTS,
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(TEXTS, JSON, max_size=4)


@st.composite
def parts_of(draw: st.DrawFn, document: Any) -> Any:
    """Something a document may contain: parts of its parts, some of them replaced."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    if isinstance(document, dict) and document:
        keys = draw(st.lists(st.sampled_from(sorted(document)), unique=True, max_size=3))
        return {key: draw(parts_of(document[key])) for key in keys}
    if isinstance(document, list) and document:
        items = draw(st.lists(st.sampled_from(document), max_size=3))
        return [draw(parts_of(item)) for item in items]
    return document


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    document = draw(DOCUMENTS)
    part = draw(parts_of(document))
    return document, part if isinstance(part, dict) else {"a": part}


@pytest.fixture(scope="module")
def postgres_engine(postgres: URL) -> Iterator[Engine]:
    engine = create_engine(postgres)
    yield engine
    engine.dispose()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(pairs(), min_size=8, max_size=20))
def test_contains_decides_as_postgres_does(
    postgres_engine: Engine, asked: list[tuple[Any, Any]]
) -> None:
    texts = [tuple(map(documents.encode, pair)) for pair in asked]
    with postgres_engine.connect() as connection:
        decided = [
            connection.scalar(
                text("SELECT CAST(:document AS jsonb) @> CAST(:part AS jsonb)"),
                {"document": document, "part": part},
            )
            for document, part in texts
        ]
    assert [documents.contains_text(*pair) for pair in texts] == decided
