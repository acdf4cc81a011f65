"""The one class. Every public method is three verbs: encode, run, decode.

    encode    codec: what LangGraph hands over becomes rows, before a connection is checked out
    run       runners: an operation executes, in this thread, in another one, or on the event loop
    decode    codec: rows become what LangGraph expects, after the connection is back

The sync and async methods of a pair differ in `run` and `arun` alone. Those that a running graph
calls are here; the others, by what they are for, are in the rooms of the classes it is made of.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from ckpt_orm import history, operations
from ckpt_orm.codec import Codec
from ckpt_orm.columns import values_of
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.finding import Finding, check_limit, page_size
from ckpt_orm.lifetime import Lifetime
from ckpt_orm.logs import ChainMoved, Logs
from ckpt_orm.operations import Selection
from ckpt_orm.removing import Removing
from ckpt_orm.rows import Key, PutRows, WriteRows, check_keys
from ckpt_orm.upkeep import Upkeep

#: Checkpoints that `list` fetches at a time; it holds no connection while it hands them out.
PAGE = 50


class SQLAlchemySaver(Lifetime, Finding, Removing, Upkeep, BaseCheckpointSaver[str]):
    """A LangGraph checkpointer that keeps threads in a SQLite or Postgres database.

    One object serves `graph.invoke` and `graph.ainvoke`, from any thread and any event loop.
    Nothing is connected before the first call. Before that, once per database, the tables are
    created by `saver.setup()`, `ckpt-orm upgrade`, or the application's own Alembic.

        engine = create_engine("postgresql+psycopg://…")
        graph = builder.compile(checkpointer=SQLAlchemySaver(engine))

    Args:
        engine: the application's Engine or AsyncEngine, used as it is and never disposed of; or
            the sessionmaker, async_sessionmaker or scoped_session that is bound to it.
        async_engine: an AsyncEngine (or async_sessionmaker) beside an Engine. Without it, async
            calls run on the Engine, each in a worker thread; with it alone, synchronous calls
            raise `WrongEngine`.
        serde: LangGraph's serializer protocol; `JsonPlusSerializer` by default, and one that
            compresses by `compression.compressed`. With any other one no value is inlined in the
            readable document, so an encrypting one hides them all.
        schema: the schema of the tables; None leaves it to the connection.
        table_prefix: what the tables' names begin with.
        models: the models of the tables, on the application's own base (see `declare`), instead of
            a schema and prefix; the application's own revisions make such tables.
        growth: "append" stores of a value that grows, such as a list of messages, what it grew by;
            "whole" stores each version as the official savers do, and they can read it. None is
            "append", except in tables that were a PostgresSaver's. Both read what either wrote.

    Raises:
        InvalidConfig: for a schema or prefix with which names would not fit into the database.
        ValueError: for models as well as a schema or prefix, or of which only some have a tenant.
        WrongEngine: for engines of two databases, or a memory database that threads cannot share.
        UnsupportedDialect: for a database other than SQLite and Postgres.
    """

    # --- reading ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint a config names, the latest of its thread and namespace without an id.

        Args:
            config: `configurable` with thread_id, and optionally checkpoint_ns ("" by default) and
                checkpoint_id.

        Returns:
            The tuple, its `pending_writes` in `writes_sort_key` order; None where there is none.

        Raises:
            InvalidConfig: without a thread_id, or with an id that cannot be stored.
            CorruptCheckpoint: where what is stored is not what was written.
            SchemaNotReady: before the tables are set up.
        """
        found = self._runner.run(operations.fetch, self._key(config))
        return None if found is None else self._decoder(self._runner.logs).decode(found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, for async callers."""
        found = await self._runner.arun(operations.fetch, self._key(config))
        return None if found is None else self._decoder(self._runner.logs).decode(found)

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        """`get`, for async callers: the checkpoint of `aget_tuple`."""
        found = await self.aget_tuple(config)
        return found and found.checkpoint

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first by id, a page at a time; no connection is held in between.

        Args:
            config: the thread; with checkpoint_ns that namespace ("" is the root's), without it all
                of them; with checkpoint_id only that one. None lists every thread.
            filter: what the metadata contains, as Postgres' `@>` decides, on both dialects: types
                are strict, objects may have more keys, arrays more elements.
            before: only checkpoints with a smaller id than this config's checkpoint_id.
            limit: how many at most; None for all.

        Raises:
            InvalidConfig: for a negative limit, or as `get_tuple` does.
        """
        return self._list(self._selection(config, filter, before), check_limit(limit))

    def _list(self, selection: Selection, limit: int | None) -> Iterator[CheckpointTuple]:
        after: Key | None = None
        while size := page_size(limit, PAGE):
            page = self._runner.run(operations.page, selection, after, size)
            yield from map(self._decoder().decode, page)
            if len(page) < size:
                return
            after, limit = page[-1].key, None if limit is None else limit - size

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, for async callers."""
        return self._alist(self._selection(config, filter, before), check_limit(limit))

    async def _alist(
        self, selection: Selection, limit: int | None
    ) -> AsyncIterator[CheckpointTuple]:
        after: Key | None = None
        while size := page_size(limit, PAGE):
            page = await self._runner.arun(operations.page, selection, after, size)
            for found in map(self._decoder().decode, page):
                yield found
            if len(page) < size:
                return
            after, limit = page[-1].key, None if limit is None else limit - size

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel got on the way from its nearest stored value to a checkpoint.

        The walk goes along parents, on this checkpoint's own branch, in one statement.

        Args:
            config: the target checkpoint, the latest without an id; its own writes are excluded.
            channels: the channels, each of which stops at its own nearest ancestor with a value.

        Returns:
            For each channel, `writes` oldest first, with the seed's own ones, and `seed` unless
            no ancestor has a value. Empty without channels.
        """
        channels = [*channels]  # gone through more than once
        if not channels:
            return {}
        walk = self._runner.run(history.walk, self._key(config), _channels(channels))
        return history.decode(self._decoder(), walk, channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, for async callers."""
        channels = [*channels]  # gone through more than once
        if not channels:
            return {}
        walk = await self._runner.arun(history.walk, self._key(config), _channels(channels))
        return history.decode(self._decoder(), walk, channels)

    # --- writing ---

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, whole or not at all; storing it again changes nothing.

        Args:
            config: the thread and namespace; its checkpoint_id is the parent.
            checkpoint: the checkpoint; its values are serialized before anything else happens.
            metadata: what `list` filters see, with the scalars of the config's metadata and
                configurable. What JSON cannot hold is packed, and never raises.
            new_versions: the channels that changed, and their versions.

        Returns:
            The config of the stored checkpoint: thread_id, checkpoint_ns, checkpoint_id.

        Raises:
            InvalidConfig: for an id, channel or version that cannot be stored.
            NotSerializable: for a value that the serde cannot hold.
        """
        rows = self._encode_put(config, checkpoint, metadata, new_versions)
        try:
            self._runner.run(operations.put, rows)
        except ChainMoved:
            rows = self._runner.logs.renewed(rows)
            self._runner.run(operations.put_renewed, rows)
        self._runner.logs.stored(rows)
        return rows.key.config()

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, for async callers."""
        rows = self._encode_put(config, checkpoint, metadata, new_versions)
        try:
            await self._runner.arun(operations.put, rows)
        except ChainMoved:
            rows = self._runner.logs.renewed(rows)
            await self._runner.arun(operations.put_renewed, rows)
        self._runner.logs.stored(rows)
        return rows.key.config()

    def _encode_put(self, config: RunnableConfig, *given: Any) -> PutRows:
        codec = Codec(self.serde, encodings=self._encodings)
        rows = self._runner.logs.split(codec.encode_put(config, *given), eager=codec.zstd is None)
        if codec.zstd is not None:
            rows = codec.compressed(rows)
        return rows._replace(filled=self._filled(config)) if self._has_own else rows

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, also before their checkpoint is.

        Stored again, the special channels (errors, interrupts, resumes) are replaced, while of any
        other write the first one stays.

        Args:
            config: the checkpoint the task started from, as `put` returned it.
            writes: (channel, value) pairs in the task's order.
            task_id: LangGraph's id of the task.
            task_path: the task's place in its superstep, by which writes are ordered.

        Raises:
            InvalidConfig: without a checkpoint_id, or for an id that cannot be stored.
            NotSerializable: for a value that the serde cannot hold.
        """
        rows = self._encode_writes(config, writes, task_id, task_path)
        if rows.writes:
            self._runner.run(operations.put_writes, rows)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, for async callers."""
        rows = self._encode_writes(config, writes, task_id, task_path)
        if rows.writes:
            await self._runner.arun(operations.put_writes, rows)

    def get_next_version(self, current: str | float | None, channel: None) -> str:
        """The version after `current`, as text that sorts by number.

        Two forks of one checkpoint both take "the next version" of a channel: a random tail keeps
        them from sharing a blob.

        Args:
            current: a version of this or another saver; None for a channel's first.
            channel: unused, as in the base class.
        """
        try:
            number = int(current.split(".")[0] if isinstance(current, str) else current or 0)
        except (ValueError, OverflowError):
            raise InvalidConfig(
                f"{str(current)[:40]!r} is not a version that can be counted on from: use the "
                "versions that get_next_version() returns"
            ) from None
        return f"{number + 1:032d}.{random.randrange(10**16):016d}"

    def _decoder(self, logs: Logs | None = None) -> Codec:
        """What decodes with the serde of the moment, and remembers what it reads if `logs` do."""
        encodings = None if logs is None else self._encodings
        return Codec(self.serde, self._readers.of(self.serde), logs, encodings)

    def _encode_writes(self, config: RunnableConfig, *given: Any) -> WriteRows:
        rows = Codec(self.serde, encodings=self._encodings).encode_writes(config, *given)
        return rows._replace(filled=self._filled(config)) if self._has_own else rows

    def _filled(self, config: RunnableConfig) -> dict[str, Any]:
        """The parameters of the application's own columns."""
        self._admit(config)
        return values_of(self._fillings, config)


def _channels(channels: Sequence[str]) -> tuple[str, ...]:
    check_keys((), *((channel,) for channel in channels))
    return tuple(map(str.__str__, channels))
