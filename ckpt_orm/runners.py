"""HOW: operations run in either colour, are retried as a whole, and their errors told in our words.

    runner.run(operation, …)          on a sync Engine, in the caller's thread
    await runner.arun(operation, …)   natively on an AsyncEngine, else on the Engine in a thread

The two are the only twins below the saver. A single statement runs in AUTOCOMMIT on Postgres (one
round trip, no BEGIN and COMMIT), several run in one transaction. What failed for a reason that
passes runs again, since every operation is idempotent; an error that stays is translated here,
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import Any, Literal, ParamSpec, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool
from tenacity import AsyncRetrying, Retrying

from ckpt_orm import lanes, migrations
from ckpt_orm.combining import Batch, Call, Lines, in_order, rows_of, since
from ckpt_orm.engines import (
    AUTOCOMMITS,
    GivenEngine,
    LoopEngines,
    check_shareable,
    in_memory,
    is_prepared,
    leaves_open,
)
from ckpt_orm.errors import InvalidConfig, WrongEngine
from ckpt_orm.failures import is_missing, passes, translated
from ckpt_orm.forks import after_fork
from ckpt_orm.lanes import Lane
from ckpt_orm.lending import Lent, end, set_options
from ckpt_orm.logs import Logs, Shelf
from ckpt_orm.models import Models
from ckpt_orm.modes import begins_itself, driver_of, ends_nothing
from ckpt_orm.operations import CHANGE, READ, WRITE, Access, Operation, put, store_all
from ckpt_orm.retries import PAUSE, RETRY
from ckpt_orm.spares import Loan, spares_of
from ckpt_orm.statements import statements_for
from ckpt_orm.waiting import Turns, in_thread, threads_of

P = ParamSpec("P")
R = TypeVar("R")

#: How values that grow are stored.
Growth = Literal["append", "whole"] | None
_GROWS: dict[Growth, bool | None] = {"append": True, "whole": False, None: None}


class Runner:
    """Runs operations; shared by all copies of a saver, so it knows nothing of one.

    Args:
        models: the mapped tables.
        engine: serves sync callers, and async ones where there is no other.
        async_engine: serves async callers.
        owned: whether the engines were made for this runner, and end with it.
        growth: how values that grow are stored; None is as the tables were made for.

    Raises:
        InvalidConfig: for any other word.
    """

    def __init__(
        self,
        models: Models,
        engine: Engine | None,
        async_engine: LoopEngines | GivenEngine | None,
        owned: bool,
        growth: Growth = None,
    ) -> None:
        if engine is not None:
            check_shareable(engine)
        names = {engine.dialect.name} if engine else set()
        if async_engine:
            names.add(async_engine.url.get_backend_name())
        if len(names) != 1:
            raise WrongEngine(
                "pass an Engine, an AsyncEngine, or one of each for the same database"
            )
        (name,) = names
        self._models = models
        self.statements = statements_for(models, name)
        self.engine = engine
        self.async_engine = async_engine
        self._owned = owned
        self._turns = Turns(engine, async_engine)
        dialect = self.statements.dialect
        #: Whether a pool may leave open what sqlite3, an interrupt or a failed COMMIT has left so.
        self._stays_open = dialect.begin is not None and leaves_open(engine, async_engine)
        self._lines = Lines(dialect.leaders, dialect.relief)
        is_own = owned and not self._stays_open
        self._spares = spares_of(engine, self.statements) if engine is not None and is_own else None
        self._ready = False
        if growth not in _GROWS:
            raise InvalidConfig(f"growth={growth!r} is not known: use 'append', 'whole' or None")
        #: What needs no transaction of several statements.
        self._alone = (READ,) if dialect.begin else (READ, WRITE)
        self.logs = Logs(Shelf(dialect.fold, dialect.grows_from, _GROWS[growth]))
        self._parents: list[Pool] = []
        after_fork(self)

    def renew(self) -> None:
        """Leave a parent's connections to it: in a child they are neither used nor closed.

        What an application's own engine does in a child is the application's. A database in memory
        is its connection, of which the child has a copy.
        """
        engine = self.engine
        if engine is not None and self._owned and not in_memory(engine.url):
            self._parents.append(engine.pool)
            engine.dispose(close=False)

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation on the sync engine, in this thread.

        Raises:
            WrongEngine: where the saver holds an AsyncEngine only.
            SchemaNotReady: where the tables are missing or older than this release.
            DatabaseUnavailable: where the database could not be reached, in as many runs as help.
            DatabaseError: where it refused the operation.
        """
        engine = self.engine or self._sync_engine()
        with translated(operation.name):
            once = partial(self._run_once, None, engine, operation, *args, **kwargs)
            try:
                if operation.combines and self._may_combine(engine):
                    call = Call(operation, args)
                    alone = partial(self._run_once, call.since, engine, operation, *args, **kwargs)
                    return self._lines.threads.run(call, alone, self._store_once)
                return once()
            except Exception as error:
                if not passes(error):
                    raise
            sleep(PAUSE)
            return Retrying(**RETRY)(once)

    async def arun(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation on the AsyncEngine, or on the sync engine in a thread; as `run`.

        A caller that is cancelled meanwhile gets its CancelledError once the connection is back.
        """
        if self.async_engine is None:
            return await self._run_in_thread(operation, *args, **kwargs)
        with translated(operation.name):
            once = partial(self._arun_once, None, operation, *args, **kwargs)
            try:
                if operation.combines and self._may_combine(await self._sync_half()):
                    call = Call(operation, args)
                    alone = partial(self._arun_once, call.since, operation, *args, **kwargs)
                    return await self._lines.here().run(call, alone, self._astore_once)
                return await once()
            except Exception as error:
                if not passes(error):
                    raise
            await asyncio.sleep(PAUSE)
            return await AsyncRetrying(**RETRY)(once)

    async def _run_in_thread(
        self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run an operation in a thread; those that are combined in one, rather than in one each."""
        engine = self._sync_engine()
        threads = threads_of(engine, operation.access)
        run = partial(in_thread, threads, partial(self.run, operation, *args, **kwargs))
        if not (operation.combines and self._may_combine(engine)):
            return await run()
        return await self._lines.here().run(
            Call(operation, args),
            run,
            lambda batch: in_thread(threads, partial(self._store_once, batch)),
        )

    async def _sync_half(self) -> Engine:
        engine = await cast("LoopEngines | GivenEngine", self.async_engine).current()
        return engine.sync_engine

    def _may_combine(self, engine: Engine) -> bool:
        """Whether operations may run together with others; the first one looks at the schema."""
        # What is kept between calls is not prepared for each of them.
        return self._ready and (self._spares is not None or not is_prepared(engine))

    def _run_once(
        self,
        since: float | None,
        engine: Engine,
        operation: Operation[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        access, since = operation.access, since or monotonic()
        turns = self._turns
        with turns.take(access), turns.use(access, since), self._connect(engine) as lane:
            return self._execute_alone(lane, operation, *args, **kwargs)

    async def _arun_once(
        self, since: float | None, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        engine = await cast("LoopEngines | GivenEngine", self.async_engine).current()

        def execute(lane: Lane) -> R:
            return self._execute_alone(lane, operation, *args, **kwargs)

        access, since = operation.access, since or monotonic()
        async with self._turns.atake(access):
            with self._turns.use(access, since):
                async with engine.connect() as conn:
                    return await conn.run_sync(self._on_lane, execute)

    def _on_lane(self, conn: Connection, step: Callable[[Lane], R]) -> R:
        try:
            return step(self._lane(conn))
        finally:
            if self._stays_open:
                end(conn)

    def _lane(self, conn: Connection) -> Lane:
        return Lane(conn, self.statements)

    def _execute_alone(
        self, lane: Lane, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Execute on a connection of one's own: in a transaction, or without one."""
        # The options are set here, not on a view of the engine. That one sets them as part of
        # connecting, and a cancellation there leaves a connection that nobody gives back.
        conn, dialect, access = lane.conn, lane.st.dialect, operation.access
        if conn.in_transaction():
            conn.commit()  # a listener to `engine_connect` has executed something
        if access in self._alone:
            if dialect.single:
                self._set_alone(conn)
            return self.execute(lane, operation, *args, **kwargs)
        if dialect.several:
            set_options(conn, dialect.several)
        if not self._ready:
            self.check_mode(conn)  # before anything is begun in words, of which it can tell nothing
        with lane.transaction() if access is WRITE else conn.begin():
            return self.execute(lane, operation, *args, **kwargs)

    def _set_alone(self, conn: Connection) -> None:
        """What a connection needs for a single statement."""
        if not conn.get_execution_options().get(AUTOCOMMITS):
            set_options(conn, self.statements.dialect.single)

    def _store_once(self, batch: Batch) -> Batch:
        engine = self._sync_engine()
        turns = self._turns
        with turns.take(CHANGE), turns.use(CHANGE, since(batch)), self._connect(engine) as lane:
            return self._execute_together(lane, batch)

    async def _astore_once(self, batch: Batch) -> Batch:
        engine = await cast("LoopEngines | GivenEngine", self.async_engine).current()
        async with self._turns.atake(CHANGE):
            with self._turns.use(CHANGE, since(batch)):
                async with engine.connect() as conn:
                    step = self._execute_together
                    return await conn.run_sync(self._on_lane, lambda it: step(it, batch))

    def _execute_together(self, lane: Lane, batch: Batch) -> Batch:
        """Execute the calls of a batch in one transaction of our own; those that are left."""
        conn = lane.conn
        if conn.in_transaction():
            conn.commit()  # as in `_execute_alone`
        rows = None if self.statements.dialect.stores_each else rows_of(batch)
        if rows is None:
            self._execute_in_turn(lane, batch)
            return ()
        self._set_alone(conn)
        self.look(conn)
        moved = store_all(lane, *rows)
        return [c for c in batch if c.operation is put and c.rows.key[:2] in moved] if moved else ()

    def _execute_in_turn(self, lane: Lane, batch: Batch) -> None:
        """Execute all calls of a batch, or none of them."""
        conn, dialect = lane.conn, lane.st.dialect
        set_options(conn, {**dialect.several, lanes.TOGETHER: True})
        with lane.pipeline(), conn.begin():
            self._begin(lane, CHANGE)
            if dialect.hurry is not None:
                conn.exec_driver_sql(f"SET LOCAL lock_timeout = {dialect.hurry}")
            for call in in_order(batch):
                self.execute(lane, call.operation, call.rows)
        conn.execution_options(**{lanes.TOGETHER: False})  # one that fails is not kept

    def execute(
        self, lane: Lane, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run an operation on a connection, once, after a look at the schema where it is due."""
        if not self._ready:
            self.look(lane.conn)
        if operation.access is not READ and lane.cursor is None:
            self._begin(lane, operation.access)
        try:
            return operation.function(lane, *args, **kwargs)
        except DBAPIError as error:
            if is_missing(error):
                self._ready = False  # the next run looks, and says what to do
            raise

    def look(self, conn: Connection) -> None:
        """Refuse tables this release cannot work with, unless they were found right before."""
        if not self._ready:
            self.check_mode(conn)
            migrations.check_models(conn, self._models)
            if self.logs.shelf.on is None:
                self.logs.shelf.on = not migrations.are_adopted(conn, self._models)
            self._ready = True

    def check_mode(self, conn: Connection) -> None:
        """Refuse a SQLite driver that ends no transaction, unless it was found to before."""
        if not self._ready and self.statements.dialect.begin is not None and ends_nothing(conn):
            raise WrongEngine(
                "the engine's connections have autocommit=True, with which sqlite3 neither commits "
                "nor rolls back: leave it out of `connect_args`, or make it False; without "
                'transactions of your own there is create_engine(…, isolation_level="AUTOCOMMIT")'
            )

    def set_up(self, conn: Connection) -> None:
        """Bring the tables to this release's revision; see `migrations.setup_models`."""
        self.check_mode(conn)
        migrations.setup_models(conn, self._models)
        self.look(conn)

    def _begin(self, lane: Lane, access: Access) -> None:
        begin = lane.st.dialect.begin
        if begin is None:
            return
        # An engine may have a listener of its own that has begun already; and sqlite3 itself begins
        # before an INSERT, which is enough where nothing is read first.
        driver = driver_of(lane.conn)
        writes_first = access is WRITE and begins_itself(driver)
        if not writes_first and not driver.in_transaction:
            lane.conn.exec_driver_sql(begin)

    def _connect(self, engine: Engine) -> Loan | Lent:
        if self._spares is not None:
            return self._spares.connect()
        return Lent(self._lane(engine.connect()), self._stays_open)

    def _sync_engine(self) -> Engine:
        if self.engine is None:
            raise WrongEngine(
                "this saver holds an AsyncEngine only, which a synchronous call cannot use: call "
                "the a-method (graph.ainvoke, aget_tuple, …), or pass an Engine as well, "
                "SQLAlchemySaver(engine, async_engine)"
            )
        return self.engine

    def __str__(self) -> str:
        # A query may hold a password too, or a name with its colon quoted: repr hides neither.
        url = cast(Any, self.engine or self.async_engine).url.set(query={})
        dialect = url.set(username=url.username and url.username.partition(":")[0])
        schema, prefix = self._models.place
        place = f", schema={schema!r}" if schema else ""
        return f"{dialect!r}{place}" + (f", table_prefix={prefix!r}" if prefix else "")

    def setup(self) -> None:
        """Bring the tables to this release's revision; see `migrations.setup_models`."""
        engine = self._sync_engine()
        turn = self._turns.take(CHANGE)
        with translated("setup"), turn, self._connect(engine) as lane:
            self.set_up(lane.conn)

    async def asetup(self) -> None:
        """`setup` in the other colour."""
        if self.async_engine is None:
            return await in_thread(threads_of(self._sync_engine(), CHANGE), self.setup)
        engine = await self.async_engine.current()
        with translated("setup"):
            async with self._turns.atake(CHANGE), engine.connect() as conn:
                await conn.run_sync(self.set_up)

    def dispose(self) -> None:
        """Close the connections of a sync engine that was made here."""
        if self._spares is not None:
            self._spares.dispose()
        if self._owned and self.engine is not None:
            self.engine.dispose()

    async def adispose(self) -> None:
        """Close all connections of the engines that were made here."""
        self.dispose()
        if self._owned and self.async_engine is not None:
            await self.async_engine.dispose()
