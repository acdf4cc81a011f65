"""The one class. Every public method is three verbs: encode, run, decode.

    encode    codec: what LangGraph hands over becomes rows, before a connection is checked out
    run       runners: an operation executes, in this thread, in another one, or on the event loop
    decode    codec: rows become what LangGraph expects, after the connection is back

The sync and async methods of a pair differ in `run` and `arun` alone.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from copy import copy as _copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import URL, Connection, Engine

from ckpt_orm import history, operations, retention
from ckpt_orm.codec import Codec
from ckpt_orm.columns import fillings, tenants_of, values_of
from ckpt_orm.engines import GivenEngine, LoopEngines, create, engines_of
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.finding import Finding, check_limit, page_size
from ckpt_orm.logs import ChainMoved
from ckpt_orm.models import Models, declare
from ckpt_orm.operations import Selection
from ckpt_orm.rows import Key, PutRows, WriteRows, check_key, key_of
from ckpt_orm.runners import Growth, Runner
from ckpt_orm.tenants import TenantRunner, for_tenant, inside
from ckpt_orm.upkeep import Upkeep

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )
    from sqlalchemy.orm import Session, scoped_session, sessionmaker
    from typing_extensions import Self

#: Checkpoints that `list` fetches at a time; it holds no connection while it hands them out.
PAGE = 50


class SQLAlchemySaver(Finding, Upkeep, BaseCheckpointSaver[str]):
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
        serde: LangGraph's serializer protocol; `JsonPlusSerializer` by default. With any other one
            no value is inlined in the readable document, so an encrypting one hides them all.
        schema: the schema of the tables; None leaves it to the connection.
        table_prefix: what the tables' names begin with.
        models: the models of the tables, on the application's own base (see `declare`), instead of
            a schema and prefix; the application's own revisions make such tables.
        growth: "append" stores of a value that grows, such as a list of messages, what it grew by;
            "whole" stores each version as the official savers do, and they can read it. None is
            "append", except in tables that were a PostgresSaver's. Both read what either wrote.

    Raises:
        ValueError: for models as well as a schema or prefix, or of which only some have a tenant.
        WrongEngine: for engines of two databases, or a memory database that threads cannot share.
        UnsupportedDialect: for a database other than SQLite and Postgres.
    """

    def __init__(
        self,
        engine: Engine
        | AsyncEngine
        | sessionmaker[Any]
        | async_sessionmaker[Any]
        | scoped_session[Any]
        | async_scoped_session[Any],
        async_engine: AsyncEngine | async_sessionmaker[Any] | None = None,
        *,
        serde: SerializerProtocol | None = None,
        schema: str | None = None,
        table_prefix: str = "",
        models: Models | None = None,
        growth: Growth = None,
    ) -> None:
        super().__init__(serde=serde)
        sync, given = engines_of(engine, async_engine)
        wrapped = None if given is None else GivenEngine(given)
        self._run_on(_models(models, schema, table_prefix), sync, wrapped, growth, owned=False)

    @classmethod
    def from_url(
        cls,
        url: str | URL,
        *,
        serde: SerializerProtocol | None = None,
        schema: str | None = None,
        table_prefix: str = "",
        models: Models | None = None,
        growth: Growth = None,
        pooler: Literal["transaction"] | None = None,
        **engine_kwargs: Any,
    ) -> Self:
        """A saver on an engine of its own, tuned for the database and disposed of by `close`.

        `sqlite:///file` (in WAL mode), `sqlite://` (in memory, shared by all threads) and
        `postgresql://` (psycopg) serve both colours. `sqlite+aiosqlite:///file`,
        `postgresql+asyncpg://` and `postgresql+psycopg_async://` serve async calls only, natively,
        with a pool for each event loop.

        Args:
            url: a SQLAlchemy URL.
            serde: as for the class.
            schema: as for the class.
            table_prefix: as for the class.
            models: as for the class.
            growth: as for the class.
            pooler: "transaction" where the URL is that of a pooler such as PgBouncer which gives
                each transaction another connection: nothing is prepared for a later one then.
            **engine_kwargs: handed to `create_engine`, such as pool_size or connect_args.

        Raises:
            ValueError: as for the class.
            UnsupportedDialect: for a database other than SQLite and Postgres.
            WrongEngine: for a pooler and a driver that cannot do without prepared statements.
        """
        saver = cls.__new__(cls)
        BaseCheckpointSaver.__init__(saver, serde=serde)
        engine = create(url, pooler, **engine_kwargs)
        sync, loops = (None, engine) if isinstance(engine, LoopEngines) else (engine, None)
        saver._run_on(_models(models, schema, table_prefix), sync, loops, growth, owned=True)
        return saver

    def _run_on(
        self,
        models: Models,
        engine: Engine | None,
        async_engine: LoopEngines | GivenEngine | None,
        growth: Growth,
        *,
        owned: bool,
    ) -> None:
        self._models, self._fillings = models, fillings(models.tables)
        tenants = tenants_of(models.tables)
        self._has_own = bool(self._fillings or tenants)
        runner = Runner(models, engine, async_engine, owned, growth)
        self._runner = TenantRunner(runner, tenants[models.tables[0]]) if tenants else runner

    def _filled(self, config: RunnableConfig) -> dict[str, Any]:
        """The parameters of the application's own columns."""
        self._admit(config)
        return values_of(self._fillings, config)

    @property
    def models(self) -> Models:
        """The declarative models of the saver's tables, for an application's own queries."""
        return self._models

    def using(
        self,
        transaction: Session
        | Connection
        | AsyncSession
        | AsyncConnection
        | scoped_session[Any]
        | async_scoped_session[Any],
    ) -> Self:
        """A copy of the saver that works inside the caller's transaction, which the caller ends.

            with Session(engine) as session, session.begin():
                session.add(Order(…))
                graph = builder.compile(checkpointer=saver.using(session))
                graph.invoke(…, durability="exit")  # the order and the state, or neither

        It never commits, closes, flushes or expires. Each call is a savepoint, so one that fails
        raises at once, without a retry, and leaves the transaction usable. Calls from LangGraph's
        threads and tasks wait for each other. Not for the application's: while a graph runs, its
        nodes use another session, or `durability="exit"` is given, with which nothing is saved
        before the nodes are done.

        Args:
            transaction: an open session or connection on the database of the saver's tables. On an
                async one only the a-methods can be called, on a sync one both.

        Raises:
            WrongEngine: for anything else; by the calls, in AUTOCOMMIT or on another database.
        """
        copy = _copy(self)
        copy._runner = inside(self._runner, transaction)
        return copy

    def scoped(self, **tenant: Any) -> Self:
        """A copy of the saver that sees and touches one tenant's rows only, in every method.

            saver.scoped(tenant_id="acme")

        For tables whose models have a tenant's column (see `TenantMixin`); on those, a saver
        that is not scoped refuses to work. Threads of one id in two tenants have nothing to do
        with each other. It costs nothing to make, and goes with `using` in either order. What a
        config says cannot change the tenant: one that names another is refused.

        Args:
            **tenant: the column's name, and the tenant as the column's type takes it.

        Raises:
            WrongTenant: for another name, on tables without tenants, and on a saver that is
                scoped to another one.
            InvalidConfig: for a value that the column cannot hold.
        """
        copy = _copy(self)
        copy._runner = for_tenant(self._runner, tenant)
        return copy

    # --- lifetime ---

    def setup(self) -> None:
        """Create the tables, or bring them to this release's revision.

        Safe to call at every start and from many processes at once: it first looks, changes nothing
        where nothing is to be done (so it needs no DDL rights then), and otherwise upgrades under a
        lock, in one transaction.

        Raises:
            ForeignTable: where a table of another shape has one of the names; nothing is changed.
            SchemaNotReady: where tables of the application's own models are not there: its own
                revisions make them.
        """
        self._runner.setup()

    async def asetup(self) -> None:
        """`setup`, for async callers."""
        await self._runner.asetup()

    def close(self) -> None:
        """Dispose of the engine that `from_url` made; an application's engine is left alone."""
        self._runner.dispose()

    async def aclose(self) -> None:
        """`close`, and of the running loop's AsyncEngine too."""
        await self._runner.adispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._runner})"

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
        return None if found is None else Codec(self.serde, self._runner.logs).decode(found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, for async callers."""
        found = await self._runner.arun(operations.fetch, self._key(config))
        return None if found is None else Codec(self.serde, self._runner.logs).decode(found)

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
            yield from map(Codec(self.serde).decode, page)
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
            for found in page:
                yield Codec(self.serde).decode(found)
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
        if not channels:
            return {}
        walk = self._runner.run(history.walk, self._key(config), _channels(channels))
        return history.decode(Codec(self.serde), walk, channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, for async callers."""
        if not channels:
            return {}
        walk = await self._runner.arun(history.walk, self._key(config), _channels(channels))
        return history.decode(Codec(self.serde), walk, channels)

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
        """
        rows = self._encode_put(config, checkpoint, metadata, new_versions)
        try:
            self._runner.run(operations.put, rows)
        except ChainMoved:
            rows = self._runner.logs.renewed(rows)
            self._runner.run(operations.put, rows)
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
            await self._runner.arun(operations.put, rows)
        self._runner.logs.stored(rows)
        return rows.key.config()

    def _encode_put(self, config: RunnableConfig, *given: Any) -> PutRows:
        rows = self._runner.logs.split(Codec(self.serde).encode_put(config, *given))
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
        except ValueError:
            raise InvalidConfig(
                f"{str(current)[:40]!r} is not a version that can be counted on from: use the "
                "versions that get_next_version() returns"
            ) from None
        return f"{number + 1:032d}.{random.randrange(10**16):016d}"

    def _encode_writes(self, config: RunnableConfig, *given: Any) -> WriteRows:
        rows = Codec(self.serde).encode_writes(config, *given)
        return rows._replace(filled=self._filled(config)) if self._has_own else rows

    # --- deleting and copying ---

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: all checkpoints, blobs and writes of all its namespaces.

        Writes that a run still saves afterwards are kept, as those of any checkpoint that is not
        stored yet are: end a thread's runs before deleting it.

        Args:
            thread_id: the thread; one that does not exist is no error.
        """
        self._runner.run(operations.delete_thread, _thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, for async callers."""
        await self._runner.arun(operations.delete_thread, _thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some runs made, with their writes, in every thread.

        Kept are blobs that another checkpoint refers to, and the checkpoints of those runs that a
        remaining one needs to rebuild a DeltaChannel. One whose parent goes becomes a root.

        Args:
            run_ids: `run_id`s of the checkpoints' metadata; unknown ones are no error.

        Raises:
            TypeError: for a single string.
        """
        self._runner.run(retention.delete_for_runs, _strings("run_ids", run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, for async callers."""
        await self._runner.arun(retention.delete_for_runs, _strings("run_ids", run_ids))

    def copy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """Copy a thread: ids, parents, namespaces, writes and every ancestor.

        Rows that the target has already stay as they are, so copying again changes nothing.

        Args:
            source_thread_id: the thread to read.
            target_thread_id: the thread to add to.
            latest_only: copy what `prune` would keep: the latest checkpoint of each namespace, and
                the ancestors that it is rebuilt from.
        """
        threads = _thread(source_thread_id), _thread(target_thread_id)
        self._runner.run(retention.copying(latest_only=latest_only), *threads)

    async def acopy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """`copy_thread`, for async callers."""
        threads = _thread(source_thread_id), _thread(target_thread_id)
        await self._runner.arun(retention.copying(latest_only=latest_only), *threads)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete what threads no longer need, each in a transaction of its own.

        "keep_latest" keeps the latest checkpoint of each namespace, with its writes and blobs, and
        the ancestors that its DeltaChannels are rebuilt from. A namespace of a finished subgraph
        call goes with the root checkpoint it started from. "delete" keeps nothing.

        Args:
            thread_ids: the threads; unknown ones are no error.
            strategy: "keep_latest" or "delete".

        Raises:
            TypeError: for a single string.
            ValueError: for another strategy.
        """
        operation = retention.strategy(strategy)
        for thread_id in _strings("thread_ids", thread_ids):
            self._runner.run(operation, thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, for async callers."""
        operation = retention.strategy(strategy)
        for thread_id in _strings("thread_ids", thread_ids):
            await self._runner.arun(operation, thread_id)


def _models(models: Models | None, schema: str | None, prefix: str) -> Models:
    if models is None:
        return declare(schema=schema, prefix=prefix)
    if schema is not None or prefix:
        raise ValueError("the models say where the tables are: leave out schema and table_prefix")
    return models


def _thread(thread_id: object) -> str:
    return key_of({"configurable": {"thread_id": thread_id}}).thread_id


def _channels(channels: Sequence[str]) -> tuple[str, ...]:
    for channel in channels:
        check_key(channel)
    return tuple(map(str.__str__, channels))


def _strings(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{name} is a sequence of ids, not a single one: pass [{name[:-1]}]")
    found = [str(value) for value in values]
    for value in found:
        check_key(value)
    return found
