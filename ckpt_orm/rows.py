"""What travels between the codec and the operations: keys that are checked, and rows as tuples.

Nothing here knows LangGraph's values or SQLAlchemy's statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from ckpt_orm import documents
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.growth import Grown

#: The tag of a blob that says "this version of the channel holds no value".
EMPTY = "empty"

#: What is said of a checkpoint whose row was damaged.
NO_MAPPING = "its checkpoint or metadata is no JSON object"

#: What a primary key may measure in bytes of UTF-8, all columns together. An index entry of
#: Postgres ends at 2,704 bytes; the rest is for its headers.
MAX_KEY_BYTES = 2_600

#: No columns of an application's own.
NOTHING: Mapping[str, Any] = MappingProxyType({})

#: The format version from which pending sends are no longer kept with the parent.
SENDS_WITH_CHECKPOINT = 4


class Key(NamedTuple):
    """Which checkpoint is meant; `checkpoint_id` None is the latest one."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    def thread(self) -> dict[str, str]:
        """The columns that the rows of a thread and namespace have in common."""
        return {"thread_id": self.thread_id, "checkpoint_ns": self.checkpoint_ns}

    def config(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """The three plain keys that LangGraph merges into a run's config."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.checkpoint_ns,
                "checkpoint_id": checkpoint_id or self.checkpoint_id,
            }
        }


class Blob(NamedTuple):
    """A row of checkpoint_blobs without its thread and namespace."""

    channel: str
    version: str
    type: str
    blob: bytes | None
    digest: bytes | None
    chain: bytes | None = None
    stop: int | None = None


class Segment(NamedTuple):
    """A row of checkpoint_segments within its chain."""

    start: int
    data: bytes
    digest: bytes


#: The segments of a thread and namespace, in order, by channel and chain.
Segments = Mapping[tuple[str, bytes], Sequence[Segment]]


class Tail(NamedTuple):
    """A segment that is to be stored with a version of a channel.

    It starts the chain where `follows` is None, else it comes after the segment of that digest, or
    takes the place of the last ones, that one included.
    """

    channel: str
    version: str
    chain: bytes
    start: int
    data: bytes
    digest: bytes
    follows: bytes | None
    folds: bool


class Log(NamedTuple):
    """A version that is stored as a log: its row, were it whole, and how its bytes are kept."""

    blob: Blob
    grown: Grown


class Write(NamedTuple):
    """A row of checkpoint_writes without its checkpoint and task."""

    idx: int
    channel: str
    type: str
    blob: bytes


class PutRows(NamedTuple):
    """What `put` stores; with logs there is one or None for each blob, and a tail for each log.

    `filled` are the parameters of an application's own columns, and `plain` the blobs before some
    of them were compressed, if they were.
    """

    key: Key
    parent_checkpoint_id: str | None
    checkpoint: str
    metadata: str
    blobs: list[Blob]
    filled: Mapping[str, Any] = NOTHING
    tails: Sequence[Tail] = ()
    logs: Sequence[Log | None] = ()
    plain: Sequence[Blob] = ()

    @property
    def log_of_each(self) -> Sequence[Log | None]:
        """The log of each blob; where none may grow, there are none."""
        return self.logs or [None] * len(self.blobs)

    @property
    def size(self) -> int:
        """About how many bytes are sent."""
        values = sum(len(b.blob or b"") for b in self.blobs)
        return len(self.checkpoint) + values + sum(len(tail.data) for tail in self.tails)


class WriteRows(NamedTuple):
    """What `put_writes` stores; `filled` as in `PutRows`."""

    key: Key
    task_id: str
    task_path: str
    writes: list[Write]
    filled: Mapping[str, Any] = NOTHING

    def task(self) -> dict[str, Any]:
        """The columns that the rows have in common."""
        return {**self.key._asdict(), "task_id": self.task_id, "task_path": self.task_path}

    @property
    def size(self) -> int:
        """About how many bytes are sent."""
        return sum(len(w.blob) for w in self.writes)


class FoundWrite(NamedTuple):
    """A row of checkpoint_writes as it is read."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    type: str | None
    blob: bytes


class Found(NamedTuple):
    """A checkpoint as it is read, with the blobs its versions name and its writes.

    `sends` are the writes to `__pregel_tasks` kept under the parent, for formats before v4.
    """

    key: Key
    parent_checkpoint_id: str | None
    checkpoint: str
    metadata: str
    blobs: Mapping[tuple[str, str], Blob]
    segments: Segments
    writes: Sequence[FoundWrite]
    sends: Sequence[FoundWrite]


def key_of(config: RunnableConfig) -> Key:
    """The checkpoint a config names, its ids coerced to `str`.

    Raises:
        InvalidConfig: without a thread_id, or with an id that no key column can hold.
    """
    key = named_by(config)
    check_key(*key)
    return key


def named_by(config: RunnableConfig) -> Key:
    """As `key_of`, for a caller who checks the ids together with others.

    Raises:
        InvalidConfig: without a thread_id, and for what is no config.
    """
    try:
        configurable = config.get("configurable") or {}
        thread_id = configurable.get("thread_id")
    except AttributeError:
        raise InvalidConfig.instead_of(config) from None
    if thread_id is None:
        raise InvalidConfig(
            "config['configurable']['thread_id'] is missing: name the thread to load or to save"
        )
    checkpoint_id = configurable.get("checkpoint_id")
    return Key(
        id_of(thread_id),
        id_of(configurable.get("checkpoint_ns") or ""),
        id_of(checkpoint_id) if checkpoint_id else None,
    )


def id_of(value: object) -> str:
    """An id as text: a str, an int, a UUID; whatever is one thing.

    Raises:
        InvalidConfig: for a config, a list of ids and their like, whose text is nobody's id.
    """
    if type(value) is str:
        return value
    if isinstance(value, Collection) and not isinstance(value, str):
        raise InvalidConfig(
            f"an id is of type {type(value).__name__}: pass the id itself, such as a str"
        )
    return str(value)


def check_key(*columns: str | None) -> None:
    """Refuse what a primary key cannot hold, on either dialect.

    Raises:
        InvalidConfig: for a NUL, a lone surrogate, or more than `MAX_KEY_BYTES`.
    """
    size = _size_of([column or "" for column in columns])
    if size > MAX_KEY_BYTES:
        raise InvalidConfig(
            f"the ids of one row measure {size} bytes together, more than the {MAX_KEY_BYTES} that "
            "an index entry can hold: use a shorter thread_id, node or channel name"
        )


def check_keys(place: tuple[str, ...], *rows: tuple[str, ...]) -> None:
    """`check_key` of each of several rows, whose keys have `place` in common."""
    # What fits into one row all together, as nearly always, fits into a row each.
    if _size_of((*place, *chain.from_iterable(rows))) > MAX_KEY_BYTES:
        for row in rows:
            check_key(*place, *row)


def _size_of(columns: Collection[str]) -> int:
    """Their bytes of UTF-8, all together.

    Raises:
        InvalidConfig: for a NUL or a lone surrogate, and for what is no text.
    """
    try:
        text = "".join(columns)
    except TypeError:
        kind = next(type(column) for column in columns if not isinstance(column, str))
        raise InvalidConfig(
            f"an id, namespace or channel is of type {kind.__name__}: use a str"
        ) from None
    if not documents.fits_text(text):
        found = next(column for column in columns if not documents.fits_text(column))
        raise InvalidConfig(
            f"{found[:100]!r}: an id, namespace, channel or version contains a NUL or a lone "
            "surrogate, which Postgres cannot store: remove it"
        )
    return len(text) if text.isascii() else len(text.encode())


def check_tag(tag: Any) -> None:
    """Refuse what a serde of another make calls its payloads, where it cannot be stored as that.

    Raises:
        InvalidConfig: for anything but text, for a NUL or a lone surrogate, and for `EMPTY`.
    """
    if not isinstance(tag, str) or tag == EMPTY or not documents.fits_text(tag):
        raise InvalidConfig(
            f"the serde calls a payload {str(tag)[:40]!r}, which cannot be stored: have its "
            f"dumps_typed return a str other than {EMPTY!r}, without NUL and lone surrogates"
        )


def version_key(version: str | int | float) -> str:
    """The text by which a channel version names its blob: what both databases make of its JSON.

    Raises:
        InvalidConfig: for a number whose text the databases do not agree on.
    """
    if isinstance(version, str):
        return str.__str__(version)
    text = str(version)
    exact = (
        -(2**63) <= version < 2**63
        if type(version) is int
        else type(version) is float
        and documents.fits_float(version)
        and float(f"{version:.15g}") == version
        and abs(version) < 1e15  # from there on SQLite's text has an exponent
    )
    if not exact:
        raise InvalidConfig(
            f"{text[:40]} cannot be a channel version: use a string as get_next_version() returns, "
            "a 64-bit int, or a float of at most 15 digits"
        )
    return text


def check_put(parent: Key, checkpoint: Checkpoint, new_versions: ChannelVersions) -> Key:
    """The key of a checkpoint, if its rows and those of its blobs have keys that can be stored.

    Raises:
        InvalidConfig: as `check_key` and `version_key` do, and for a reserved name.
    """
    key = Key(parent.thread_id, parent.checkpoint_ns, str(checkpoint["id"]))
    values, known = checkpoint["channel_values"], checkpoint["channel_versions"]
    names, versions = [*known], list[Any](known.values())
    if not (values.keys() <= known.keys() and new_versions.items() <= known.items()):
        names += [*values, *new_versions]
        versions += ["" for _ in values] + [*new_versions.values()]
    for name in (documents.PACKED, documents.ENTRIES):
        if name in names:
            raise InvalidConfig(f"a channel cannot be named {name!r}: rename it")
    if not _TEXT.issuperset(map(type, versions)):
        versions = [*map(version_key, versions)]
    # What fits into one row all together, as nearly always, fits into a row each.
    ids: Any = (*key, parent.checkpoint_id or "")
    if _size_of((*ids, *names, *versions)) > MAX_KEY_BYTES:
        check_key(*parent)
        check_key(*key)
        for row in zip(names, versions, strict=True):
            check_key(key.thread_id, key.checkpoint_ns, *row)
    return key


#: The type of what is text already.
_TEXT = frozenset({str})
