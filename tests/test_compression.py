"""A serde that compresses: what it stores comes back, and what is damaged is told as that."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
import zstandard
from backends import BACKENDS, Backend, Called, called, named
from builders import config, exact, put, values_of, version
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from sqlalchemy import URL, create_engine, func, select, update
from typer.testing import CliRunner
from xxhash import xxh3_128_digest

from ckpt_orm import (
    Checkpoint,
    CheckpointBlob,
    CheckpointError,
    CheckpointWrite,
    CorruptCheckpoint,
    SQLAlchemySaver,
)
from ckpt_orm.cli.commands import app
from ckpt_orm.compression import (
    LARGEST,
    ZSTD,
    Compressor,
    DamagedFrame,
    ZstdCipher,
    ZstdSerializer,
    compressed,
    content,
)
from ckpt_orm.errors import MissingExtra
from ckpt_orm.messages import Readers

PLAIN = [backend for backend in BACKENDS if backend.name in ("sqlite", "psycopg")]

TEXT = "the same few words again and again, and a number: "

#: Large values of several kinds, and some small ones.
VALUES: dict[str, Any] = {
    "list": [f"{TEXT}{n}" for n in range(400)],
    "dict": {f"key {n}": {"text": TEXT, "n": n} for n in range(200)},
    "text": TEXT * 400,
    "bytes": TEXT.encode() * 400,
    "bytearray": bytearray(TEXT.encode() * 400),
    "messages": [AIMessage(f"{TEXT}{n}", id=str(n)) for n in range(100)],
    "noise": random.Random(1).randbytes(20_000),
    "small": ["small"],
    "word": "WORD",
    "number": 7,
    "none": None,
}
LARGE = [name for name in VALUES if name not in ("noise", "small", "word", "number", "none")]


def encrypting() -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


def frame_of(payload: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(payload)


# --- the serde alone ---

ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text()),
    lambda items: st.lists(items) | st.dictionaries(st.text(), items),
)
PAYLOADS = st.one_of(
    ANY, st.binary(), st.binary().map(bytearray), st.builds(lambda v: [v] * 50, ANY)
)


@given(
    value=PAYLOADS, threshold=st.integers(1, 300), gain=st.floats(0, 0.9), level=st.integers(-3, 9)
)
def test_what_is_compressed_comes_back(value: Any, threshold: int, gain: float, level: int) -> None:
    inner, serde = JsonPlusSerializer(), compressed(threshold=threshold, gain=gain, level=level)
    plain_tag, plain = inner.dumps_typed(value)
    tag, payload = serde.dumps_typed(value)
    assert exact(serde.loads_typed((tag, payload))) == exact(inner.loads_typed((plain_tag, plain)))
    assert exact(serde.loads_typed((plain_tag, plain))) == exact(value)
    if tag == plain_tag:
        assert payload == plain
        assert len(plain) < threshold or len(frame_of(plain, level=level)) > len(plain) * (1 - gain)
    else:
        assert tag == plain_tag + ZSTD
        assert len(plain) >= threshold
        assert len(payload) <= len(plain) * (1 - gain)


@given(payload=st.binary(min_size=1).map(lambda b: b * 40), gain=st.floats(0, 0.9))
def test_a_cipher_is_given_what_is_compressed(payload: bytes, gain: float) -> None:
    cipher = ZstdCipher(encrypting().cipher, threshold=20, gain=gain)
    name, ciphertext = cipher.encrypt(payload)
    assert cipher.decrypt(name, ciphertext) == payload
    assert (name == "zstd+aes") == (Compressor(20, gain).frame(payload) is not None)


def test_what_gains_too_little_stays_what_it_is() -> None:
    assert compressed().dumps_typed(VALUES["noise"]) == ("bytes", VALUES["noise"])
    numbers = [random.Random(1).random() for _ in range(1)] + [n / 7 for n in range(2_000)]
    assert compressed(gain=0.9).dumps_typed(numbers)[0] == "msgpack"
    assert compressed(gain=0.0).dumps_typed(numbers)[0] == "msgpack+zstd"
    assert compressed(threshold=None).dumps_typed(VALUES["list"])[0] == "msgpack"


@pytest.mark.parametrize(
    "options", [{"threshold": 0}, {"gain": 1.0}, {"gain": -0.1}, {"level": 23}], ids=str
)
def test_options_that_are_none(options: Any) -> None:
    with pytest.raises(ValueError, match="threshold"):
        compressed(**options)


def test_threads_share_a_serde() -> None:
    serde = compressed(threshold=100)

    def round_trips(seed: int) -> bool:
        made = random.Random(seed)
        for _ in range(60):
            value = [TEXT[made.randrange(40) :] * made.randrange(1, 300), seed, made.random()]
            tag, payload = serde.dumps_typed(value)
            if serde.loads_typed((tag, payload)) != value:
                return False
            with pytest.raises(DamagedFrame):
                serde.loads_typed(("msgpack" + ZSTD, payload[:-1]))
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trips, range(32)))


def test_a_serde_can_be_pickled() -> None:
    serde = ZstdSerializer(threshold=100, level=5)
    assert serde.loads_typed(serde.dumps_typed(VALUES["list"])) == VALUES["list"]
    copied = pickle.loads(pickle.dumps(Compressor(100, 0.1, 5)))
    assert vars(copied) == vars(Compressor(100, 0.1, 5))


# --- damage ---

FRAME = Compressor(1, 0.0).frame(TEXT.encode() * 100 + random.Random(2).randbytes(500)) or b""


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(at: int, bits: int) -> None:
    changed = bytearray(FRAME)
    changed[at] ^= bits
    try:
        assert content(bytes(changed)) == content(FRAME)  # some bits of a header mean nothing
    except DamagedFrame:
        assert content(FRAME).startswith(TEXT.encode())


@given(st.integers(0, len(FRAME) - 1))
def test_a_frame_that_ends_early(end: int) -> None:
    with pytest.raises(DamagedFrame):
        content(FRAME[:end])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame(junk: bytes) -> None:
    with pytest.raises(DamagedFrame):
        content(junk)
    with pytest.raises(DamagedFrame):
        content(FRAME + junk + b"x")


def claiming(size: int, frame: bytes) -> bytes:
    """A frame of 64 KiB or more, with another size of its content."""
    assert frame[4] >> 6 == 2, "four bytes of size"
    at = 5 if frame[4] & 0x20 else 6  # a long one says before how large its window is
    return frame[:at] + size.to_bytes(4, "little") + frame[at + 4 :]


@pytest.mark.parametrize("size", [99_000, 101_000, 2**32 - 1, LARGEST, 1, 0])
def test_another_size_than_a_frame_says(size: int) -> None:
    with pytest.raises(DamagedFrame):
        content(claiming(size, frame_of(b"x" * 100_000)))


def test_a_frame_that_does_not_say_its_size() -> None:
    with pytest.raises(DamagedFrame):
        content(frame_of(b"x" * 1000, **{"write_content_size": False}))


BOMBS = {
    "more than a column holds": bytes.fromhex("28b52ffde4") + (1 << 60).to_bytes(8, "little"),
    "more than it can hold": claiming(900_000_000, frame_of(b"x" * 100_000)),
    "less than it holds": claiming(70_000, frame_of(b"x" * 300_000_000)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_takes_no_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFrame):
            content(BOMBS[kind])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


# --- on databases ---


@contextmanager
def savers(
    backend: Backend, url: URL, *serdes: SerializerProtocol | None
) -> Iterator[list[Called]]:
    """A saver for each serde, on one database."""
    with ExitStack() as stack:
        yield [stack.enter_context(called(backend, url, serde=serde)) for serde in serdes]


def asked(url: URL, statement: Any) -> list[Any]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = list(connection.execute(statement))
    engine.dispose()
    return found


def changed(url: URL, statement: Any) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(statement).rowcount == 1
    engine.dispose()


def tags(url: URL) -> dict[str, str]:
    return dict(asked(url, select(CheckpointBlob.channel, CheckpointBlob.type)))


def test_values_writes_and_metadata_come_back(backend: Backend, ready_url: URL) -> None:
    with called(backend, ready_url, serde=compressed()) as saver:
        about = {"message": AIMessage(TEXT * 200, id="m"), "k": "v"}
        stored = put(saver, "t", VALUES, metadata=about)
        saver.put_writes(stored, [("w", VALUES["list"]), ("x", 1), ("y", VALUES["bytes"])], "task")
        found = saver.get_tuple(stored)
        assert exact(found.checkpoint["channel_values"]) == exact(VALUES)
        assert exact(found.metadata["message"]) == exact(about["message"])
        assert found.pending_writes == [
            ("task", "w", VALUES["list"]),
            ("task", "x", 1),
            ("task", "y", VALUES["bytes"]),
        ]
        assert list(saver.list(config("t"), filter={"k": "v"})) == [found]
        by_message = {"message": about["message"]}
        assert list(saver.list(None, filter=by_message)) == [found]
        with called(backend, ready_url) as plain:
            assert plain.count(filter=by_message) == 1, "a document holds nothing compressed"
        assert saver.verify().ok
    found_tags = tags(ready_url)
    assert {name for name, tag in found_tags.items() if tag.endswith(ZSTD)} == set(LARGE)
    assert found_tags["noise"] == "bytes"
    assert found_tags["small"] == "msgpack"
    (document,) = asked(ready_url, select(Checkpoint.checkpoint))[0]
    inlined = {"word": "WORD", "number": 7, "none": None}
    assert document["channel_values"] == inlined, "scalars stay readable"
    by_write = dict(asked(ready_url, select(CheckpointWrite.channel, CheckpointWrite.type)))
    assert by_write == {"w": "msgpack+zstd", "x": "msgpack", "y": "bytes+zstd"}


def test_switched_on_and_off(backend: Backend, ready_url: URL) -> None:
    serdes = None, compressed(), compressed(threshold=None)
    with savers(backend, ready_url, *serdes) as (plain, on, off):
        stored = [put(saver, f"t{n}", VALUES) for n, saver in enumerate((plain, on, off))]
        for saver in (on, off):
            for at in stored:
                assert exact(values_of(saver, at)) == exact(VALUES)
            assert saver.verify().ok
        for at in (stored[0], stored[2]):
            assert exact(values_of(plain, at)) == exact(VALUES)
        with pytest.raises(CorruptCheckpoint, match=r"\+zstd.*serde=.*compressed\(\)"):
            plain.get_tuple(stored[1])
        # A thread that goes on: its unchanged values keep what they are.
        next_one = put(on, "t0", {**VALUES, "list": ["new"] * 3000}, stored[0], new=["list"])
        last = put(off, "t0", {**VALUES, "list": [1]}, next_one, new=["list"])
        assert values_of(off, next_one)["list"] == ["new"] * 3000
        assert exact(values_of(on, last)) == exact({**VALUES, "list": [1]})


@named(PLAIN)
@pytest.mark.parametrize("has_digest", [True, False])
def test_a_damaged_frame_is_named(backend: Backend, ready_url: URL, has_digest: bool) -> None:
    with called(backend, ready_url, serde=compressed()) as saver:
        stored = put(saver, "t", {"list": ["SECRET"] * 3000})
        ((frame,),) = asked(ready_url, select(CheckpointBlob.blob))
        broken = frame[:-8] + b"SECRET" + frame[-2:]
        digest = xxh3_128_digest(broken) if has_digest else None
        changed(ready_url, update(CheckpointBlob).values(blob=broken, digest=digest))
        with pytest.raises(CorruptCheckpoint, match="frame cannot be read") as caught:
            saver.get_tuple(stored)
        assert "checkpoint_blobs ('t', '', 'list'" in str(caught.value)
        assert "SECRET" not in str(caught.value)
        assert saver.verify().counts == {"undecodable": 1}


@named(PLAIN)
def test_a_damaged_write_is_named(backend: Backend, ready_url: URL) -> None:
    with called(backend, ready_url, serde=compressed()) as saver:
        stored = put(saver, "t", {"n": 1})
        saver.put_writes(stored, [("w", VALUES["list"])], "task")
        bomb = BOMBS["more than it can hold"]
        changed(ready_url, update(CheckpointWrite).values(blob=bomb))
        with pytest.raises(CorruptCheckpoint, match="its frame of 26 bytes is damaged"):
            saver.get_tuple(stored)


def items(seed: int, number: int = 200) -> list[str]:
    """Strings of 600 characters that compress to about half."""
    return [random.Random(f"{seed} {n}").randbytes(300).hex() for n in range(number)]


def in_order(url: URL, channel: str = "list") -> list[str]:
    """The tags of a channel's versions."""
    found = select(CheckpointBlob.type).where(CheckpointBlob.channel == channel)
    return [tag for (tag,) in asked(url, found.order_by(CheckpointBlob.version))]


@pytest.mark.parametrize("number", [40, 200])
def test_what_grows_is_a_log_and_the_rest_is_compressed(
    backend: Backend, ready_url: URL, number: int
) -> None:
    """Also where a value is so large that it would be a log from the beginning."""
    with called(backend, ready_url, serde=compressed()) as saver:
        value, at, versions = items(0, number), None, []
        for turn in range(4):
            value = [*value, f"item {turn}"]
            given = {"list": value, "other": items(turn + 1, number), "n": turn}
            at = put(saver, "t", given, at)
            versions.append((at, given))
        for at, given in versions:
            assert values_of(saver, at) == given
        listed = [found.checkpoint["channel_values"] for found in saver.list(config("t"))]
        assert listed == [given for _, given in reversed(versions)]
        assert saver.verify().ok
    assert in_order(ready_url) == ["msgpack+zstd", *["msgpack+log"] * 3]
    assert in_order(ready_url, "other") == ["msgpack+zstd"] * 4


@named(PLAIN)
def test_a_saver_goes_on_with_what_it_has_put(backend: Backend, ready_url: URL) -> None:
    with called(backend, ready_url, serde=compressed()) as saver:
        at = config("t")
        for turn in range(3):
            at = _put_unread(saver, {"list": [*items(0), *range(turn)]}, at)
        assert values_of(saver, at)["list"] == [*items(0), 0, 1]
    assert in_order(ready_url) == ["msgpack+zstd", "msgpack+log", "msgpack+log"]


@named(PLAIN)
def test_a_saver_goes_on_with_what_it_has_read(backend: Backend, ready_url: URL) -> None:
    """What another one has stored compressed, and what it has stored before it was switched on."""
    for serde in (compressed(), None):
        with called(backend, ready_url, serde=serde, growth="whole") as saver:
            first = put(saver, f"{serde}", {"list": items(0)})
        with called(backend, ready_url, serde=compressed()) as saver:
            values_of(saver, first)
            second = put(saver, f"{serde}", {"list": [*items(0), "more"]}, first)
            assert values_of(saver, second)["list"] == [*items(0), "more"]
            assert values_of(saver, first)["list"] == items(0)
    assert in_order(ready_url) == ["msgpack+zstd", "msgpack+log", "msgpack", "msgpack+log"]


@named(PLAIN)
def test_two_forks_of_a_log_beside_a_value_that_is_compressed(
    backend: Backend, ready_url: URL
) -> None:
    with savers(backend, ready_url, compressed(), compressed()) as both:
        first = put(both[0], "t", {"list": items(0)})
        second = put(both[0], "t", {"list": [*items(0), "second"]}, first)
        forks = []
        for saver in both:
            assert values_of(saver, second)["list"] == [*items(0), "second"]
        for number, saver in enumerate(both):  # the other one has appended to the chain meanwhile
            given = {"list": [*items(0), "second", number], "other": items(number + 1)}
            forks.append((_put_unread(saver, given, second), given))
        for saver in both:
            for at, given in forks:
                assert values_of(saver, at) == given
            assert saver.verify().ok
    assert in_order(ready_url, "other") == ["msgpack+zstd"] * 2


def _put_unread(saver: Called, given: dict[str, Any], parent: Any) -> Any:
    versions = {channel: version() for channel in given}
    return put(saver, "t", given, {**parent}, versions=versions)


@named(PLAIN)
def test_stored_whole_and_packed_later(backend: Backend, ready_url: URL) -> None:
    """To pack leaves compressed values alone; what was a log becomes a whole value, and is read."""
    with savers(backend, ready_url, compressed(), compressed(threshold=None)) as (on, off):
        value, at, versions = items(0), None, []
        for turn in range(9):
            value = [*value, f"item {turn}"]
            at = put((on, off)[turn // 3 % 2], "t", {"list": value}, at)
            versions.append((at, value))
        for convert in (on.pack, on.unpack, on.pack):
            before = in_order(ready_url).count("msgpack+zstd")
            convert()
            assert in_order(ready_url).count("msgpack+zstd") == before > 0
            for at, expected in versions:
                assert values_of(on, at)["list"] == expected
            assert on.verify().ok


# --- what is inside ---


@dataclass
class Point:
    x: int
    y: str


@pytest.mark.parametrize("encrypts", [False, True])
@named(PLAIN)
def test_the_types_that_a_graph_names_are_let_in(
    backend: Backend, ready_url: URL, monkeypatch: pytest.MonkeyPatch, encrypts: bool
) -> None:
    class Typed(TypedDict, total=False):
        point: Point
        count: int

    for module in ("_internal._serde", "checkpoint.serde._msgpack"):
        monkeypatch.setattr(f"langgraph.{module}.STRICT_MSGPACK_ENABLED", True)
    inner = JsonPlusSerializer()
    serde = compressed(encrypting_with(inner) if encrypts else inner, threshold=100)
    builder = StateGraph(Typed)
    builder.add_node("move", lambda state: {"point": Point(state["point"].x + 1, TEXT * 90)})
    builder.add_edge(START, "move")
    with called(backend, ready_url, serde=serde, growth="whole") as saver:
        graph = builder.compile(checkpointer=saver.saver)
        saver.run(graph, {"point": Point(1, TEXT * 90)}, config("t"))
        assert saver.run(graph, {"count": 1}, config("t"))["point"] == Point(3, TEXT * 90)
        strict = saver.get_tuple(config("t")).checkpoint["channel_values"]["point"]
        assert type(strict) is not Point, "no graph has named it to this saver"
    assert tags(ready_url)["point"] == ("msgpack+zstd+aes" if encrypts else "msgpack+zstd")


def encrypting_with(serde: SerializerProtocol) -> EncryptedSerializer:
    return EncryptedSerializer(encrypting().cipher, serde)


def test_a_list_that_changes_nothing_makes_no_copy() -> None:
    with SQLAlchemySaver.from_url("sqlite://", serde=compressed()) as saver:
        assert saver.with_allowlist([("x", "Y")]) is saver
    strict = compressed(JsonPlusSerializer(allowed_msgpack_modules=[("x", "Y")]))
    with SQLAlchemySaver.from_url("sqlite://", serde=strict) as saver:
        assert saver.with_allowlist([("x", "Y")]) is saver
        clone: Any = saver.with_allowlist([("x", "Z")])
        assert type(clone) is type(saver)
        assert {name for name in vars(saver) if vars(saver)[name] is not vars(clone)[name]} == {
            "serde"
        }
        assert clone.serde.serde is not strict.serde  # type: ignore[attr-defined]
        assert saver.serde is strict
    assert isinstance(strict, ZstdSerializer)
    assert strict.with_msgpack_allowlist([("x", "Y")]) is strict
    assert strict.with_msgpack_allowlist([("x", "Z")]).serde is not strict.serde


def test_encrypted_after_it_is_compressed(backend: Backend, ready_url: URL) -> None:
    secrets = {"list": ["SECRET " + TEXT] * 300, "word": "SECRET", "none": None}
    serdes = encrypting(), compressed(encrypting()), compressed(encrypting(), threshold=None)
    with savers(backend, ready_url, *serdes) as (before, on, off):
        stored = [put(saver, f"t{n}", secrets) for n, saver in enumerate((before, on, off))]
        for saver in (on, off):
            for at in stored:
                assert values_of(saver, at) == secrets
        assert on.verify().ok
        with pytest.raises(CorruptCheckpoint):
            before.get_tuple(stored[1])
    statement = select(
        CheckpointBlob.thread_id, CheckpointBlob.type, func.length(CheckpointBlob.blob)
    )
    rows = asked(ready_url, statement.where(CheckpointBlob.channel == "list"))
    found = {thread: (tag, size) for thread, tag, size in rows}
    assert [found[f"t{n}"][0] for n in range(3)] == [
        "msgpack+aes",
        "msgpack+zstd+aes",
        "msgpack+aes",
    ]
    assert found["t1"][1] < found["t0"][1] / 20
    for (document,) in asked(ready_url, select(Checkpoint.checkpoint)):
        assert "SECRET" not in json.dumps(document)


def test_an_order_that_could_not_be_read_is_refused() -> None:
    inside_out = encrypting_with(compressed())
    for attempt in (
        lambda: ZstdSerializer(encrypting()),
        lambda: compressed(inside_out),
        lambda: SQLAlchemySaver.from_url("sqlite://", serde=inside_out),
        lambda: SQLAlchemySaver(create_engine("sqlite:///never.db"), serde=inside_out),
    ):
        with pytest.raises(ValueError, match="compresses before it encrypts"):
            attempt()


class Masking(JsonPlusSerializer):
    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        tag, payload = super().dumps_typed(obj)
        return tag, bytes(byte ^ 0x55 for byte in payload)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0], bytes(byte ^ 0x55 for byte in data[1])))


class MaskingFrames(ZstdSerializer):
    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        tag, payload = super().dumps_typed(obj)
        return f"{tag}+mask", bytes(byte ^ 0x55 for byte in payload)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        payload = bytes(byte ^ 0x55 for byte in data[1])
        return super().loads_typed((data[0].removesuffix("+mask"), payload))


@named(PLAIN)
@pytest.mark.parametrize(
    "serde", [compressed(Masking()), MaskingFrames()], ids=["inside", "outside"]
)
def test_what_hides_is_left_to_hide(backend: Backend, ready_url: URL, serde: Any) -> None:
    with called(backend, ready_url, serde=serde) as saver:
        stored = put(saver, "t", {"word": "SECRET", "list": ["SECRET"] * 3000})
        assert values_of(saver, stored) == {"word": "SECRET", "list": ["SECRET"] * 3000}
    (document,) = asked(ready_url, select(Checkpoint.checkpoint))[0]
    assert "SECRET" not in json.dumps(document)


@named(PLAIN)
def test_messages_are_copied_as_without_it(backend: Backend, ready_url: URL) -> None:
    serde = compressed()
    assert isinstance(serde, ZstdSerializer)
    readers = Readers()
    reader: Any = readers.of(serde)
    assert reader.serde is readers.of(serde.serde) is not serde.serde
    assert readers.of(own := MaskingFrames()) is own
    with called(backend, ready_url, serde=serde) as saver:
        stored = put(saver, "t", {"messages": VALUES["messages"]})
        found = [values_of(saver, stored)["messages"] for _ in range(4)]
        assert all(messages == VALUES["messages"] for messages in found)
        found[2][0].content = "changed"
        found[2][1].additional_kwargs["changed"] = True
        assert values_of(saver, stored)["messages"] == VALUES["messages"]


# --- without zstandard ---


def test_the_package_is_imported_without_it() -> None:
    code = (
        "import sys; sys.modules['zstandard'] = None; import ckpt_orm.compression; "
        "from ckpt_orm import SQLAlchemySaver; SQLAlchemySaver.from_url('sqlite://').setup()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@named(PLAIN)
def test_the_extra_is_named_where_it_is_missing(
    backend: Backend, ready_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    with savers(backend, ready_url, compressed(), compressed(threshold=None)) as (on, off):
        stored = put(on, "t", VALUES)
        fine = put(off, "fine", VALUES)
        written = put(off, "written", {})
        on.put_writes(written, [("w", VALUES["list"])], "task")
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(ImportError, match=r"pip install 'ckpt-orm\[zstd\]'"):
            compressed()
        with pytest.raises(CheckpointError, match="zstandard is not installed"):
            off.get_tuple(stored)
        with pytest.raises(MissingExtra):
            off.get_tuple(written)
        with pytest.raises(MissingExtra):
            put(on, "t", VALUES, stored)
        assert exact(values_of(off, fine)) == exact(VALUES)


# --- the command ---


@named(PLAIN)
def test_the_commands_read_what_is_compressed(
    backend: Backend, ready_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ready_url.render_as_string(False)
    with savers(backend, ready_url, compressed(), None) as (on, plain):
        stored = put(on, "t", VALUES)
        kept = put(plain, "plain", VALUES)
        assert values_of(on, stored) == values_of(on, kept)
    for command in (["verify"], ["pack"], ["unpack"], ["sweep", "--keep-last", "1"]):
        done = CliRunner().invoke(app, [*command, "--url", url, "--json"])
        assert done.exit_code == 0, done.output
    verified = CliRunner().invoke(app, ["verify", "--url", url, "--json"])
    assert json.loads(verified.stdout)["payloads"] == len(
        asked(ready_url, select(CheckpointBlob.type))
    )
    monkeypatch.setitem(sys.modules, "zstandard", None)
    done = CliRunner().invoke(app, ["verify", "--url", url])
    assert done.exit_code == 1
    assert "pip install 'ckpt-orm[zstd]'" in done.stderr
