"""MEANING: what LangGraph hands over becomes rows, and rows become what LangGraph expects.

    config                       -> Key          ids coerced to str and checked
    config + checkpoint + ...    -> PutRows      one document, and one blob per larger value
    config + writes              -> WriteRows    one row per write, the last of each special channel
    Found                        -> CheckpointTuple

A checkpoint's `channel_values` are split. Inlined in its document are the scalars that JSON holds
exactly (see `documents`), unless the serde is one that hides what it writes, and but for long
strings, which may grow and would be stored with each checkpoint. Every other value is a
blob keyed by its channel's version, written for the channels in `new_versions` only: what is not in
there is stored already, and the live object may belong to a later superstep by now.

Nothing in this file knows SQLAlchemy; everything happens before a connection is checked out or
after it is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

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
from ckpt_orm.compression import ZSTD, DamagedFrame, innermost, only_compresses
from ckpt_orm.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidConfig,
    MissingExtra,
    NotSerializable,
)
from ckpt_orm.growth import THRESHOLD
from ckpt_orm.logs import Logs, is_log, payload_of, tag_of
from ckpt_orm.refusals import REFUSALS, Remains, refusal
from ckpt_orm.rows import (
    EMPTY,
    NO_MAPPING,
    Blob,
    Found,
    FoundWrite,
    Key,
    PutRows,
    Segments,
    Write,
    WriteRows,
    check_key,
    check_keys,
    check_put,
    check_tag,
    key_of,
    named_by,
    version_key,
)
from ckpt_orm.unchanged import Encodings, Place


class Codec:
    """Encodes and decodes with one serde; cheap to make, so it is made for each call.

    Args:
        serde: the saver's serializer, read at call time because LangGraph and users replace it.
        reader: what reads msgpack in its place, and faster; None: nothing does.
        encodings: what lists of messages were encoded as, and what was read of them, to be told or
            asked; None: nothing is known.
        logs: told what is read, so that a later put can share its bytes; None: nobody is.
    """

    def __init__(
        self,
        serde: SerializerProtocol,
        reader: SerializerProtocol | None = None,
        logs: Logs | None = None,
        encodings: Encodings | None = None,
    ) -> None:
        self.serde, self.logs, self._reader = serde, logs, reader or serde
        self._encodings = encodings
        # What is a log shares its bytes, which compressed ones do not: so it is found out first.
        # Nor does a document hold compressed values, so a filter finds whatever was stored when.
        self.zstd = serde if only_compresses(serde) else None
        self._plain = serde if self.zstd is None else self.zstd.serde
        # Only LangGraph's own plain serializer is known to hide nothing, and so what compresses
        # its payloads. With any other one, an encrypting one above all, no value is left readable
        # in the document.
        inner = innermost(self._plain)
        is_langgraphs = type(inner).dumps_typed is JsonPlusSerializer.dumps_typed
        self.inlines = is_langgraphs and "dumps_typed" not in vars(inner)

    # --- encode ---

    def encode_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> PutRows:
        """The rows of a checkpoint; `config` names its parent. No blob is compressed yet."""
        parent = named_by(config)
        try:
            key = check_put(parent, checkpoint, new_versions)
        except (AttributeError, TypeError):
            for part in ("channel_values", "channel_versions"):
                InvalidConfig.unless_mapping(f"checkpoint[{part!r}]", checkpoint[part])
            InvalidConfig.unless_mapping("new_versions", new_versions)
            raise
        inline, blobs = self._split(key, checkpoint, new_versions)
        versions = checkpoint["channel_versions"]
        document = documents.dump(
            checkpoint,
            self._pack,
            # These two are what SQL looks into: never packed, and keyed by plain strings.
            channel_values=inline,
            channel_versions=dict(zip(map(str.__str__, versions), versions.values(), strict=True)),
        )
        try:
            about = get_serializable_checkpoint_metadata(config, metadata)
        except AttributeError:
            InvalidConfig.unless_mapping("metadata", metadata)
            if isinstance(config.get("metadata") or {}, Mapping):
                raise
            raise InvalidConfig.instead_of(config) from None
        return PutRows(
            key,
            parent.checkpoint_id,
            document,
            documents.dump(about, self._pack_whatever),
            blobs,
        )

    def _split(
        self, key: Key, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> tuple[dict[str, Any], list[Blob]]:
        """What is inlined in the document, and what becomes blobs."""
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        inline: dict[str, Any] = {}
        blobs: list[Blob] = []
        for name, value in values.items():
            channel = str.__str__(name)  # which may be a member of a str enumeration
            small = documents.fits(value)
            if small and self.inlines and not (type(value) is str and len(value) >= THRESHOLD):
                inline[channel] = value
                continue
            if isinstance(value, _DeltaSnapshot):
                inline[channel] = True  # the official saver's mark; the blob wins when it is read
            is_new = channel in new_versions
            version = _version_of(channel, versions, new_versions)
            # A small value cannot have changed since its version, and where another serde had
            # inlined it there is no blob yet: write it again, the row that exists stays.
            if version is None:
                pack = partial(self._pack, where=f"channel {channel!r}")
                inline[channel] = documents.packed(value, pack)
            elif is_new or small:
                blobs.append(self._blob(channel, version, value, _place(key, channel)))
        if not new_versions.keys() <= values.keys():
            blobs.extend(
                self._empty(channel, _version_of(channel, versions, new_versions))
                for channel in new_versions
                if channel not in values
            )
        return inline, blobs

    def _empty(self, channel: str, version: str | int | float) -> Blob:
        return Blob(str.__str__(channel), version_key(version), EMPTY, None, None)

    def blob(self, channel: str, version: str | int | float, value: Any) -> Blob:
        """The row of a value, with its digest."""
        return self._smaller(self._blob(channel, version, value))

    def compressed(self, rows: PutRows) -> PutRows:
        """The rows of a put, with what of them is stored whole compressed, by a serde that does."""
        blobs = [
            self._smaller(blob) if log is None else blob
            for blob, log in zip(rows.blobs, rows.log_of_each, strict=True)
        ]
        return rows._replace(blobs=blobs, plain=rows.blobs)

    def _blob(
        self, channel: str, version: str | int | float, value: Any, place: Place | None = None
    ) -> Blob:
        try:
            tag, payload = self._dumps(value, place)
        except REFUSALS as error:
            raise self._refusal(f"channel {channel!r}", value, error) from error
        key = version if type(version) is str else version_key(version)
        return Blob(channel, key, tag, payload, xxh3_128_digest(payload))

    def _smaller(self, blob: Blob) -> Blob:
        tag, payload = self._smallest(blob.type, blob.blob or b"")
        if tag == blob.type:
            return blob
        return blob._replace(type=tag, blob=payload, digest=xxh3_128_digest(payload))

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
        check_key(*key, str(task_id))
        writes = [*writes]  # gone through twice
        check_keys((), (task_path,), *((channel,) for channel, _ in writes))
        rows: dict[int, Write] = {}
        for position, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, position)
            try:
                tag, payload = self._smallest(*self._dumps(value, _place(key, channel)))
            except REFUSALS as error:
                raise self._refusal(f"a write to channel {channel!r}", value, error) from error
            rows[idx] = Write(idx, str.__str__(channel), tag, payload)
        return WriteRows(key, str(task_id), task_path, list(rows.values()))

    def encode_filter(self, filter: Mapping[str, Any]) -> str:
        """The JSON a row's metadata must contain; encoded as metadata itself is.

        Raises:
            InvalidConfig: for a value that cannot be stored, and so cannot be found.
        """
        return documents.dump(filter, partial(self._pack, where="the filter"))

    # --- decode ---

    def decode(self, found: Found) -> CheckpointTuple:
        """The tuple of one checkpoint, its pending writes in `writes_sort_key` order."""
        document: Any = self.load_document(found.key, found.checkpoint)
        metadata: Any = self.load_document(found.key, found.metadata)
        versions = document.setdefault("channel_versions", {})
        values = document["channel_values"] = dict(document.get("channel_values") or {})
        for channel, version in versions.items():
            blob = found.blobs.get((channel, str(version)))
            if blob is not None and blob.type != EMPTY:
                values[channel] = self.load_blob(found.key, blob, found.segments)
        if found.sends:
            values[TASKS] = [self.load_write(found.key, send) for send in ordered(found.sends)]
            versions[TASKS] = max(versions.values(), key=_version_order, default=f"{1:032d}")
        return CheckpointTuple(
            config=found.key.config(),
            checkpoint=document,
            metadata=metadata,
            parent_config=(
                found.key.config(found.parent_checkpoint_id) if found.parent_checkpoint_id else None
            ),
            pending_writes=self.load_writes(found.key, found.writes),
        )

    def load_document(self, key: Key, text: str) -> dict[str, Any]:
        """The checkpoint or metadata of a row."""
        try:
            return documents.load(text, lambda packed: self._loads(*packed, "checkpoints", key))
        except CheckpointError:
            raise
        except ValueError:
            raise CorruptCheckpoint(f"checkpoints {tuple(key)}", NO_MAPPING) from None

    def load_writes(self, key: Key, writes: Sequence[FoundWrite]) -> list[PendingWrite]:
        """(task_id, channel, value) in the order in which a superstep applies them."""
        return [(w.task_id, w.channel, self.load_write(key, w)) for w in ordered(writes)]

    def load_write(self, key: Key, write: FoundWrite) -> Any:
        """The value of one write."""
        return self._loads(write.type, write.blob, "checkpoint_writes", (*key, write.task_id))

    def load_blob(self, key: Key, blob: Blob, segments: Segments) -> Any:
        """The value of one blob, its digest checked; `segments` hold it where it is a log.

        Raises:
            CorruptCheckpoint: where the payload is not what was written.
        """
        row = (key.thread_id, key.checkpoint_ns, blob.channel, blob.version)
        try:
            payload = payload_of(blob, segments)
        except ValueError as error:
            raise CorruptCheckpoint(f"checkpoint_blobs {row}", str(error)) from None
        if blob.digest is not None and xxh3_128_digest(payload) != blob.digest:
            raise CorruptCheckpoint(
                f"checkpoint_blobs {row}", "the payload's digest is not the stored one"
            )
        tag = tag_of(blob)
        if self.zstd is not None and not is_log(blob):
            tag, payload = self._larger(tag, payload, row)
            blob = blob._replace(type=tag, blob=payload, digest=None)
        if self.logs is not None:
            self.logs.read(key, blob, payload, segments)
        value = self._loads(tag, payload, "checkpoint_blobs", row)
        if self._encodings is not None and tag == "msgpack":
            self._encodings.loaded(self._plain, _place(key, blob.channel), value, payload)
        return value

    # --- the serde ---

    def _larger(self, tag: str, payload: bytes, row: tuple[Any, ...]) -> tuple[str, bytes]:
        assert self.zstd is not None
        try:
            return self.zstd.larger(tag, payload)
        except DamagedFrame as error:
            raise CorruptCheckpoint(f"checkpoint_blobs {row}", _problem(tag, error)) from error

    def _smallest(self, tag: str, payload: bytes) -> tuple[str, bytes]:
        return (tag, payload) if self.zstd is None else self.zstd.smaller(tag, payload)

    def _dumps(self, value: Any, place: Place | None = None) -> tuple[str, bytes]:
        if self._encodings is None:
            tag, payload = self._plain.dumps_typed(value)
        else:
            tag, payload = self._encodings.dumps(self._plain, value, place)
        if not self.inlines:
            check_tag(tag)
        return tag, bytes(payload)  # a bytearray is handed through as the caller's own object

    def _pack(self, value: Any, where: str = "the checkpoint") -> tuple[str, bytes]:
        try:
            return self._dumps(value)
        except REFUSALS as error:
            raise self._refusal(where, value, error) from error

    def _pack_whatever(self, value: Any) -> tuple[str, bytes]:
        """For metadata, which comes at the end of a run that must not fail on it."""
        try:
            return self._dumps(value)
        except Exception:
            return self._dumps(Remains(self._dumps).of(value))

    def _refusal(self, where: str, value: Any, error: Exception) -> NotSerializable:
        if isinstance(error, CheckpointError):  # which says already what to do
            raise error
        return refusal(where, value, self._plain.dumps_typed)

    def _loads(self, tag: Any, payload: bytes, table: str, row: tuple[Any, ...]) -> Any:
        serde = self._reader if tag in _READERS else self.serde
        try:
            return serde.loads_typed((tag, payload))
        except MissingExtra:
            raise
        except Exception as error:
            raise CorruptCheckpoint(f"{table} {row}", _problem(tag, error)) from error


def _place(key: Key, channel: str) -> Place:
    """Whose list of messages is meant, where one is remembered."""
    return key.thread_id, key.checkpoint_ns, channel


def _version_of(channel: str, versions: ChannelVersions, new: ChannelVersions) -> Any:
    """A channel's new version, as the document names it: 1 and 1.0 are equal, and two keys."""
    version = versions.get(channel)
    return new[channel] if channel in new and new[channel] != version else version


#: The tags of what a reader reads in the serde's place.
_READERS = frozenset({"msgpack", "msgpack" + ZSTD})


def _problem(tag: Any, error: Exception) -> str:
    """Why a payload cannot be read."""
    why = str(error) if isinstance(error, DamagedFrame) else type(error).__name__
    remedy = "if serde or key were changed, read it with those it was written with"
    if str(tag).endswith(ZSTD) and isinstance(error, NotImplementedError):
        remedy = "it is compressed: give the saver serde=ckpt_orm.compression.compressed()"
    return f"the serde cannot read its payload of type {tag!r} ({why}); {remedy}"


def ordered(writes: Sequence[FoundWrite]) -> list[FoundWrite]:
    """Writes as a superstep applies them: by path, task and position, compared by code point."""
    return sorted(writes, key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))


def _version_order(version: str | int | float) -> tuple[float, str]:
    """Orders versions of mixed type, as old threads hold them, by their leading number."""
    try:
        return float(str(version).split(".")[0]), str(version)
    except ValueError:
        return 0.0, str(version)
