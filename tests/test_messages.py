"""A message that is copied is what the serde would have made, in every respect, and each one's own.

The oracle is a new `JsonPlusSerializer`, which remembers nothing.
"""

from __future__ import annotations

import enum
import functools
import gc
import pickle
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from backends import Called
from builders import config, id_of, put, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core import messages as lc
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel

from ckpt_orm import messages
from ckpt_orm.messages import DEEPEST, LONGEST, ONE_OF, Copies, Readers, weight_of

NESTED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    # -0.0 and the infinities too
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9) | st.booleans(), inner, max_size=3)
    ),
    max_leaves=8,
)
PLAIN = st.dictionaries(st.text(max_size=5), NESTED, max_size=3)
TEXT = st.text(max_size=20)
CALLS = st.lists(
    st.builds(lambda name, args, id: {"name": name, "args": args, "id": id}, TEXT, PLAIN, TEXT),
    max_size=2,
)
COMMON = {
    "content": TEXT | st.lists(TEXT | PLAIN, max_size=3),
    "additional_kwargs": PLAIN,
    "response_metadata": PLAIN,
    "name": st.none() | TEXT,
    "id": st.none() | TEXT,
    "example": NESTED,  # not a field of all of them: an extra
}
USAGE = st.none() | st.builds(
    lambda n, extra: {"input_tokens": n, "output_tokens": 1, "total_tokens": n + 1, **extra},
    st.integers(0, 9),
    st.just({}) | st.just({"input_token_details": {"audio": 1}}),
)
CHUNKS = st.lists(
    st.builds(
        lambda args, index: {"name": "f", "args": args, "id": "c", "index": index},
        st.sampled_from(['{"a": {"b": [1]}}', '{"a": NaN}', '{"a', ""]),
        st.none() | st.integers(0, 2),
    ),
    max_size=2,
)
OWN: dict[type[lc.BaseMessage], dict[str, st.SearchStrategy[Any]]] = {
    lc.HumanMessage: {},
    lc.HumanMessageChunk: {},
    lc.SystemMessage: {},
    lc.SystemMessageChunk: {},
    lc.AIMessage: {"tool_calls": CALLS, "usage_metadata": USAGE},
    lc.AIMessageChunk: {
        "tool_call_chunks": CHUNKS,
        "usage_metadata": USAGE,
        "chunk_position": st.sampled_from([None, "last"]),
    },
    lc.ToolMessage: {"tool_call_id": TEXT, "artifact": NESTED},
    lc.ToolMessageChunk: {"tool_call_id": TEXT, "artifact": NESTED},
    lc.ChatMessage: {"role": TEXT},
    lc.ChatMessageChunk: {"role": TEXT},
    lc.FunctionMessage: {"name": TEXT},
    lc.FunctionMessageChunk: {"name": TEXT},
    lc.RemoveMessage: {"id": TEXT, "content": st.just("")},
}


@st.composite
def any_message(draw: st.DrawFn) -> lc.BaseMessage:
    """A message of any class, with some of its fields given, and made in either way."""
    kind = draw(st.sampled_from(list(OWN)))
    needed = {"content", *OWN[kind]} - {"usage_metadata", "tool_calls"}
    fields = {
        name: draw(values)
        for name, values in {**COMMON, **OWN[kind]}.items()
        if name in needed or draw(st.booleans())
    }
    return kind.model_construct(**fields) if draw(st.booleans()) else kind(**fields)


def parts(value: Any) -> Any:
    """All that a value consists of, in its order, with the type of each part."""
    kind = type(value)
    if isinstance(value, BaseModel):
        fields = parts(value.__dict__)
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        return kind, fields, parts(extra), value.__pydantic_fields_set__, parts(private)
    if isinstance(value, dict):
        return kind, [(parts(key), parts(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [parts(item) for item in value]
    return kind, repr(value) if kind is float else value


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, BaseModel):
        spoil(value.__dict__)
        spoil(value.__pydantic_extra__)
        value.__pydantic_fields_set__.add("spoilt")
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoilt")


def packed(value: Any) -> tuple[str, bytes]:
    found: tuple[str, bytes] = JsonPlusSerializer().dumps_typed(value)
    return found


def fresh(data: tuple[str, bytes]) -> Any:
    return JsonPlusSerializer().loads_typed(data)


class Counted:
    """A serde whose hook remembers messages, and how often the serde's own was asked."""

    def __init__(self, most_bytes: int = messages.MOST_BYTES) -> None:
        self.count = 0
        self._hook = JsonPlusSerializer()._unpack_ext_hook
        self.copies = Copies(self._counted, most_bytes)
        self._serde = JsonPlusSerializer(__unpack_ext_hook__=self.copies.made)

    def _counted(self, code: int, data: bytes) -> Any:
        self.count += 1
        return self._hook(code, data)

    def loads(self, data: tuple[str, bytes]) -> Any:
        return self._serde.loads_typed(data)


@settings(max_examples=100, deadline=None)
@given(st.lists(any_message(), max_size=3), st.booleans())
def test_a_copy_is_what_a_fresh_decode_makes(found: list[Any], is_nested: bool) -> None:
    data = packed({"a": [{"b": found}]} if is_nested else found)
    serde = JsonPlusSerializer()
    readers = Readers()
    for _ in range(5):
        expected, read = fresh(data), readers.of(serde).loads_typed(data)
        assert parts(read) == parts(expected)
        assert parts(pickle.loads(pickle.dumps(read))) == parts(expected)
        assert packed(read) == packed(expected)
        if expected == fresh(data):  # without NaN
            assert read == expected
        spoil(expected)
        spoil(read)
        assert parts(read) == parts(expected)  # also where two parts are one object


@settings(max_examples=40, deadline=None)
@given(any_message())
def test_a_copy_does_what_a_message_does(message: Any) -> None:
    data, counted = packed(message), Counted()
    read = [counted.loads(data) for _ in range(4)][-1]
    expected = fresh(data)
    if not isinstance(expected, lc.BaseMessage):
        return
    assert read.model_fields_set == expected.model_fields_set
    assert read.__repr__() == expected.__repr__()
    assert parts(read.model_dump(exclude_unset=True)) == parts(
        expected.model_dump(exclude_unset=True)
    )
    for each in (read, expected):
        each.id, each.later = "new", ["an extra"]
        each.response_metadata = {"new": True}
    assert parts(read.model_copy(deep=True)) == parts(expected.model_copy(deep=True))


def one_of(kind: type[lc.BaseMessage]) -> lc.BaseMessage:
    """A simple message of a class."""
    needs = {"tool_call_id": "c", "role": "r", "name": "n", "id": "i"}
    fields = {name: text for name, text in needs.items() if name in kind.model_fields}
    return kind(content="" if kind is lc.RemoveMessage else "c", **fields)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_messages_of_langchain_are_copied(kind: type[lc.BaseMessage]) -> None:
    # Where this fails with a new release, parts of it that `messages` relies on have changed.
    data, counted = packed([one_of(kind), "x"]), Counted()
    read = [counted.loads(data) for _ in range(5)]
    assert counted.count == 2
    assert [parts(each) for each in read] == [parts(fresh(data))] * 5
    assert len({id(each[0]) for each in read}) == 5


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_langgraph_tells_nobody_of_what_is_copied(kind: type[lc.BaseMessage]) -> None:
    assert events_of(lambda: fresh(packed(one_of(kind)))) == []


def events_of(call: Any) -> list[Any]:
    events: list[Any] = []
    unregister = register_serde_event_listener(events.append)
    try:
        call()
    finally:
        unregister()
    return events


class Name(str, enum.Enum):
    ME = "me"


class Ambiguous(enum.Enum):
    """Neither true nor false, as an array of numpy is."""

    BOTH = 2

    def __bool__(self) -> bool:
        raise ValueError("both")


class Mine(lc.HumanMessage):
    made_at: float = 0.0


class Shaped(BaseModel):
    x: int


def Made(**fields: Any) -> lc.HumanMessage:
    return lc.HumanMessage(**fields)


def tool(artifact: Any) -> lc.ToolMessage:
    return lc.ToolMessage("c", tool_call_id="1", artifact=artifact)


def called_as(name: str) -> tuple[str, bytes]:
    """The bytes of a message that is made with a function of this file."""
    kind = type(name, (lc.HumanMessage,), {"__module__": __name__})
    return packed(kind("c"))


def level(count: int) -> Any:
    return functools.reduce(lambda inner, _: {"a": inner}, range(count), 1)


def shared() -> lc.AIMessageChunk:
    """A chunk two parts of which are one object, once it is decoded."""
    text = '{"a": {"b": 1}}'
    call = {"type": "tool_call_chunk", "name": "f", "args": text, "id": "1", "index": 0}
    return lc.AIMessageChunk.model_construct(
        content=[call],
        tool_call_chunks=[call],
        response_metadata={"output_version": "v1"},
        chunk_position="last",
    )


UNCOPIED = {
    "datetime": packed(tool(datetime(2026, 1, 1, tzinfo=timezone.utc))),
    "uuid": packed(tool(UUID(int=1))),
    "decimal": packed(tool({"a": [Decimal("1.0")]})),
    "set": packed(tool({1, 2})),
    "tuple key": packed(tool({(1, 2): 3})),
    "ambiguous": packed(tool({"a": [Ambiguous.BOTH]})),
    "nan": packed(tool([float("nan")])),
    "deep": packed(tool(level(DEEPEST + 1))),
    "shared": packed(shared()),
    "derived": packed(Mine("c")),
    "function": called_as("Made"),
    "text of an object": packed(lc.HumanMessage.model_construct(content="c", name=Name.ME)),
    "long": packed(lc.HumanMessage("c" * LONGEST)),
}


@pytest.mark.parametrize("data", UNCOPIED.values(), ids=UNCOPIED.keys())
def test_what_a_copy_might_not_equal_is_left_to_the_serde(data: tuple[str, bytes]) -> None:
    counted = Counted()
    for turn in range(1, 5):
        expected = fresh(data)
        events = events_of(lambda: fresh(data))
        assert events_of(lambda: spoil(counted.loads(data))) == events
        assert counted.count == 2 * turn - 1
        read = counted.loads(data)
        assert counted.count == 2 * turn
        assert parts(read) == parts(expected)
        spoil(expected)
        spoil(read)
        assert parts(read) == parts(expected)


def test_two_messages_with_nan_differ() -> None:
    data, counted = packed(tool([float("nan")])), Counted()
    assert [counted.loads(data) for _ in range(4)][-1] != counted.loads(data)


def test_a_deep_message_is_read_where_little_of_the_stack_is_left() -> None:
    data, counted = packed(tool(level(240))), Counted()

    def below(frames: int) -> Any:
        return below(frames - 1) if frames else [counted.loads(data) for _ in range(4)][-1]

    assert parts(below(500)) == parts(fresh(data))


def test_within_other_objects_messages_are_the_serdes() -> None:
    data, counted = packed([Send("n", {"m": [lc.HumanMessage("c")]})]), Counted()
    for _ in range(4):
        (send,) = counted.loads(data)
        assert parts(send.arg) == parts(fresh(data)[0].arg)
        spoil(send.arg)


# --- serdes ---


class Derived(JsonPlusSerializer):
    pass


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return packed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return fresh(data)


def with_attribute(name: str, value: Any) -> JsonPlusSerializer:
    serde = JsonPlusSerializer()
    setattr(serde, name, value)
    return serde


def without(name: str) -> JsonPlusSerializer:
    serde = JsonPlusSerializer()
    delattr(serde, name)
    return serde


def own_hook(code: int, data: bytes) -> Any:
    return code, data


OTHERS: dict[str, Any] = {
    "derived": Derived(),
    "unhashable": Unhashable(),
    "encrypted": EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16),
    "hook": JsonPlusSerializer(__unpack_ext_hook__=own_hook),
    "hook in its place": with_attribute("_unpack_ext_hook", own_hook),
    "wrapped hook": with_attribute(
        "_unpack_ext_hook", functools.wraps(JsonPlusSerializer()._unpack_ext_hook)(own_hook)
    ),
    "loads": with_attribute("loads_typed", fresh),
    "dumps": with_attribute("dumps_typed", packed),
    "without a hook": without("_unpack_ext_hook"),
    "without a mark": without("_custom_unpack_ext_hook"),
}


@pytest.mark.parametrize("serde", OTHERS.values(), ids=OTHERS.keys())
def test_another_serde_decodes_for_itself(serde: Any) -> None:
    assert Readers().of(serde) is serde


def test_a_serde_that_is_changed_in_use_is_asked_again() -> None:
    serde, readers, data = JsonPlusSerializer(), Readers(), packed([lc.HumanMessage("c")])
    for _ in range(3):
        readers.of(serde).loads_typed(data)
    other = JsonPlusSerializer(allowed_msgpack_modules=[])
    serde._unpack_ext_hook = other._unpack_ext_hook
    reader: Any = readers.of(serde)
    assert reader._unpack_ext_hook.__self__._hook is other._unpack_ext_hook
    serde._unpack_ext_hook = own_hook
    assert readers.of(serde).loads_typed(data)[0][0] == EXT_PYDANTIC_V2
    serde.loads_typed = lambda data: "mine"  # type: ignore[method-assign]
    assert readers.of(serde).loads_typed(data) == "mine"


def test_each_serde_has_an_allowlist_of_its_own() -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=[(__name__, "Shaped")])
    lax, readers = strict.with_msgpack_allowlist([Mine]), Readers()
    data = packed([lc.HumanMessage("c"), Mine("c"), Shaped(x=1)])
    for _ in range(4):
        for serde in (strict, lax):
            assert parts(readers.of(serde).loads_typed(data)) == parts(serde.loads_typed(data))
    assert type(readers.of(lax).loads_typed(data)[1]) is Mine
    assert type(readers.of(strict).loads_typed(data)[1]) is dict


def test_a_serde_that_nobody_has_is_forgotten() -> None:
    serde, readers = JsonPlusSerializer(), Readers()
    for _ in range(3):
        readers.of(serde).loads_typed(packed([lc.HumanMessage("c")]))
    gone = weakref.ref(serde)
    del serde
    gc.collect()
    assert gone() is None


# --- bounds ---

SIZED: dict[str, Any] = {
    "short": lambda n: lc.HumanMessage(f"{n}"),
    "usual": lambda n: lc.HumanMessage(f"{n}" + "x" * 600, id=f"{n}"),
    "calls": lambda n: lc.AIMessage(
        "", tool_calls=[{"name": "f", "args": {"a": n}, "id": f"{n} {i}"} for i in range(3)]
    ),
    "lists": lambda n: lc.HumanMessage(f"{n}", additional_kwargs={"a": [[] for _ in range(200)]}),
    "keys": lambda n: lc.HumanMessage(f"{n}", additional_kwargs={f"{n} {i}": i for i in range(50)}),
    "wide": lambda n: lc.HumanMessage(f"{n}" + "\N{PARROT}" + "x" * 2000),
}


@pytest.mark.parametrize("make", SIZED.values(), ids=SIZED.keys())
def test_what_is_kept_takes_no_more_memory_than_was_said(make: Any) -> None:
    most = 400_000
    counted = Counted(most)
    data = [packed([make(n)]) for n in range(10_000, 10_400)]
    taken = []
    tracemalloc.start()
    try:
        for each in data:
            counted.loads(each)
            counted.loads(each)
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # What is known to have been decoded once is counted for itself.
    assert 0.3 * most < max(taken) < 1.1 * most + 150 * len(data)


def test_what_is_read_in_turn_and_does_not_fit_is_kept_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And is not kept and dropped again each time, which would cost more than to decode it."""
    made: list[Any] = []
    mold_of = messages.mold_of
    monkeypatch.setattr(messages, "mold_of", lambda *of: made.append(of) or mold_of(*of))
    counted = Counted(100_000)
    data = [packed([SIZED["usual"](n)]) for n in range(100)]
    for _ in range(3):
        for each in data:
            counted.loads(each)
    made.clear()
    before = counted.count
    for _ in range(20):
        for each in data:
            assert parts(counted.loads(each)) == parts(fresh(each))
    decoded = counted.count - before
    assert decoded < 0.95 * 20 * len(data)
    assert len(made) <= decoded / ONE_OF + 1


def test_what_comes_later_takes_the_place_of_what_is_not_read_any_more() -> None:
    counted = Counted(100_000)
    early, late = ([packed([SIZED["usual"](n)]) for n in range(s, s + 12)] for s in (0, 100))
    for data in (early, late):
        for each in data * 60:
            counted.loads(each)
    before = counted.count
    for each in late:
        counted.loads(each)
    assert counted.count == before


def test_what_was_seen_once_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_SEEN", 10)
    counted = Counted()
    for n in range(100):
        counted.loads(packed([SIZED["short"](n)]))
        assert len(counted.copies._seen) <= 10


def test_a_weight_is_of_plain_data() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert weight_of([cycle]) == weight_of([[object()]]) == weight_of([level(DEEPEST)]) == 0
    assert 0 < weight_of([level(DEEPEST - 1)]) < weight_of([["x" * 9000]])


def test_threads_may_read_while_others_drop() -> None:
    counted = Counted(20_000)
    data = [packed([SIZED["calls"](n), SIZED["usual"](n)]) for n in range(20)]
    expected = [parts(fresh(each)) for each in data]

    def read(start: int) -> bool:
        for turn in range(100):
            at = (start * 7 + turn) % len(data)
            found = counted.loads(data[at])
            if parts(found) != expected[at]:
                return False
            spoil(found)
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


# --- through a saver ---


def test_each_reader_of_a_saver_has_its_own(saver: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "messages": [
            lc.HumanMessage("c", id="1"),
            lc.AIMessage("", tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "c"}]),
            lc.ToolMessage([{"type": "text", "text": "x"}], tool_call_id="c", artifact={"a": [1]}),
            tool(Ambiguous.BOTH),
            Mine("c"),
        ]
    }
    expected = parts(fresh(packed(values["messages"])))
    made = []
    init = lc.AIMessage.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(lc.AIMessage, "__init__", counting)
    first = put(saver, "t", values)
    second = put(saver, "t", {**values, "n": 1}, parent=first, new=["n"])
    saver.put_writes(second, [("messages", values["messages"])], "task")
    third = put(saver, "t", {"n": 2}, parent=second, versions={"n": 2})
    for _ in range(4):
        read = [
            values_of(saver, first)["messages"],
            *(
                each.checkpoint["channel_values"]["messages"]
                for each in saver.list(config("t"))
                if id_of(each.config) != id_of(third)
            ),
            saver.get_tuple(second).pending_writes[0][2],
        ]
        history = saver.get_delta_channel_history(config=third, channels=["messages"])["messages"]
        read += [history["writes"][0][2], history["seed"]]
        assert [parts(each) for each in read] == [expected] * len(read)
        for each in read:
            spoil(each)
    assert len(made) == 2  # of more than 28 that were read


def test_an_allowlist_of_a_copy_of_a_saver(saver: Called) -> None:
    saver.saver.serde = JsonPlusSerializer(allowed_msgpack_modules=[(__name__, "Shaped")])
    stored = put(saver, "t", {"m": [lc.HumanMessage("c"), Mine("c")]})
    allowed = Called(saver.saver.with_allowlist([(__name__, "Mine")]), saver.loop, saver.given)
    for _ in range(3):
        assert [type(each) for each in values_of(saver, stored)["m"]] == [lc.HumanMessage, dict]
        assert [type(each) for each in values_of(allowed, stored)["m"]] == [lc.HumanMessage, Mine]
