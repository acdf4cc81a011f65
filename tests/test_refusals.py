"""What the serde cannot hold is told by name; of metadata everything else is kept, and found."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypedDict

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, exact, metadata_of, put, values_of
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from sqlalchemy import URL, create_engine, select

from ckpt_orm import Checkpoint, InvalidConfig, SQLAlchemySaver
from ckpt_orm.compression import compressed
from ckpt_orm.errors import NotSerializable
from ckpt_orm.refusals import DEEPEST, MOST, Remains, refusal

BROKEN = "key\ud800"
SECRET = "s3cret"


class Unknown:
    """What no serde knows."""

    def __init__(self, *held: Any) -> None:
        self.held = held


@dataclass
class Ticket:
    owner: Any


class Odd(dict[Any, Any]):
    """A dict that cannot be looked into."""

    def items(self) -> Any:
        raise RuntimeError(SECRET)

    def __iter__(self) -> Any:
        raise RuntimeError(SECRET)


def nested(depth: int, innermost: Any = 0) -> Any:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


def in_itself() -> list[Any]:
    found: list[Any] = [SECRET]
    found.append(found)
    return found


LEAVE = "leave it out, or give the saver a serde that can"
UNKNOWN = f"an object of type {__name__}.Unknown"

#: A value, what is wrong with it, and the remedy.
REFUSED = {
    "object": (Unknown(SECRET), UNKNOWN, LEAVE),
    "object in a list": ([SECRET, Unknown(SECRET)], f"{UNKNOWN}, in a list", LEAVE),
    "object in a message": (
        [AIMessage(SECRET, additional_kwargs={"a": Unknown()})],
        f"{UNKNOWN}, in a dict, in a langchain_core.messages.ai.AIMessage, in a list",
        LEAVE,
    ),
    "object in a dataclass": (Ticket(Lock()), f"type _thread.lock, in a {__name__}.Ticket", LEAVE),
    "object in a send": (Send("n", {SECRET: Unknown()}), "in a dict, in a langgraph.types", LEAVE),
    "int": ({SECRET: 2**70}, "an int of more than 64 bits, in a dict", "keep it as a str"),
    "surrogate in a key": ({BROKEN: 1}, "a key with a lone surrogate, in a dict", "replace it"),
    "surrogate, deep": ([({BROKEN: SECRET},)], "in a dict, in a tuple, in a list", "replace it"),
    "key": ({(Unknown,): 1}, f"an object of type {type.__name__}, in a tuple, in a dict", LEAVE),
    "in itself": (in_itself(), "a list that contains itself", "refer to it by an id"),
    "deep": (nested(2_000), f"more than {DEEPEST} things in each other", "side by side"),
    "odd": (Odd(a=1, b=Unknown()), f"an object of type {__name__}.Odd", LEAVE),
}


@pytest.fixture(params=REFUSED, ids=lambda name: name.replace(" ", "-"))
def refused(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    return REFUSED[request.param]


def told(error: BaseException, where: str, problem: str, remedy: str) -> None:
    """That an error says what it should, and survives its way to another process."""
    words = str(error)
    assert words.startswith(f"{where} cannot be stored: the serde cannot hold ")
    assert problem in words
    assert remedy in words
    assert SECRET not in words
    assert str(pickle.loads(pickle.dumps(error))) == words
    assert isinstance(error, InvalidConfig)
    assert isinstance(error, TypeError)


def test_a_value_is_told_with_its_channel(saver: Called, refused: tuple[Any, str, str]) -> None:
    value, problem, remedy = refused
    with pytest.raises(NotSerializable) as caught:
        put(saver, "t", {"fine": [1], "the channel": value})
    told(caught.value, "channel 'the channel'", problem, remedy)
    assert caught.value.__cause__ is not None
    assert saver.get_tuple(config("t")) is None


SOME = named([b for b in BACKENDS if b.name in ("sqlite", "psycopg", "asyncpg")])


@SOME
def test_a_value_without_a_version_is_told_with_its_channel(saver: Called) -> None:
    with pytest.raises(NotSerializable) as caught:
        put(saver, "t", {"the channel": {BROKEN: 1}}, new=[])
    told(caught.value, "channel 'the channel'", "a key with a lone surrogate", "replace it")


@SOME
def test_a_write_is_told_with_its_channel(saver: Called, refused: tuple[Any, str, str]) -> None:
    value, problem, remedy = refused
    stored = put(saver, "t", {})
    with pytest.raises(NotSerializable) as caught:
        saver.put_writes(stored, [("fine", 1), ("the channel", value)], "task")
    told(caught.value, "a write to channel 'the channel'", problem, remedy)
    assert saver.get_tuple(stored).pending_writes == []


@SOME
def test_what_is_in_the_checkpoint_or_a_filter_is_told(saver: Called) -> None:
    for value in (Unknown(), {BROKEN: 1}, in_itself(), nested(2_000), Odd({1: Unknown()})):
        with pytest.raises(NotSerializable, match="the checkpoint cannot be stored"):
            put(saver, "t", {}, versions_seen={"node": value})
        with pytest.raises(NotSerializable, match="the filter cannot be stored"):
            list(saver.list(None, filter={"a": value}))
    assert saver.get_tuple(config("t")) is None


@pytest.mark.parametrize(
    "serde",
    [
        compressed(threshold=1),
        EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"),
        JsonPlusSerializer(pickle_fallback=True),
    ],
    ids=["compressed", "encrypted", "pickle"],
)
@SOME
def test_other_serdes_tell_it_as_well(backend: Backend, ready_url: URL, serde: Any) -> None:
    """Also pickle, of what it cannot hold either."""
    with called(backend, ready_url, serde=serde) as saver:
        with pytest.raises(NotSerializable, match=r"channel 'c' .* type _thread.lock, in"):
            put(saver, "t", {"c": [Lock()]})
        stored = put(saver, "t", {}, metadata={"a": {1: Lock(), 2: "kept"}})
        assert metadata_of(saver, stored) == {"a": {1: "<lock>", 2: "kept"}}


class KeysElsewhere(JsonPlusSerializer):
    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise ConnectionResetError("the keys cannot be reached")


@SOME
def test_a_failure_of_the_serde_is_not_the_values(backend: Backend, ready_url: URL) -> None:
    with called(backend, ready_url, serde=KeysElsewhere()) as saver:
        with pytest.raises(ConnectionResetError, match="the keys"):
            put(saver, "t", {"c": [1]})
        with pytest.raises(ConnectionResetError, match="the keys"):
            saver.put_writes(config("t", id="1"), [("c", 1)], "task")


class Tagged(JsonPlusSerializer):
    """Calls its payloads by another tag."""

    def __init__(self, tag: Any) -> None:
        super().__init__()
        self.tag = tag

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self.tag, super().dumps_typed(obj)[1]


@pytest.mark.parametrize("tag", ["a\x00b", "a\ud800b", "empty", None, b"msgpack", 5])
@SOME
def test_a_tag_that_cannot_be_stored_is_told(backend: Backend, ready_url: URL, tag: Any) -> None:
    """On either dialect; a payload called "empty" would be read as none."""
    with called(backend, ready_url, serde=Tagged(tag)) as saver:
        calls: list[Callable[[], Any]] = [
            lambda: put(saver, "t", {"c": [1]}),
            lambda: put(saver, "t", {}, metadata={"a": {1: 2}}),
            lambda: put(saver, "t", {}, versions_seen={1: 2}),
            lambda: saver.put_writes(config("t", id="1"), [("c", 1)], "task"),
            lambda: list(saver.list(None, filter={"a": {1: 2}})),
        ]
        for call in calls:
            with pytest.raises(InvalidConfig, match=r"the serde calls .* dumps_typed"):
                call()
        assert saver.get_tuple(config("t")) is None


@SOME
def test_a_graph_says_which_channel_it_was(saver: Called) -> None:
    class State(TypedDict):
        documents: Any

    builder = StateGraph(State)
    builder.add_node("load", lambda state: {"documents": [Unknown()]})
    builder.add_edge(START, "load")
    graph = builder.compile(checkpointer=saver.saver)
    with pytest.raises(NotSerializable, match="channel 'documents'"):
        saver.run(graph, {"documents": []}, config("t"))


#: Metadata, and what is left of it.
LEFT = {
    "surrogate": ({BROKEN: 1, "fine": [2]}, {"key?": 1, "fine": [2]}),
    "surrogates": (
        {1: {BROKEN: 1, "key?": 2, "key\udfff": 3}},
        {1: {"key?2": 1, "key?": 2, "key?3": 3}},
    ),
    "object": ({2: Unknown(), "fine": [1, {"x"}]}, {2: "<Unknown>", "fine": [1, {"x"}]}),
    "object as a key": ({Unknown(): 1, 2: 3}, {"<Unknown>": 1, 2: 3}),
    "int": ({2: 2**70, "fine": math.inf}, {2: str(2**70), "fine": math.inf}),
    "ints": ([10**400, {1: 10**5000}], [str(10**400), {1: "<int>"}]),
    "set": ({1: {"a", 2**70}}, {1: {"a", str(2**70)}}),
    "message": ({1: AIMessage("x", id=BROKEN)}, {1: AIMessage("x", id="key?")}),
    "in itself": (in_itself(), [SECRET, "<list>"]),
    "deep": (nested(2_000), nested(DEEPEST, "<list>")),
    "odd": (Odd({1: Unknown()}), "<Odd>"),
    "deep, beside an object": (
        {1: nested(100, [Unknown(), nested(200, 0)])},
        {1: nested(100, ["<Unknown>", nested(DEEPEST - 102, "<list>")])},
    ),
    "tuples as keys": ({1: {(1, (2, "x")): Unknown()}}, {1: {(1, (2, "x")): "<Unknown>"}}),
}


@pytest.mark.parametrize("name", LEFT)
def test_metadata_loses_as_little_as_possible(saver: Called, name: str) -> None:
    given, left = LEFT[name]
    stored = put(saver, "t", {}, metadata={"deep": given, "list": [given], "run": "r1"})
    found = metadata_of(saver, stored)
    assert exact(found["deep"]) == exact(left)
    assert found["run"] == "r1"
    assert [t.config for t in saver.list(None, filter={"run": "r1"})] == [stored]


def test_a_key_that_is_changed_hides_no_other_one(saver: Called) -> None:
    stored = put(saver, "t", {}, metadata={BROKEN: 1, "key?": 2, "key\udfff": 3})
    assert metadata_of(saver, stored) == {"key?": 2, "key?2": 1, "key?3": 3}
    assert [t.config for t in saver.list(None, filter={"key?": 2})] == [stored]


def test_a_key_that_msgpack_would_make_a_list_of(saver: Called) -> None:
    """Nor is it one when it comes back, which no dict could hold."""
    given = {(1, 2): "pair", (1, ("x", (None,))): 5, (): 0, "fine": [1]}
    stored = put(saver, "t", {}, metadata=given)
    assert exact(metadata_of(saver, stored)) == exact(given)
    assert [t.metadata for t in saver.list(None, filter={(1, 2): "pair"})] == [given]


def test_thousands_of_keys_of_the_same_name_are_numbered_in_time(saver: Called) -> None:
    """With a step for each, where a step for each pair would be a hundred million."""
    surrogates = [f"{chr(0xD800 + n % 1000)}{chr(0xD800 + n // 1000)}" for n in range(10_000)]
    objects = {Unknown(): n for n in range(10_000)}
    began = time.monotonic()
    stored = put(saver, "t", {}, metadata={**dict.fromkeys(surrogates, 1), "inner": objects})
    found = metadata_of(saver, stored)
    assert time.monotonic() - began < 15
    names = ["??", *(f"??{n}" for n in range(2, 10_001))]
    assert found.keys() == {*names, "inner"}
    assert list(found["inner"].values()) == list(range(10_000))


def test_a_web_of_objects_is_left_in_time() -> None:
    """Each of thirty dicts holds all of them: there are more ways through it than one can go."""
    web: list[dict[Any, Any]] = [{} for _ in range(30)]
    for each in web:
        each |= dict(enumerate(web))
    asked: list[Any] = []

    def dumps(value: Any) -> bytes:
        asked.append(value)
        return JsonPlusSerializer().dumps_typed(value)[1]

    assert dumps(Remains(dumps).of(web))
    assert len(asked) < MOST * 100
    assert "contains itself" in str(refusal("it", web, dumps))


@pytest.mark.parametrize(
    "store",
    [
        lambda saver: put(saver, "t\x00", {}),
        lambda saver: put(saver, "t", {}, ns="t\x00"),
        lambda saver: put(saver, "t", {"t\x00": [1]}),
        lambda saver: put(saver, "t", {"a": [1]}, versions={"a": "t\x00"}),
        lambda saver: saver.put(config("t"), checkpoint({}, id="t\x00"), {}, {}),
        lambda saver: saver.put_writes(config("t", id="1"), [("t\x00", 1)], "task"),
        lambda saver: saver.put_writes(config("t", id="1"), [("a", 1)], "t\x00"),
    ],
    ids=["thread", "namespace", "channel", "version", "checkpoint", "write", "task"],
)
@SOME
def test_an_id_that_cannot_be_stored_is_told(saver: Called, store: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"^'t\\x00': .* remove it"):
        store(saver)


@pytest.mark.parametrize("version", ["1\x00", "1\ud800", "1" * 2600, 1e16, math.nan, None, [1]])
@SOME
def test_a_version_beside_a_new_one_is_looked_at_too(saver: Called, version: Any) -> None:
    """Which only the document would hold, and Postgres might refuse."""
    found = checkpoint({"a": [1]}, {"a": version})
    with pytest.raises(InvalidConfig, match=r"an id, .* remove it|channel version|measure"):
        saver.put(config("t"), found, {}, {"a": "2"})


@pytest.mark.parametrize("channel", [5, 0, None, b"a", ("a",)], ids=repr)
@pytest.mark.parametrize(
    "store",
    [
        lambda saver, channel: put(saver, "t", {channel: [1]}),
        lambda saver, channel: put(saver, "t", {channel: 1}, new=[]),
        lambda saver, channel: put(saver, "t", {}, versions={channel: "1"}),
        lambda saver, channel: saver.put_writes(config("t", id="1"), [(channel, 1)], "task"),
        lambda saver, channel: saver.get_delta_channel_history(
            config=config("t"), channels=[channel]
        ),
    ],
    ids=["value", "without a version", "without a value", "write", "history"],
)
@SOME
def test_a_channel_that_is_no_text_is_told(saver: Called, store: Any, channel: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"is of type {type(channel).__name__}: use a str"):
        store(saver, channel)


class Instead(JsonPlusSerializer):
    """One that an application has given another method."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        dumps = self.dumps_typed
        self.dumps_typed = lambda value: (tag, dumps(value)[1])  # type: ignore[method-assign]


@SOME
def test_a_serde_with_a_method_of_its_own_is_one_of_another_make(
    backend: Backend, ready_url: URL
) -> None:
    """Whose tags are checked, and of whose values none is left readable in the document."""
    with called(backend, ready_url, serde=Instead("empty")) as saver:
        for value in ([1], "word"):
            with pytest.raises(InvalidConfig, match=r"the serde calls .* dumps_typed"):
                put(saver, "t", {"c": value})
    with called(backend, ready_url, serde=Instead("msgpack")) as saver:
        stored = put(saver, "t", {"c": "word"})
        assert values_of(saver, stored) == {"c": "word"}
    engine = create_engine(ready_url)
    with engine.connect() as connection:
        document = connection.execute(select(Checkpoint.checkpoint)).scalar_one()
    engine.dispose()
    assert document["channel_values"] == {}


#: What a dict is expected for, and what takes something else.
NO_DICT: dict[str, Callable[[Any, Any], Any]] = {
    "new_versions": lambda saver, given: saver.put(config("t"), checkpoint({}), {}, given),
    "metadata": lambda saver, given: saver.put(config("t"), checkpoint({}), given, {}),
    "checkpoint['channel_values']": lambda saver, given: saver.put(
        config("t"), {**checkpoint({}), "channel_values": given}, {}, {}
    ),
    "checkpoint['channel_versions']": lambda saver, given: saver.put(
        config("t"), {**checkpoint({}), "channel_versions": given}, {}, {}
    ),
}


@pytest.mark.parametrize("given", [None, ["a"], "a"], ids=repr)
@pytest.mark.parametrize("what", NO_DICT)
@SOME
def test_what_is_no_dict_is_told(saver: Called, what: str, given: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        NO_DICT[what](saver, given)
    kind = "None" if given is None else f"of type {type(given).__name__}"
    assert str(caught.value) == f"{what} is {kind}: pass a dict"
    assert saver.get_tuple(config("t")) is None


@SOME
def test_a_filter_or_limit_of_another_kind_is_told(saver: Called) -> None:
    for filter in (["a"], "a", {"a"}):
        with pytest.raises(InvalidConfig, match=r"the filter is of type .*: pass a dict"):
            list(saver.list(config("t"), filter=filter))
    for limit in ("5", 2.5, [1]):
        with pytest.raises(InvalidConfig, match=r"limit is of type .*: pass None"):
            list(saver.list(config("t"), limit=limit))


@pytest.mark.parametrize("current", [math.inf, math.nan, "a.b", ""])
def test_a_version_that_cannot_be_counted_on_from_is_told(current: Any) -> None:
    saver = SQLAlchemySaver.from_url("sqlite://")
    with pytest.raises(InvalidConfig, match="is not a version that can be counted on from"):
        saver.get_next_version(current, None)
