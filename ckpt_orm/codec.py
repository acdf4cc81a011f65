"""MEANING: what LangGraph hands over becomes rows, and rows become what LangGraph expects.

    config                       -> Key          ids coerced to str and checked
    config + checkpoint + ...    -> PutRows      one document, and one blob per larger value
    config + writes              -> WriteRows    one row per write, the last of each special channel
    Found                        -> CheckpointTuple

A checkpoint's `channel_values` are split. Inlined in its document are the scalars that JSON holds
exactly (see `documents`), unless the serde is one that hides what it writes. Every other value is a
blob keyed by its channel's version, written for the channels in `new_versions` only: what is not in
there is stored already, and the live object may belong to a later superstep by now.

Nothing in this file knows SQLAlchemy; everything happens before a connection is checked out or
after it is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from xxhash import xxh3_128_digest

from ckpt_orm import documents
from ckpt_orm.errors import CorruptCheckpoint, InvalidConfig

#: The tag of a blob that says "this version of the channel holds no value".
EMPTY = "empty"

#: What a primary key may measure in bytes of UTF-8, all columns together. An index entry of
#: Postgres ends at 2,704 bytes; the rest is for its headers.
MAX_KEY_BYTES = 2_600

#: The format version from which pending sends are no longer kept with the parent.
SENDS_WITH_CHECKPOINT = 4


class Key(NamedTuple):
    """Which checkpoint is meant; `checkpoint_id` None is the latest one."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

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


class Write(NamedTuple):
    """A row of checkpoint_writes without its checkpoint and task."""

    idx: int
    channel: str
    type: str
    blob: bytes


class PutRows(NamedTuple):
    """What `put` stores."""

    key: Key
    parent_checkpoint_id: str | None
    checkpoint: str
    metadata: str
    blobs: list[Blob]


class WriteRows(NamedTuple):
    """What `put_writes` stores."""

    key: Key
    task_id: str
    task_path: str
    writes: list[Write]


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
    writes: Sequence[FoundWrite]
    sends: Sequence[FoundWrite]


def key_of(config: RunnableConfig) -> Key:
    """The checkpoint a config names, its ids coerced to `str`.

    Raises:
        InvalidConfig: without a thread_id, or with an id that no key column can hold.
    """
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidConfig(
            "config['configurable']['thread_id'] is missing: name the thread to load or to save"
        )
    checkpoint_id = configurable.get("checkpoint_id")
    key = Key(
        str(thread_id),
        str(configurable.get("checkpoint_ns") or ""),
        str(checkpoint_id) if checkpoint_id else None,
    )
    check_key(*key)
    return key


def check_key(*columns: str | None) -> None:
    """Refuse what a primary key cannot hold, on either dialect.

    Raises:
        InvalidConfig: for a NUL, a lone surrogate, or more than `MAX_KEY_BYTES`.
    """
    size = 0
    for column in columns:
        if column is None:
            continue
        if not documents.fits_text(column):
            raise InvalidConfig(
                "an id, namespace, channel or version contains a NUL or a lone surrogate, which "
                "Postgres cannot store: remove it"
            )
        size += len(column) if column.isascii() else len(column.encode())
    if size > MAX_KEY_BYTES:
        raise InvalidConfig(
            f"the ids of one row measure {size} bytes together, more than the {MAX_KEY_BYTES} that "
            "an index entry can hold: use a shorter thread_id, node or channel name"
        )


def version_key(version: str | int | float) -> str:
    """The text by which a channel version names its blob: what both databases make of its JSON.

    Raises:
        InvalidConfig: for a number whose text the databases do not agree on.
    """
    if isinstance(version, str):
        return version
    text = str(version)
    exact = (
        -(2**63) <= version < 2**63
        if type(version) is int
        else type(version) is float
        and documents.fits_float(version)
        and float(f"{version:.15g}") == version
    )
    if not exact:
        raise InvalidConfig(
            f"{text[:40]} cannot be a channel version: use a string as get_next_version() returns, "
            "a 64-bit int, or a float of at most 15 digits"
        )
    return text


def check_channels(key: Key, checkpoint: Checkpoint, new_versions: ChannelVersions) -> None:
    """Refuse a channel or version that the row of a blob could not be keyed by.

    Raises:
        InvalidConfig: as `check_key` and `version_key` do, and for the one reserved name.
    """
    without_version: ChannelVersions = dict.fromkeys(checkpoint["channel_values"], "")
    every = {**without_version, **checkpoint["channel_versions"], **new_versions}
    if documents.PACKED in every:
        raise InvalidConfig(f"a channel cannot be named {documents.PACKED!r}: rename it")
    for channel, version in every.items():
        check_key(key.thread_id, key.checkpoint_ns, channel, version_key(version))


class Codec:
    """Encodes and decodes with one serde; cheap to make, so it is made for each call.

    Args:
        serde: the saver's serializer, read at call time because LangGraph and users replace it.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        # Only LangGraph's own plain serializer is known to hide nothing. With any other one, an
        # encrypting one above all, no value is left readable in the document.
        self.inlines = type(serde).dumps_typed is JsonPlusSerializer.dumps_typed

    # --- encode ---

    def encode_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> PutRows:
        """The rows of a checkpoint; `config` names its parent."""
        parent = key_of(config)
        key = parent._replace(checkpoint_id=str(checkpoint["id"]))
        check_key(*key)
        check_channels(key, checkpoint, new_versions)
        inline, blobs = self._split(checkpoint, new_versions)
        document = documents.plain({**checkpoint, "channel_values": None}, self._pack)
        document["channel_values"] = inline
        return PutRows(
            key,
            parent.checkpoint_id,
            documents.encode(document),
            documents.dump(
                get_serializable_checkpoint_metadata(config, metadata), self._pack_whatever
            ),
            blobs,
        )

    def _split(
        self, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> tuple[dict[str, Any], list[Blob]]:
        """What is inlined in the document, and what becomes blobs."""
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        inline: dict[str, Any] = {}
        blobs: list[Blob] = []
        for channel, value in values.items():
            if channel in new_versions:
                version: str | int | float | None = new_versions[channel]
            else:
                version = versions.get(channel)
            small = documents.fits(value)
            if isinstance(value, _DeltaSnapshot):
                inline[channel] = True  # the official saver's mark; the blob wins when it is read
            elif small and self.inlines:
                inline[channel] = value
                continue
            # A small value cannot have changed since its version, and where another serde had
            # inlined it there is no blob yet: write it again, the row that exists stays.
            if version is None:
                inline[channel] = documents.packed(value, self._pack)
            elif channel in new_versions or small:
                blobs.append(self._blob(channel, version, value))
        blobs.extend(
            Blob(channel, version_key(version), EMPTY, None, None)
            for channel, version in new_versions.items()
            if channel not in values
        )
        return inline, blobs

    def _blob(self, channel: str, version: str | int | float, value: Any) -> Blob:
        tag, payload = self._dumps(value)
        return Blob(channel, version_key(version), tag, payload, xxh3_128_digest(payload))

    def encode_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> WriteRows:
        """The rows of a task's writes. Of a special channel that occurs twice, the last counts."""
        key = key_of(config)
        if key.checkpoint_id is None:
            raise InvalidConfig(
                "config['configurable']['checkpoint_id'] is missing: writes belong to the "
                "checkpoint whose config `put` returned"
            )
        rows: dict[int, Write] = {}
        for position, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, position)
            rows[idx] = Write(idx, channel, *self._dumps(value))
            check_key(channel)
        check_key(*key, str(task_id))
        check_key(task_path)
        return WriteRows(key, str(task_id), task_path, list(rows.values()))

    def encode_filter(self, filter: Mapping[str, Any]) -> str:
        """The JSON a row's metadata must contain; encoded as metadata itself is.

        Raises:
            InvalidConfig: for a value that cannot be stored, and so cannot be found.
        """
        return documents.dump(filter, self._pack)

    # --- decode ---

    def decode(self, found: Found) -> CheckpointTuple:
        """The tuple of one checkpoint, its pending writes in `writes_sort_key` order."""
        document = self.load_document(found.key, found.checkpoint)
        versions = document.setdefault("channel_versions", {})
        values = document["channel_values"] = dict(document.get("channel_values") or {})
        for channel, version in versions.items():
            blob = found.blobs.get((channel, str(version)))
            if blob is not None and blob.type != EMPTY:
                values[channel] = self.load_blob(found.key, blob)
        if found.sends:
            values[TASKS] = [self.load_write(found.key, send) for send in ordered(found.sends)]
            versions[TASKS] = max(versions.values(), key=_version_order, default=f"{1:032d}")
        return CheckpointTuple(
            config=found.key.config(),
            checkpoint=cast(Checkpoint, document),
            metadata=cast(CheckpointMetadata, self.load_document(found.key, found.metadata)),
            parent_config=(
                found.key.config(found.parent_checkpoint_id) if found.parent_checkpoint_id else None
            ),
            pending_writes=self.load_writes(found.key, found.writes),
        )

    def load_document(self, key: Key, text: str) -> dict[str, Any]:
        """The checkpoint or metadata of a row."""
        return documents.load(text, lambda packed: self._loads(*packed, "checkpoints", key))

    def load_writes(self, key: Key, writes: Sequence[FoundWrite]) -> list[PendingWrite]:
        """(task_id, channel, value) in the order in which a superstep applies them."""
        return [(w.task_id, w.channel, self.load_write(key, w)) for w in ordered(writes)]

    def load_write(self, key: Key, write: FoundWrite) -> Any:
        """The value of one write."""
        return self._loads(write.type, write.blob, "checkpoint_writes", (*key, write.task_id))

    def load_blob(self, key: Key, blob: Blob) -> Any:
        """The value of one blob, its digest checked.

        Raises:
            CorruptCheckpoint: where the payload is not what was written.
        """
        row = (key.thread_id, key.checkpoint_ns, blob.channel, blob.version)
        payload = blob.blob or b""
        if blob.digest is not None and xxh3_128_digest(payload) != blob.digest:
            raise CorruptCheckpoint(
                f"checkpoint_blobs {row}", "the payload's digest is not the stored one"
            )
        return self._loads(blob.type, payload, "checkpoint_blobs", row)

    # --- the serde ---

    def _dumps(self, value: Any) -> tuple[str, bytes]:
        tag, payload = self.serde.dumps_typed(value)
        return tag, bytes(payload)  # a bytearray is handed through as the caller's own object

    def _pack(self, value: Any) -> tuple[str, bytes]:
        try:
            return self._dumps(value)
        except Exception as error:
            raise InvalidConfig(
                f"a {type(value).__name__} in the checkpoint or filter cannot be serialized: "
                "remove it, or give the saver a serde that can"
            ) from error

    def _pack_whatever(self, value: Any) -> tuple[str, bytes]:
        """For metadata, which comes at the end of a run that must not fail on it."""
        try:
            return self._dumps(value)
        except Exception:
            return self._dumps(f"<{type(value).__qualname__}>")

    def _loads(self, tag: str | None, payload: bytes, table: str, row: tuple[Any, ...]) -> Any:
        try:
            return self.serde.loads_typed((cast(str, tag), payload))
        except Exception as error:
            raise CorruptCheckpoint(
                f"{table} {row}",
                f"the serde cannot read its payload of type {tag!r} ({type(error).__name__}); "
                "if serde or key were changed, read it with those it was written with",
            ) from error


def ordered(writes: Sequence[FoundWrite]) -> list[FoundWrite]:
    """Writes as a superstep applies them: by path, task and position, compared by code point."""
    return sorted(writes, key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))


def _version_order(version: str | int | float) -> tuple[float, str]:
    """Orders versions of mixed type, as old threads hold them, by their leading number."""
    try:
        return float(str(version).split(".")[0]), str(version)
    except ValueError:
        return 0.0, str(version)
