"""A message that is as it was when it was encoded is not encoded again, and any other one is."""

from __future__ import annotations

import copy
import gc
import sys
import tracemalloc
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from enum import Enum
from itertools import combinations, count
from types import FrameType
from typing import Any
from uuid import uuid4

import numpy
import ormsgpack
import pytest
from builders import config, put, values_of
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from sqlalchemy import URL

from ckpt_orm import SQLAlchemySaver, stretches, unchanged
from ckpt_orm.unchanged import SHORTEST, Encodings

SERDE = JsonPlusSerializer()
PLACE = ("thread", "", "messages")


class Counting(JsonPlusSerializer):
    """Nothing but a class of its own."""


class Word(str):
    """A string that equals another one, and is not the same."""

    __slots__ = ()


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
KWARGS = st.dictionaries(st.text(max_size=3), PLAIN, max_size=3)
CALLS = st.lists(
    st.fixed_dictionaries({"name": st.just("f"), "args": KWARGS, "id": st.text(max_size=3)}),
    max_size=2,
)

MESSAGES: st.SearchStrategy[Any] = st.one_of(
    st.builds(HumanMessage, content=st.text(max_size=8), additional_kwargs=KWARGS),
    st.builds(AIMessage, content=st.text(max_size=8), tool_calls=CALLS, response_metadata=KWARGS),
    st.builds(ToolMessage, content=st.text(max_size=8), tool_call_id=st.just("1"), artifact=PLAIN),
    st.builds(SystemMessage, content=st.lists(st.text(max_size=3), max_size=2)),
    st.text(max_size=3).map(lambda name: RemoveMessage(id=name)),
)


def set_field(name: str, value: Any) -> Callable[[BaseMessage], None]:
    return lambda message: setattr(message, name, value)


def set_entry(name: str, key: str, value: Any) -> Callable[[BaseMessage], None]:
    def change(message: BaseMessage) -> None:
        getattr(message, name)[key] = value

    return change


#: What an application, a node or a tracer may do to a message that it holds.
CHANGES: st.SearchStrategy[Callable[[BaseMessage], None]] = st.one_of(
    st.builds(set_field, st.sampled_from(["content", "id", "name"]), st.text(max_size=3)),
    st.builds(
        set_entry,
        st.sampled_from(["additional_kwargs", "response_metadata"]),
        st.text(max_size=2),
        PLAIN,
    ),
    st.builds(set_field, st.just("additional_kwargs"), KWARGS),
    st.just(lambda message: message.additional_kwargs.clear()),
)


def same(encodings: Encodings, messages: list[Any]) -> None:
    assert encodings.dumps(SERDE, messages, PLACE) == SERDE.dumps_typed(messages)


def loaded(encodings: Encodings, stored: tuple[str, bytes]) -> list[Any]:
    """A list that was read."""
    messages: list[Any] = SERDE.loads_typed(stored)
    encodings.loaded(SERDE, PLACE, messages, stored[1])
    return messages


#: To a list of messages, between two times that it is put.
HAPPENS = ("nothing", "add", "odd", "drop", "change", "copy", "turn", "load")


@given(st.data())
def test_any_history_of_a_list_is_encoded_as_the_serde_does(data: st.DataObject) -> None:
    most_bytes = data.draw(st.sampled_from([15_000, 1_000_000]))
    encodings = Encodings(most_bytes, shortest=1, stretch=data.draw(st.integers(1, 3)))
    messages: list[Any] = data.draw(st.lists(MESSAGES, min_size=1, max_size=5))
    for _ in range(data.draw(st.integers(2, 12))):
        for _ in range(data.draw(st.sampled_from([1, 4]))):
            same(encodings, messages)
        what = data.draw(st.sampled_from(HAPPENS))
        at = data.draw(st.integers(0, len(messages) - 1))
        if what == "add":
            messages = [*messages, data.draw(MESSAGES)]
        elif what == "odd":
            odd = ToolMessage("odd", tool_call_id="1", artifact={"at": datetime.now(timezone.utc)})
            messages = [*messages[:at], odd, *messages[at:]]
        elif what == "drop" and len(messages) > 1:
            messages = [*messages[:at], *messages[at + 1 :]]
        elif what == "change":
            data.draw(CHANGES)(messages[at])
        elif what == "copy":
            messages[at] = copy.deepcopy(messages[at])
        elif what == "turn":
            messages = messages[::-1]
        elif what == "load":
            messages = loaded(encodings, SERDE.dumps_typed(messages))


def known(*messages: Any) -> tuple[Encodings, list[Any]]:
    """Messages that were encoded often enough to be known, and to be what a list began with."""
    encodings, found = Encodings(shortest=1, stretch=1), list(messages)
    for _ in range(4):
        same(encodings, found)
    return encodings, found


def call() -> Any:
    return {"name": "f", "args": {"n": 1, "deep": [{"x": [1.0]}]}, "id": "c", "type": "tool_call"}


def deep_in_a_call(message: Any) -> None:
    message.tool_calls[0]["args"]["deep"][0]["x"][0] = 2.0


#: Changes to what is equal, or nearly: each is encoded otherwise than before, or has to be looked
#: at again.
EQUAL: dict[str, Callable[[Any], None]] = {
    "one to true": set_entry("additional_kwargs", "n", True),
    "one to a float": set_entry("additional_kwargs", "n", 1.0),
    "zero to its negative": set_entry("response_metadata", "zero", -0.0),
    "text to a subclass of text": set_field("content", Word("hello")),
    "deep in a call": deep_in_a_call,
    "a list to a tuple": set_entry("additional_kwargs", "items", (1, 2)),
    "a dict to an ordered one": set_field("additional_kwargs", OrderedDict(n=1, items=[1, 2])),
    "no metadata to an entry": set_entry("response_metadata", "new", None),
    "a call is added": lambda message: message.tool_calls.append(call()),
    "the order of entries": lambda message: message.additional_kwargs.update(
        {"n": message.additional_kwargs.pop("n")}
    ),
    "an extra field": set_field("extra_field", "here"),
}


def message_to_change() -> AIMessage:
    return AIMessage(
        "hello",
        name="1",
        tool_calls=[call()],
        additional_kwargs={"n": 1, "items": [1, 2]},
        response_metadata={"zero": 0.0},
    )


@pytest.mark.parametrize("change", EQUAL.values(), ids=EQUAL)
def test_a_change_is_seen_whatever_equals_it(change: Callable[[Any], None]) -> None:
    message = message_to_change()
    encodings, found = known(HumanMessage("before"), message)
    change(message)
    same(encodings, found)
    same(encodings, found)


def test_what_cannot_be_encoded_any_more_raises_as_the_serde_does() -> None:
    message = HumanMessage("x")
    encodings, found = known(message)
    for odd in (UserDict(), object()):
        message.additional_kwargs["odd"] = odd
        with pytest.raises(ormsgpack.MsgpackEncodeError):
            encodings.dumps(SERDE, found, PLACE)
    message.additional_kwargs.clear()
    same(encodings, found)


def test_what_msgpack_cannot_hold_is_pickled_whole() -> None:
    message = HumanMessage("x")
    encodings, found = known(message)
    message.additional_kwargs["odd"] = {1, 2}.__class__
    serde = JsonPlusSerializer(pickle_fallback=True)
    for _ in range(3):
        tag, payload = encodings.dumps(serde, found, PLACE)
        assert (tag, serde.loads_typed((tag, payload))) == ("pickle", found)


@pytest.mark.parametrize("number", [1, 15, 16, 17, 70_000])
def test_lists_of_any_length_have_the_serdes_header(number: int) -> None:
    encodings = Encodings(shortest=1)
    messages = [HumanMessage("x")] * number
    for _ in range(3):
        same(encodings, messages)


def objects() -> Iterator[Any]:
    """What changes without a field's becoming another object, and so is encoded each time."""
    yield ToolMessage("x", tool_call_id="1", artifact={"at": datetime.now(timezone.utc)})
    yield ToolMessage("x", tool_call_id="1", artifact={1, 2})
    yield ToolMessage("x", tool_call_id="1", artifact=HumanMessage("inner"))
    yield ToolMessage("x", tool_call_id="1", artifact=numpy.arange(4))
    yield ToolMessage("x", tool_call_id="1", artifact={"array": numpy.arange(4)})
    yield ToolMessage("x", tool_call_id="1", artifact=[{"bytes": b"four"}])


OBJECTS = ["a time", "a set", "a message", "an array", "an array inside", "bytes inside"]


@pytest.mark.parametrize("message", objects(), ids=OBJECTS)
def test_what_holds_more_than_plain_data_is_always_encoded(message: Any) -> None:
    encodings, found = known(HumanMessage("before"), message)
    if isinstance(message.artifact, HumanMessage):
        message.artifact.content = "changed"
    elif isinstance(message.artifact, set):
        message.artifact.add(3)
    elif isinstance(message.artifact, numpy.ndarray):
        message.artifact.resize((2, 2), refcheck=False)  # whose bytes are the same
    elif "array" in message.artifact:
        message.artifact["array"] = message.artifact["array"].view("float64")
    elif isinstance(message.artifact, list):
        message.artifact[0]["bytes"] = numpy.frombuffer(b"four", "uint8")
    else:
        message.artifact["at"] = None
    same(encodings, found)


def another_class(message: Any) -> None:
    message.__class__ = AIMessageChunk


def fields_in_turn(message: Any) -> None:
    """What two fields hold, each by the other's name and in its place."""
    names = {"additional_kwargs": "response_metadata", "response_metadata": "additional_kwargs"}
    turned = {names.get(name, name): value for name, value in message.__dict__.items()}
    message.__dict__.clear()
    message.__dict__.update(turned)


@pytest.mark.parametrize("change", [another_class, fields_in_turn])
def test_the_same_objects_may_be_another_message(change: Callable[[Any], None]) -> None:
    message = AIMessage("a", additional_kwargs={"n": 1}, response_metadata={"n": 2})
    encodings, found = known(message)
    change(message)
    same(encodings, found)


def test_a_field_may_go_from_one_message_to_the_next() -> None:
    """All names and all values, one behind the other, are the same then."""
    first, second = ToolMessage("a", tool_call_id="1"), HumanMessage("b")
    encodings, found = known(first, second)
    name, value = list(first.__dict__.items())[-1]
    fields = {name: value, **second.__dict__}
    del first.__dict__[name]
    second.__dict__.clear()
    second.__dict__.update(fields)
    same(encodings, found)


@pytest.mark.parametrize("stretch", [1, 2, 3])
def test_what_a_list_began_with_may_end_earlier_change_or_go_on(stretch: int) -> None:
    encodings = Encodings(shortest=1, stretch=stretch)
    messages: list[Any] = [AIMessage(f"{n}", response_metadata={"n": n % 2}) for n in range(9)]
    for number in (3, 3, 3, 4, 5, 5, 9, 9, 9, 4, 9, 1, 9):
        same(encodings, messages[:number])
    for number, message in enumerate(messages):
        same(encodings, messages)
        same(encodings, messages)
        message.response_metadata["n"] = bool(number % 2)
        same(encodings, messages)
    other = [*messages[:4], HumanMessage("fork"), *messages[5:]]
    for found in (other, messages, other, other, messages[1:], messages):
        same(encodings, found)


#: What a node may do to a list and its first message while they are encoded.
MEANWHILE: dict[str, Callable[[list[Any]], object]] = {
    "a field": lambda found: setattr(found[0], "content", "changed"),
    "an entry": lambda found: found[0].additional_kwargs.update(n=2),
    "a message more": lambda found: found.append(HumanMessage("new")),
    "a message less": lambda found: found.pop(),
    "something else": lambda found: found.append("text"),
}


@pytest.mark.parametrize("change", MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("at", range(3))
def test_what_changes_meanwhile(
    change: Callable[[list[Any]], object], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings = Encodings(shortest=1)
    found: list[Any] = [
        HumanMessage(f"{number}", additional_kwargs={"n": number}) for number in range(3)
    ]
    same(encodings, found)
    dumps, calls = JsonPlusSerializer.dumps_typed, count()

    def interrupted(self: JsonPlusSerializer, value: Any) -> tuple[str, bytes]:
        encoded = dumps(self, value)
        if next(calls) == at:
            change(found)
        return encoded

    monkeypatch.setattr(JsonPlusSerializer, "dumps_typed", interrupted)
    before = found.copy()
    read = SERDE.loads_typed(encodings.dumps(SERDE, found, PLACE))
    assert len(read) == 3
    assert read[1:] == before[1:]
    monkeypatch.undo()
    same(encodings, found)


#: What a node may do to a list of `bystanders`, and then take back.
AND_BACK: dict[str, tuple[Callable[[list[Any]], object], Callable[[list[Any]], object]]] = {
    "a field": (
        lambda found: setattr(found[1], "content", "changed"),
        lambda found: setattr(found[1], "content", "b"),
    ),
    "an entry more": (
        lambda found: found[1].additional_kwargs.update(z=1),
        lambda found: found[1].additional_kwargs.pop("z", None),
    ),
    "an entry that is none of plain data": (
        lambda found: found[1].additional_kwargs.update(z=datetime(2026, 1, 1)),
        lambda found: found[1].additional_kwargs.pop("z", None),
    ),
    "a first entry": (
        lambda found: found[0].additional_kwargs.update(z=1),
        lambda found: found[0].additional_kwargs.clear(),
    ),
    "an argument": (
        lambda found: found[1].tool_calls[0]["args"].update(x=True),
        lambda found: found[1].tool_calls[0]["args"].update(x=1),
    ),
    "a field more": (
        lambda found: setattr(found[1], "more", 1),
        lambda found: found[1].__pydantic_extra__.clear(),
    ),
    "a class": (
        lambda found: setattr(found[1], "__class__", AIMessageChunk),
        lambda found: setattr(found[1], "__class__", AIMessage),
    ),
    "their order": (lambda found: found.reverse(), lambda found: found.reverse()),
}


def bystanders() -> list[Any]:
    return [
        HumanMessage("a"),
        AIMessage("b", additional_kwargs={"n": 1}, tool_calls=[call()]),
        ToolMessage("c", tool_call_id="1", artifact={"k": 1}),
    ]


def with_turns(function: Callable[[], object], turns: dict[int, Callable[[], object]]) -> int:
    """Call something, while something else has its turn before some of the steps of `unchanged`.

    Returns:
        How many steps there were.
    """
    steps, before = count(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in {unchanged.__file__, stretches.__file__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (turn := turns.get(next(steps))):
            turn()
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return next(steps)


@pytest.mark.parametrize(("change", "back"), AND_BACK.values(), ids=AND_BACK)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "changed"])
def test_what_changes_meanwhile_and_back(
    change: Callable[[list[Any]], object], back: Callable[[list[Any]], object], is_new: bool
) -> None:
    def begin() -> tuple[Callable[[], object], Encodings, list[Any]]:
        encodings, found = Encodings(shortest=1), bystanders()
        if not is_new:
            same(encodings, [HumanMessage("d"), *found])
            found[1].additional_kwargs["other"] = 1
        return lambda: encodings.dumps(SERDE, found, PLACE), encodings, found

    number = with_turns(begin()[0], {})
    places = range(0, number, number // 20)
    for first, last in combinations((*places, None), 2):
        dumps, encodings, found = begin()
        turns = {first: lambda now=found: change(now)}
        if last is not None:
            turns[last] = lambda now=found: back(now)
        with_turns(dumps, turns)
        same(encodings, found)
        back(found)
        same(encodings, found)


def test_what_is_odd_is_kept_by_nobody() -> None:
    """It may hold anything, of which its encoding tells no size."""
    encodings = Encodings(shortest=1)
    found: list[Any] = [HumanMessage(f"{number}") for number in range(9)]
    found.append(ToolMessage("x", tool_call_id="1", artifact={"at": datetime(2026, 1, 1)}))
    for _ in range(2):
        same(encodings, found)
    kept, odd = weakref.ref(found[0]), weakref.ref(found[-1])
    del found
    gc.collect()
    assert kept() is not None
    assert odd() is None


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the serde is asked to encode."""
    asked: list[Any] = []
    dumps = JsonPlusSerializer.dumps_typed

    def counted(self: JsonPlusSerializer, value: Any) -> tuple[str, bytes]:
        asked.append(value)
        return dumps(self, value)

    monkeypatch.setattr(JsonPlusSerializer, "dumps_typed", counted)
    return asked


def test_what_is_known_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = HumanMessage("a"), AIMessage("b", tool_calls=[call()]), AIMessage("c")
    encodings, _ = known(first, second)
    asked = calls_of(monkeypatch)
    encodings.dumps(SERDE, [first, second], PLACE)
    encodings.dumps(SERDE, [second, first, first], PLACE)
    assert asked == []
    encodings.dumps(SERDE, [first, second, third], PLACE)
    assert asked == [[third]]
    encodings.dumps(SERDE, [first, third], PLACE)
    assert asked == [[third]]
    second.tool_calls[0]["id"] = "other"
    encodings.dumps(SERDE, [first, second, third], PLACE)
    assert asked == [[third], [second]]


def test_what_was_read_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encodings = Encodings(shortest=1)
    before = [HumanMessage("a"), AIMessage("b", tool_calls=[call()]), HumanMessage("c")]
    stored = SERDE.dumps_typed(before)
    messages = loaded(encodings, stored)
    asked = calls_of(monkeypatch)
    assert encodings.dumps(SERDE, messages, PLACE) == stored
    assert asked == []
    new = AIMessage("new")
    encodings.dumps(SERDE, [*messages, new], PLACE)
    assert asked == [[new]]
    messages[1].tool_calls[0]["id"] = "other"
    encodings.dumps(SERDE, [*messages, new], PLACE)
    assert asked == [[new], [messages[1]]]


@pytest.mark.parametrize("change", EQUAL.values(), ids=EQUAL)
def test_what_was_read_and_changed_is_encoded(change: Callable[[Any], None]) -> None:
    encodings = Encodings(shortest=1)
    found = loaded(encodings, SERDE.dumps_typed([HumanMessage("before"), message_to_change()]))
    change(found[1])
    same(encodings, found)
    same(encodings, found)


def test_what_was_read_may_have_an_extra_field_that_goes() -> None:
    encodings = Encodings(shortest=1)
    odd = HumanMessage("a", extra_field="here")  # type: ignore[call-arg]
    found = loaded(encodings, SERDE.dumps_typed([odd, HumanMessage("b")]))
    found[0].__pydantic_extra__.clear()
    same(encodings, found)
    same(encodings, found)


def fresh_ids(serde: JsonPlusSerializer) -> Any:
    """What gives each message that it reads an id of its own."""
    made = serde._unpack_ext_hook

    def hook(code: int, data: bytes) -> Any:
        message = made(code, data)
        message.id = uuid4().hex
        return message

    return hook


def read_by_a_hook() -> JsonPlusSerializer:
    return JsonPlusSerializer(__unpack_ext_hook__=fresh_ids(SERDE))  # type: ignore[call-arg]


def read_by_another_hook() -> JsonPlusSerializer:
    serde = JsonPlusSerializer()
    serde._unpack_ext_hook = fresh_ids(serde)
    return serde


def read_by_another_method() -> JsonPlusSerializer:
    serde, hook = JsonPlusSerializer(), read_by_a_hook()
    serde.loads_typed = hook.loads_typed  # type: ignore[method-assign]
    return serde


@pytest.mark.parametrize("make", [read_by_a_hook, read_by_another_hook, read_by_another_method])
def test_what_an_application_adds_to_what_is_read_is_stored(
    make: Callable[[], JsonPlusSerializer],
) -> None:
    encodings, serde = Encodings(shortest=1), make()
    stored = SERDE.dumps_typed([HumanMessage("a"), HumanMessage("b")])
    found = serde.loads_typed(stored)
    encodings.loaded(serde, PLACE, found, stored[1])
    assert encodings.dumps(serde, found, PLACE) == SERDE.dumps_typed(found)


class Colour(Enum):
    """A type that only some serdes read."""

    RED = "red"


def test_what_another_serde_read_is_encoded() -> None:
    """A serde that does not admit a type reads what it consists of."""
    encodings, strict = Encodings(shortest=1), JsonPlusSerializer(allowed_msgpack_modules=None)
    message = ToolMessage("x", tool_call_id="1", artifact={"colour": Colour.RED})
    stored = SERDE.dumps_typed([message])
    found = strict.loads_typed(stored)
    assert found != [message]
    encodings.loaded(strict, PLACE, found, stored[1])
    assert SERDE.loads_typed(encodings.dumps(SERDE, found, PLACE)) == found


def test_a_list_that_is_pickled_is_left_to_the_serde(monkeypatch: pytest.MonkeyPatch) -> None:
    serde = JsonPlusSerializer(pickle_fallback=True)
    encodings = Encodings(shortest=1)
    found = [HumanMessage("x"), HumanMessage("x", additional_kwargs={"odd": dict})]
    encodings.dumps(serde, found, PLACE)
    asked = calls_of(monkeypatch)
    assert encodings.dumps(serde, found, PLACE) == serde.dumps_typed(found)
    assert asked == [found, found]


def test_a_list_whose_payload_has_another_header_is_not_remembered() -> None:
    """A list in more bytes than are needed is one too, which other programs may have written."""
    encodings, messages = Encodings(shortest=1), [HumanMessage("a"), HumanMessage("b")]
    _, payload = SERDE.dumps_typed(messages)
    encodings.loaded(SERDE, PLACE, messages, b"\xdc\x00\x02" + payload[1:])
    assert len(encodings._lists) == 0
    same(encodings, messages)


@pytest.mark.parametrize("read", [False, True])
def test_only_what_is_odd_is_encoded_each_time(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encodings = Encodings(shortest=1)
    now = datetime(2026, 1, 2, tzinfo=timezone.utc)
    odd = ToolMessage("x", tool_call_id="1", artifact={"at": now})
    found: list[Any] = [HumanMessage(f"{number}") for number in range(9)]
    found[4:4] = [odd]
    if read:
        found = loaded(encodings, SERDE.dumps_typed(found))
    same(encodings, found)
    asked = calls_of(monkeypatch)
    for _ in range(20):
        found = [*found, HumanMessage("new")]
        asked.clear()
        encodings.dumps(SERDE, found, PLACE)
        assert asked == [[found[4]], [found[-1]]]
    found[4].artifact["at"] = None
    monkeypatch.undo()
    same(encodings, found)


def test_a_list_of_which_much_is_odd_is_left_to_the_serde(monkeypatch: pytest.MonkeyPatch) -> None:
    encodings, found = Encodings(shortest=1), [*objects(), HumanMessage("a")]
    same(encodings, found)
    asked = calls_of(monkeypatch)
    encodings.dumps(SERDE, found, PLACE)
    encodings.loaded(SERDE, PLACE, found, SERDE.dumps_typed(found)[1])
    encodings.dumps(SERDE, found, PLACE)
    assert asked == [found] * 3


@pytest.mark.parametrize("read", [False, True])
def test_a_list_that_is_too_large_is_left_to_the_serde(
    read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings = Encodings(200_000, shortest=1)
    found: list[Any] = [HumanMessage("x" * 1_000) for _ in range(60)]
    if read:
        found = loaded(encodings, SERDE.dumps_typed(found))
    same(encodings, found)
    asked = calls_of(monkeypatch)
    for _ in range(3):
        encodings.dumps(SERDE, found, PLACE)
    assert asked == [found] * 3
    found = loaded(encodings, SERDE.dumps_typed(found[-5:]))
    asked.clear()
    encodings.dumps(SERDE, found, PLACE)
    assert asked == []


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [*found[:20], HumanMessage("new"), *found[21:]],
        lambda found: [*found[:20], *found[25:]],
        lambda found: [*found[5:], HumanMessage("new")],
        lambda found: [*found[:10], *found[30:], *found[10:30]],
        lambda found: found[:30],
        lambda found: [found[0], HumanMessage("summary"), *found[-3:]],
    ],
    ids=["edited", "removed", "window", "moved", "an earlier fork", "summarized"],
)
def test_of_another_list_only_what_is_new_is_encoded(
    change: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings = Encodings(shortest=1)
    found: list[Any] = [HumanMessage(f"{number}", id=f"{number % 3}") for number in range(40)]
    for number in range(30, 41):
        same(encodings, found[:number])
    other = change(found)
    expected = SERDE.dumps_typed(other)
    asked = calls_of(monkeypatch)
    assert encodings.dumps(SERDE, other, PLACE) == expected
    encoded = [message for messages in asked for message in messages]
    assert encoded == [message for message in other if message.content in ("new", "summary")]
    asked.clear()
    assert encodings.dumps(SERDE, other, PLACE) == expected
    assert asked == []


def test_a_server_that_has_run_for_long_remembers_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever fills the memory: each run of a thread reads its list first, and then puts it."""
    encodings = Encodings(200_000, shortest=1)
    stored = SERDE.dumps_typed([HumanMessage(f"{number}") for number in range(20)])
    for number in range(50):
        encodings.loaded(SERDE, (f"{number}", "", "messages"), SERDE.loads_typed(stored), stored[1])
    assert not encodings._lists.has_room()
    messages = loaded(encodings, stored)
    asked = calls_of(monkeypatch)
    for _ in range(10):
        messages = [*messages, HumanMessage("new")]
        encodings.dumps(SERDE, messages, PLACE)
    assert asked == [[message] for message in messages[20:]]


def test_a_short_list_is_left_to_the_serde(monkeypatch: pytest.MonkeyPatch) -> None:
    encodings, messages = Encodings(), [HumanMessage("a")] * (SHORTEST - 1)
    asked = calls_of(monkeypatch)
    for _ in range(3):
        encodings.dumps(SERDE, messages, PLACE)
    assert asked == [messages] * 3


def test_another_serde_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    message = HumanMessage("a")
    encodings, found = known(message)
    asked = calls_of(monkeypatch)
    encodings.dumps(Counting(), found, PLACE)
    encodings.dumps(SERDE, {"messages": found}, PLACE)
    encodings.dumps(SERDE, (message,), PLACE)
    encodings.dumps(SERDE, [message, "text"], PLACE)
    encodings.dumps(SERDE, [], PLACE)
    assert len(asked) == 5
    patched = JsonPlusSerializer()
    patched.dumps_typed = lambda value: ("mine", b"")  # type: ignore[method-assign]
    assert encodings.dumps(patched, found, PLACE) == ("mine", b"")


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("dicts", [0, 200])
def test_no_more_is_kept_than_it_is_told(calls: int, dicts: int) -> None:
    def keep(encodings: Encodings, number: int) -> None:
        messages = [
            AIMessage(
                f"{number}-{i}" * 100,
                tool_calls=[call() for _ in range(calls)],
                additional_kwargs={"all": [{} for _ in range(dicts)]},
            )
            for i in range(10)
        ]
        for _ in range(3):
            encodings.dumps(SERDE, messages, (f"{number}", "", "messages"))

    most = 2_000_000
    encodings = Encodings(most, shortest=1)
    keep(encodings, 0)
    tracemalloc.start()
    try:
        for number in range(150):
            keep(encodings, number)
        gc.collect()
        assert 0.2 * most < tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()
    assert len(encodings._lists) < 100


def test_large_lists_take_no_more_than_that() -> None:
    """Each nearly as large as a half of what is kept."""
    most = 4_000_000
    encodings = Encodings(most, shortest=1)
    tracemalloc.start()
    try:
        for number in range(8):
            messages = [HumanMessage(f"{number}" * 90_000) for _ in range(10)]
            encodings.dumps(SERDE, messages, (f"{number}", "", "messages"))
            del messages
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()


def test_threads_may_encode_at_once() -> None:
    encodings = Encodings(400_000, shortest=1, stretch=2)
    messages: list[AnyMessage] = [HumanMessage(f"{n}" * 40) for n in range(60)]
    lists = [messages[n:] for n in range(10)] + [messages[: 60 - n] for n in range(40)]
    expected = [SERDE.dumps_typed(found) for found in lists]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: encodings.dumps(SERDE, lists[n % 50], PLACE), range(800))
        assert all(one == expected[n % 50] for n, one in enumerate(found))


def test_a_saver_stores_what_a_node_has_changed_in_place(sqlite_url: URL) -> None:
    with SQLAlchemySaver.from_url(sqlite_url) as saver:
        saver.setup()
        messages: list[AnyMessage] = [HumanMessage("first"), AIMessage("b", tool_calls=[call()])]
        messages += [HumanMessage(f"{number}") for number in range(SHORTEST)]
        at: Any = None
        for number in range(6):
            messages = [*messages, HumanMessage(f"{number}" * 800, id=f"{number}")]
            messages[1].additional_kwargs["seen"] = number
            at = put(saver, "t", {"messages": messages}, parent=at)
            found = values_of(saver, config("t"))["messages"]
            assert found == messages
            assert found[1].additional_kwargs == {"seen": number}
