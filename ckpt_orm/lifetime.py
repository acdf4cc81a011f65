"""HOLDING: how a saver is made, set up, scoped, used within a transaction, and closed."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy as _copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import URL, Connection, Engine

from ckpt_orm.columns import fillings, tenants_of
from ckpt_orm.compression import ZstdSerializer, check_order
from ckpt_orm.engines import GivenEngine, LoopEngines, create, engines_of
from ckpt_orm.messages import Readers
from ckpt_orm.migrations.place import Place
from ckpt_orm.models import Models, declare
from ckpt_orm.runners import Growth, Runner
from ckpt_orm.tenants import AnyRunner, TenantRunner, for_tenant, inside
from ckpt_orm.unchanged import Encodings

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


class Lifetime(BaseCheckpointSaver[str]):
    """The part of the saver that comes before and after its calls."""

    _runner: AnyRunner

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
            **engine_kwargs: handed to `create_engine`, such as connect_args. Without pool_size and
                max_overflow there are at most 10 connections, opened when they are needed, which
                stay open.

        Raises:
            BadURL: where the URL cannot be read, or its driver does not take its options.
            InvalidConfig: as for the class, and for a pool that is none.
            ValueError: as for the class.
            UnsupportedDialect: for a database other than SQLite and Postgres.
            WrongEngine: for a driver that is not there, or that a pooler does not work with.
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
        check_order(self.serde)
        self._models, self._fillings = models, fillings(models.tables)
        self._readers, self._encodings = Readers(), Encodings()
        tenants = tenants_of(models.tables)
        self._has_own = bool(self._fillings or tenants)
        runner = Runner(models, engine, async_engine, owned, growth)
        if models.are_packaged:
            source: Any = engine or async_engine
            Place(*models.place).fitting(source.url.get_backend_name())
        self._runner = TenantRunner(runner, tenants[models.tables[0]]) if tenants else runner

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

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A copy of the saver that makes some more types of what is stored.

        LangGraph calls it for a graph's own types where msgpack is strict.

        Args:
            extra_allowlist: (module, name) of each.
        """
        if not isinstance(self.serde, ZstdSerializer):
            return cast("Self", super().with_allowlist(extra_allowlist))
        # LangGraph's rule, which knows its own serdes only, for the one inside.
        copy = _copy(self)
        copy.serde = self.serde.serde
        allowed = copy.with_allowlist(extra_allowlist)
        if allowed is copy:
            return self
        copy.serde = self.serde.around(allowed.serde)
        return copy

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


def _models(models: Models | None, schema: str | None, prefix: str) -> Models:
    if models is None:
        return declare(schema=schema, prefix=prefix)
    if schema is not None or prefix:
        raise ValueError("the models say where the tables are: leave out schema and table_prefix")
    return models
