"""What a channel or the metadata holds comes back: equal, and of the same type.

Each value is stored as a channel of its own, inside a list, and as a key where it can be one.
"""

from __future__ import annotations

import enum
import math
import operator
import random
from base64 import b64encode
from collections import namedtuple
from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import config, exact, metadata_of, put, values_of
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from sqlalchemy import URL, create_engine, text

from ckpt_orm import CorruptCheckpoint, InvalidConfig


class Color(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class UserId(str):
    pass


Point = namedtuple("Point", "x y")

#: Allows the classes above by name, so that reading them warns of nothing.
SERDE = JsonPlusSerializer(
    allowed_msgpack_modules=[(__name__, c) for c in ("Color", "Level", "Point")]
)

TEXTS = [
    "",
    "plain",
    "a\x00b",
    "\x00",
    "{}",
    "null",
    "\\u0000",
    "quo\"te's",
    "ключ 🦜",
    "\u2028\ufeff",
]
FLOATS = [
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.0,
    1.0,
    1e16,
    1e22,
    5e-324,
    0.1,
    1.7e308,
    123456.75,
]
INTS = [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


def round_trip(saver: Called, values: dict[str, Any]) -> None:
    """Store values, and find them the same in `get_tuple` and in `list`."""
    stored = put(saver, "t", values)
    (listed,) = saver.list(stored)
    assert exact(values_of(saver, stored)) == exact(values)
    assert exact(listed.checkpoint["channel_values"]) == exact(values)


def everywhere(values: list[Any]) -> dict[str, Any]:
    """Each value on its own, in a list, and as a key."""
    found: dict[str, Any] = {}
    for number, value in enumerate(values):
        found[f"alone {number}"] = value
        found[f"in a list {number}"] = [value]
        found[f"as a key {number}"] = {value: value}
    return found


@pytest.mark.parametrize(
    "values", [TEXTS, FLOATS, INTS, [True, False, None]], ids=["texts", "floats", "ints", "others"]
)
def test_scalars(saver: Called, values: list[Any]) -> None:
    round_trip(saver, everywhere(values))


def test_equal_values_of_different_types_stay_apart(saver: Called) -> None:
    round_trip(
        saver, {"a": True, "b": 1, "c": 1.0, "d": "1", "e": 0, "f": False, "g": -0.0, "h": ""}
    )


def test_integers_beyond_64_bits(saver: Called) -> None:
    """Alone they are JSON numbers of any length; inside a value the serde refuses them."""
    round_trip(saver, {"a": 2**64, "b": 2**70, "c": -(2**70), "d": 10**300})
    before = saver.get_tuple(config("t"))
    with pytest.raises(TypeError, match=r"channel 'a' .* 64 bits"):
        put(saver, "t", {"a": [2**70]})
    with pytest.raises(TypeError, match=r"channel 'a' .* 64 bits"):
        put(saver, "t", {"a": 10**400})
    assert saver.get_tuple(config("t")) == before


def test_classes_are_what_the_serde_makes_of_them(backend: Backend, ready_url: URL) -> None:
    values = [Color.RED, Level.HIGH, UserId("u"), Point(1, 2), Decimal("1.50"), (1, 2), b"\x00\xff"]
    expected = [SERDE.loads_typed(SERDE.dumps_typed([value]))[0] for value in values]
    with called(backend, ready_url, serde=SERDE) as saver:
        stored = put(saver, "t", {str(number): value for number, value in enumerate(values)})
        found = values_of(saver, stored)
        assert [exact(found[str(n)]) for n in range(len(values))] == [exact(v) for v in expected]
        nested = put(saver, "nested", {"all": values})
        assert exact(values_of(saver, nested)["all"]) == exact(expected)


def test_lone_surrogates_never_raise(saver: Called) -> None:
    """UTF-8 has no surrogates: LangGraph's serde writes "?", wherever the text is."""
    broken = "\ud800x"
    metadata = {"m": broken, "deep": {"list": [broken]}, "k\ud800": 1, "fine": "yes"}
    stored = put(saver, "t", {"alone": broken, "list": [broken]}, metadata=metadata)
    assert values_of(saver, stored) == {"alone": "?x", "list": ["?x"]}
    found = metadata_of(saver, stored)
    assert found == {"m": "?x", "deep": {"list": ["?x"]}, "k?": 1, "fine": "yes"}
    assert [t.config for t in saver.list(None, filter={"fine": "yes"})] == [stored]


def test_nul_in_metadata(saver: Called) -> None:
    """LangGraph's own helper strips it from a string; what is deeper comes back as it was."""
    other = put(saver, "other", {}, metadata={"k": "v"})
    metadata = {"m": "a\x00b", "deep": {"one": {"two": "a\x00b"}}, "k\x00ey": 1, "k": "w"}
    stored = put(saver, "t", {}, metadata=metadata)
    assert exact(metadata_of(saver, stored)) == exact({**metadata, "m": "ab"})
    assert [t.config for t in saver.list(None, filter={"k": "v"})] == [other]
    deep = {"deep": {"one": {"two": "a\x00b"}}}
    assert [t.config for t in saver.list(None, filter=deep)] == [stored]
    assert [t.config for t in saver.list(None, filter={"k": "w"})] == [stored]


def test_nan_in_metadata_breaks_no_filter(saver: Called) -> None:
    stored = put(saver, "t1", {}, metadata={"score": math.nan, "k": "w", "inf": [math.inf]})
    other = put(saver, "t2", {}, metadata={"k": "v"})
    assert exact(metadata_of(saver, stored)["score"]) == exact(math.nan)
    assert [t.config for t in saver.list(None, filter={"k": "v"})] == [other]
    assert [t.config for t in saver.list(None, filter={"k": "w"})] == [stored]


def test_numbers_in_metadata(saver: Called) -> None:
    metadata = {
        f"{name} {number}": value
        for name, values in (("f", FLOATS), ("i", INTS))
        for number, value in enumerate(values)
    }
    stored = put(saver, "t", {}, metadata=metadata)
    assert exact(metadata_of(saver, stored)) == exact(metadata)
    for key, value in metadata.items():
        assert len(list(saver.list(None, filter={key: value}))) == 1, key


def test_objects_in_metadata(saver: Called) -> None:
    class Unknown:
        pass

    metadata = {
        "uuid": UUID(int=7),
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "keys": {1: "one", "two": 2},
        "message": AIMessage("hi", id="m1"),
        "pair": (1, 2),
        "color": Color.RED,
        "unknown": Unknown(),
        1: Unknown(),
        "nested": {2: Unknown()},
        "run": "r1",
    }
    stored = put(saver, "t", {}, metadata=metadata)
    found = metadata_of(saver, stored)
    kept = {name: metadata[name] for name in ("uuid", "when", "keys", "message", "run")}
    assert exact({name: found[name] for name in kept}) == exact(kept)
    assert found["pair"] == [1, 2]
    assert exact(found["color"]) == exact("red")
    left = f"<{Unknown.__qualname__}>"
    assert (found["unknown"], found[1], found["nested"]) == (left, left, {2: left})
    assert [t.config for t in saver.list(None, filter={"run": "r1"})] == [stored]
    assert [t.config for t in saver.list(None, filter={"uuid": UUID(int=7)})] == [stored]


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


NODES = ["a\\b", "\\x41", "quo\"te'd", "n" * 500, "🦜", "'; drop table checkpoints; --", "$.a[0]"]


def test_a_run_with_odd_metadata_and_odd_node_names(saver: Called) -> None:
    builder = StateGraph(State)
    for name in NODES:
        builder.add_node(name, lambda state, name=name: {"seen": [name]})
    for before, after in zip([START, *NODES], [*NODES, END], strict=True):
        builder.add_edge(before, after)
    graph = builder.compile(checkpointer=saver.saver)
    run = {
        **config("t"),
        "metadata": {"a": "x\x00y", "n": math.nan, "id": UUID(int=1), "deep": {1: 2}},
    }
    assert saver.run(graph, {"seen": []}, run) == {"seen": NODES}
    history = list(saver.list(config("t")))
    assert len(history) == len(NODES) + 2
    assert history[0].checkpoint["channel_values"]["seen"] == NODES
    assert set(NODES) <= set(history[0].checkpoint["versions_seen"])


def test_two_thousand_channels(saver: Called) -> None:
    rng = random.Random(1)
    small = {f"small {n}": rng.random() for n in range(1_000)}
    large = {f"large {n}": [rng.random()] for n in range(1_000)}
    round_trip(saver, {**small, **large})


@named([backend for backend in BACKENDS if not backend.name.endswith("-threads")])
def test_a_value_of_fifty_megabytes(saver: Called) -> None:
    value = random.Random(1).randbytes(50_000_000)
    stored = put(saver, "t", {"value": value})
    assert values_of(saver, stored)["value"] == value


SECRET = "SECRETSECRETSECRET"


def test_an_encrypting_serde_leaves_no_plaintext(backend: Backend, ready_url: URL) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    secrets: dict[str, Any] = {"alone": SECRET, "number": 41414141.5, "list": [SECRET]}
    secrets |= {"unversioned": SECRET, "long": [SECRET * 20] * 20}
    with called(backend, ready_url, serde=serde) as saver:
        versioned = [name for name in secrets if name != "unversioned"]
        stored = put(saver, "t", secrets, new=versioned)
        saver.put_writes(stored, [("c", SECRET)], "task")
        assert exact(values_of(saver, stored)) == exact(secrets)
        assert saver.get_tuple(stored).pending_writes == [("task", "c", SECRET)]
    dump = everything_in(ready_url)
    # As base64 it has one of three forms, by where it begins.
    encoded = [b64encode(b"\0" * at + SECRET.encode())[4:-4] for at in range(3)]
    for needle in (SECRET.encode(), b"41414141"):
        for form in (needle, needle.hex().encode(), *encoded):
            assert form not in dump
    with (
        called(backend, ready_url) as plain,
        pytest.raises(CorruptCheckpoint, match="if serde or key were changed"),
    ):
        plain.get_tuple(stored)


def everything_in(url: URL) -> bytes:
    """All columns of all rows, as text and, for bytes, as they are."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [
            value
            for table in (
                *("checkpoints", "checkpoint_blobs", "checkpoint_writes"),
                "checkpoint_segments",
            )
            for row in connection.execute(text(f"SELECT * FROM {table}"))
            for value in row
        ]
    engine.dispose()
    return b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in rows)


def test_a_value_that_cannot_be_stored_stores_nothing(saver: Called) -> None:
    with pytest.raises(TypeError):
        put(saver, "t", {"fine": [1], "lock": object()})
    with pytest.raises(InvalidConfig):
        list(saver.list(None, filter={"lock": object()}))
    assert saver.get_tuple(config("t")) is None
